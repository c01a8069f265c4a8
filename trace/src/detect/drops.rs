//! Chunks that never reached their client: proven by deliveries, or predicted from wakeups.

use super::{Detector, Look, Severity, Verdict};
use crate::engine::DROPS_FIXED_IN;
use crate::words::{count, plural, share};

pub(super) struct DroppedChunks;

impl Detector for DroppedChunks {
    fn kind(&self) -> &'static str {
        "dropped-chunks"
    }

    fn check(&self, look: &Look<'_>, found: &mut Vec<Verdict>) {
        let totals = look.ledger.totals();
        let (fates, seen) = (totals.chunks.fates, &totals.drops);
        if fates.tokens_lost == 0 {
            return;
        }
        let judged = fates.delivered + fates.coalesced + fates.dropped;
        let critical = fates.dropped as f64 >= look.thresholds.drops_critical_share * judged as f64;
        let severity = if critical {
            Severity::Critical
        } else {
            Severity::Warning
        };
        let summary = format!(
            "{} never delivered: {} lost ({} of chunks) in {}",
            plural(fates.dropped, "chunk"),
            plural(fates.tokens_lost, "token"),
            share(fates.dropped, judged),
            plural(seen.rids, "request"),
        );
        found.push(
            Verdict::new(severity, summary)
                .rid(&seen.worst)
                .since(seen.since)
                .weight(fates.tokens_lost)
                .with("requests", seen.rids)
                .with("chunks_dropped", fates.dropped)
                .with("tokens_lost", fates.tokens_lost)
                .with("worst_tokens_lost", seen.amount)
                .advice(advice(look)),
        );
    }
}

/// Responses matched to no frame: the count claimed by the last event against the tokens carried.
pub(super) struct ShortAnswers;

impl Detector for ShortAnswers {
    fn kind(&self) -> &'static str {
        "short-answers"
    }

    fn check(&self, look: &Look<'_>, found: &mut Vec<Verdict>) {
        let answers = &look.ledger.totals().answers;
        let (seen, lost) = (&answers.apart_lost, answers.apart_tokens_lost);
        if lost == 0 {
            return;
        }
        let summary = format!(
            "{} lost in {}: each carried fewer than its own last event counts",
            plural(lost, "token"),
            plural(seen.rids, "response"),
        );
        found.push(
            Verdict::new(Severity::Critical, summary)
                .rid(&seen.worst)
                .since(seen.since)
                .weight(lost)
                .with("responses", seen.rids)
                .with("responses_whole", answers.apart)
                .with("tokens_lost", lost)
                .with("worst_tokens_lost", seen.amount)
                .advice(advice(look)),
        );
    }
}

pub(super) struct DropsPredicted;

impl Detector for DropsPredicted {
    fn kind(&self) -> &'static str {
        "dropped-chunks-predicted"
    }

    fn check(&self, look: &Look<'_>, found: &mut Vec<Verdict>) {
        let totals = look.ledger.totals();
        // If deliveries are observed, they decide instead of the prediction.
        if totals.predicted.dropped == 0 || look.ledger.sees_deliveries() {
            return;
        }
        let at_most = if look.ledger.engine().turnaround.is_some() {
            ""
        } else {
            "up to "
        };
        // Text deltas are cut from the full text, so only clients that read token ids can miss tokens.
        let text = look.ledger.groups().iter().any(|g| g.name.starts_with("detokenizer->"));
        let (severity, whom) = if text {
            (
                Severity::Info,
                "for clients that read token ids; text and chat lose none",
            )
        } else {
            (
                Severity::Warning,
                "each was taken before the waiter of an earlier one of its request ran",
            )
        };
        let summary = format!(
            "{at_most}{} of {} dropped (predicted): {whom}",
            plural(totals.predicted.dropped, "chunk"),
            count(totals.chunks.taken),
        );
        found.push(
            Verdict::new(severity, summary)
                .rid(&totals.bursts.worst)
                .since(totals.bursts.since)
                .weight(totals.predicted.dropped)
                .with("requests", totals.bursts.rids)
                .with("chunks_dropped_predicted", totals.predicted.dropped)
                .with("burst_max", totals.predicted.burst_max)
                .advice(advice(look)),
        );
    }
}

