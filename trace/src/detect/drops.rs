//! Chunks that never reached their client: proven by deliveries, or predicted from wakeups.

use super::{DetectContext, Severity, Verdict, advice};
use crate::words::{count, plural, share};

/// Share of dropped chunks that is critical.
const CRITICAL_SHARE: f64 = 0.001;

pub(super) fn dropped(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let totals = context.ledger.totals();
    let (fates, seen) = (totals.chunks.fates, &totals.drops);
    if fates.tokens_lost == 0 {
        return;
    }
    let judged = fates.delivered + fates.merged + fates.dropped;
    let severity = Severity::critical_if(fates.dropped as f64 >= CRITICAL_SHARE * judged as f64);
    let advice = match totals.tokens.lost_from_text {
        0 => advice::dropped(context.ledger.engine()),
        text if text == fates.tokens_lost => advice::lost_from_text(context.ledger.engine()),
        text => format!(
            "{}; for {} of them: {}",
            advice::dropped(context.ledger.engine()),
            plural(text, "token"),
            advice::lost_from_text(context.ledger.engine())
        ),
    };
    let summary = format!(
        "{} never delivered: {} lost ({} of chunks) in {}",
        plural(fates.dropped, "chunk"),
        plural(fates.tokens_lost, "token"),
        share(fates.dropped, judged),
        plural(seen.rids, "request"),
    );
    let from_text = (totals.tokens.lost_from_text > 0).then_some(totals.tokens.lost_from_text);
    let verdict = Verdict::new(severity, summary)
        .affected(seen)
        .weight(fates.tokens_lost)
        .with("requests", seen.rids)
        .with("chunks_dropped", fates.dropped)
        .with("tokens_lost", fates.tokens_lost)
        .with("worst_tokens_lost", seen.amount)
        .with_known("tokens_lost_from_text", from_text)
        .advice(advice);
    found.push(verdict);
}

/// Responses matched to no frame: the count claimed by the last event against the tokens carried.
pub(super) fn short_answers(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let answers = &context.ledger.totals().answers;
    let (seen, lost) = (&answers.judged_alone_lost, answers.judged_alone_tokens_lost);
    if lost == 0 {
        return;
    }
    let summary = format!(
        "{} lost in {}: each response carried fewer tokens than its last event counts",
        plural(lost, "token"),
        plural(seen.rids, "response"),
    );
    found.push(
        Verdict::new(Severity::Critical, summary)
            .affected(seen)
            .weight(lost)
            .with("responses", seen.rids)
            .with("responses_whole", answers.judged_alone)
            .with("tokens_lost", lost)
            .with("worst_tokens_lost", seen.amount)
            .advice(advice::dropped(context.ledger.engine())),
    );
}