fn advice(look: &Look<'_>) -> String {
    let flag = look.ledger.engine().behaviour.flag().unwrap_or("--stream-output");
    format!("fixed in {DROPS_FIXED_IN}, which merges queued chunks; until then run without {flag}")
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;
    use crate::event::{Answer, AnswerEnd, Hop, Response, Sees, What};
    use crate::id::HopId;

    #[test]
    fn a_prediction_needs_a_shared_wakeup_and_stays_one() {
        let mut scene = Scene::skip_path();
        scene.send(0, &[("a", 1, 1), ("b", 1, 1)]);
        scene.send(1, &[("a", 1, 2)]);
        scene.take_in(2, 0, 7);
        assert!(scene.check(&DropsPredicted, 3).is_empty());
        scene.take_in(3, 1, 7);
        let found = scene.check(&DropsPredicted, 4);
        assert_eq!(found[0].evidence["chunks_dropped_predicted"], 1);
        assert!(found[0].advice.as_deref().is_some_and(|a| a.contains("0.5.10")));
        assert!(scene.check(&DroppedChunks, 4).is_empty());
    }

    #[test]
    fn text_is_not_said_to_be_in_danger() {
        let mut scene = Scene::skip_path();
        scene.send(0, &[("a", 1, 1)]);
        scene.send(1, &[("a", 1, 2)]);
        scene.take_in(2, 0, 7);
        scene.take_in(3, 1, 7);
        assert_eq!(scene.check(&DropsPredicted, 4)[0].severity, Severity::Warning);
        scene.say(
            5,
            What::Hop(Hop {
                id: HopId(1),
                name: "detokenizer->tokenizer",
                endpoint: "ipc:///tmp/d",
                worker: None,
                origin: false,
                last: true,
                sees: Sees::default(),
            }),
        );
        assert_eq!(scene.check(&DropsPredicted, 6)[0].severity, Severity::Info);
    }

    #[test]
    fn nothing_is_predicted_of_a_response_that_skips_nothing() {
        for response in [Response::Text, Response::Whole] {
            let mut scene = Scene::skip_path();
            (1..=4).for_each(|n| scene.send(n, &[("a", 1, n as u32)]));
            scene.take_in(5, 0, 7);
            scene.take_in(6, 1, 7);
            assert_eq!(scene.check(&DropsPredicted, 7).len(), 1);
            scene.respond(8, response, "a", u32::from(response == Response::Whole) * 4);
            scene.take_in(9, 2, 8);
            scene.take_in(10, 3, 8);
            assert!(scene.check(&DropsPredicted, 11).is_empty(), "{response:?}");
        }
    }

    #[test]
    fn a_response_that_nobody_names_proves_its_missed_observations() {
        let mut scene = Scene::skip_path();
        let answer = |rid, tokens| Answer {
            rid,
            tokens: Some(tokens),
            completion_tokens: Some(8),
            end: AnswerEnd::Whole,
            held_up: 0,
            unacknowledged: None,
        };
        scene.say(1, What::Answered(answer("whole", 8)));
        assert!(scene.check(&ShortAnswers, 2).is_empty());
        scene.say(3, What::Answered(answer("short", 5)));
        let found = scene.check(&ShortAnswers, 4);
        assert_eq!(
            (&*found[0].rid, &found[0].evidence["tokens_lost"]),
            ("short", &3.into())
        );
    }

    #[test]
    fn deliveries_prove_drops() {
        let mut scene = Scene::delivering();
        for n in 1..=3 {
            scene.send(n, &[("a", 1, n as u32)]);
        }
        scene.deliver(5, "a", 1, 3, false);
        let found = scene.check(&DroppedChunks, 6);
        assert_eq!(
            (found[0].severity, &found[0].evidence["tokens_lost"]),
            (Severity::Critical, &2.into())
        );
    }
}