pub(super) fn predicted(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let totals = context.ledger.totals();
    // If deliveries are observed, they decide instead of the prediction.
    if totals.predicted.dropped == 0 || context.ledger.observes_deliveries() {
        return;
    }
    let at_most = if context.ledger.engine().turnaround.is_some() { "" } else { "up to " };
    // Text deltas are cut from the full text, so only clients that read token ids can miss tokens.
    let text = context.ledger.groups().iter().any(|g| g.name.starts_with("detokenizer->"));
    let (severity, whom) = if text {
        (Severity::Info, "for clients that read token ids; text and chat lose none")
    } else {
        (Severity::Warning, "each was received before its request's waiter had processed an earlier one")
    };
    let summary = format!(
        "{at_most}{} of {} dropped (predicted): {whom}",
        plural(totals.predicted.dropped, "chunk"),
        count(totals.chunks.received),
    );
    found.push(
        Verdict::new(severity, summary)
            .affected(&totals.bursts)
            .weight(totals.predicted.dropped)
            .with("requests", totals.bursts.rids)
            .with("chunks_dropped_predicted", totals.predicted.dropped)
            .with("burst_max", totals.predicted.burst_max)
            .advice(advice::dropped(context.ledger.engine())),
    );
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;
    use crate::event::{Answer, Capabilities, Delivery, Hop, Response, What};
    use crate::id::HopId;

    #[test]
    fn text_left_out_is_not_blamed_on_the_waiter() {
        let mut scene = Scene::delivering();
        for n in 1..=4 {
            scene.send(n, &[("a", 1, n as u32)]);
        }
        let delivery = Delivery { finished: true, response: Response::Text, ..Delivery::new("a", 1, Some(4)) };
        scene.apply(8, What::Delivered(delivery));
        let found = scene.check(dropped, 9);
        assert_eq!(found[0].evidence["tokens_lost_from_text"], found[0].evidence["tokens_lost"]);
        let advice = found[0].advice.as_deref().expect("advice");
        assert!(advice.contains("middleware") && !advice.contains("0.5.10"), "{advice}");
    }

    #[test]
    fn predicted_drops_need_a_shared_wakeup_and_are_not_confirmed() {
        let mut scene = Scene::skip_path();
        scene.send(0, &[("a", 1, 1), ("b", 1, 1)]);
        scene.send(1, &[("a", 1, 2)]);
        scene.receive_in_wakeup(2, 0, 7);
        assert!(scene.check(predicted, 3).is_empty());
        scene.receive_in_wakeup(3, 1, 7);
        let found = scene.check(predicted, 4);
        assert_eq!(found[0].evidence["chunks_dropped_predicted"], 1);
        assert!(found[0].advice.as_deref().is_some_and(|a| a.contains("0.5.10")));
        assert!(scene.check(dropped, 4).is_empty());
    }

    #[test]
    fn predicted_drops_without_affected_ids_are_informational() {
        let mut scene = Scene::skip_path();
        scene.send(0, &[("a", 1, 1)]);
        scene.send(1, &[("a", 1, 2)]);
        scene.receive_in_wakeup(2, 0, 7);
        scene.receive_in_wakeup(3, 1, 7);
        assert_eq!(scene.check(predicted, 4)[0].severity, Severity::Warning);
        scene.apply(
            5,
            What::Hop(Hop {
                id: HopId(1),
                ends: "detokenizer->tokenizer".into(),
                endpoint: "ipc:///tmp/d",
                worker: None,
                origin: false,
                last: true,
                capabilities: Capabilities::default(),
            }),
        );
        assert_eq!(scene.check(predicted, 6)[0].severity, Severity::Info);
    }

    #[test]
    fn no_drop_is_predicted_for_a_response_without_gaps() {
        for response in [Response::Text, Response::Whole] {
            let mut scene = Scene::skip_path();
            (1..=4).for_each(|n| scene.send(n, &[("a", 1, n as u32)]));
            scene.receive_in_wakeup(5, 0, 7);
            scene.receive_in_wakeup(6, 1, 7);
            assert_eq!(scene.check(predicted, 7).len(), 1);
            scene.respond(8, response, "a", u32::from(response == Response::Whole) * 4);
            scene.receive_in_wakeup(9, 2, 8);
            scene.receive_in_wakeup(10, 3, 8);
            assert!(scene.check(predicted, 11).is_empty(), "{response:?}");
        }
    }

    #[test]
    fn a_short_response_of_an_untracked_request_is_reported() {
        let mut scene = Scene::skip_path();
        let answer = |rid, tokens| Answer::new(rid, Some(tokens), Some(8));
        scene.apply(1, What::Answered(answer("whole", 8)));
        assert!(scene.check(short_answers, 2).is_empty());
        scene.apply(3, What::Answered(answer("short", 5)));
        let found = scene.check(short_answers, 4);
        assert_eq!(&*found[0].rid, "short");
        assert_eq!(found[0].evidence["tokens_lost"], 3);
    }

    #[test]
    fn observed_deliveries_confirm_drops() {
        let mut scene = Scene::delivering();
        for n in 1..=3 {
            scene.send(n, &[("a", 1, n as u32)]);
        }
        scene.deliver(5, "a", 1, 3, false);
        let found = scene.check(dropped, 6);
        assert_eq!(found[0].severity, Severity::Critical);
        assert_eq!(found[0].evidence["tokens_lost"], 2);
    }
}
