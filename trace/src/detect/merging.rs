//! Merged chunks: no token is lost, but the client sees bursts.

use std::fmt::Write as _;

use super::{DetectContext, Severity, Verdict, advice};
use crate::words::{plural, share};

/// Share of merged chunks that causes a warning.
const WARNING_SHARE: f64 = 0.05;

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let totals = context.ledger.totals();
    let confirmed = context.ledger.observes_deliveries();
    // Chunks replaced by a cumulative delivery are reported by `would-drop`.
    let (chunks, of, seen) = if confirmed {
        let merged = totals.chunks.fates.merged - totals.replaced.0;
        let streamed = totals.chunks.tracked - totals.chunks.fates.unjudged - totals.chunks.unstreamed;
        (merged, streamed, &totals.merges)
    } else {
        let merged = totals.predicted.merged - totals.predicted.replaced;
        (merged, totals.chunks.received, &totals.bursts)
    };
    if chunks == 0 {
        return;
    }
    let heavy = chunks as f64 >= WARNING_SHARE * of as f64;
    let severity = if heavy { Severity::Warning } else { Severity::Info };
    let outcome = if confirmed { "were merged" } else { "will be merged (predicted)" };
    let mut summary = format!(
        "{} ({}) {outcome} with a later chunk, in {}: no token is lost, but tokens arrive in bursts",
        plural(chunks, "chunk"),
        share(chunks, of),
        plural(seen.rids, "request"),
    );
    // Events after the first of each response, which have an inter-token latency.
    let events = context.ledger.itl_delivered().count();
    let tokens = context.ledger.itl_delivered_by_token().count();
    let mean = (confirmed && events > 0).then(|| tokens as f64 / events as f64);
    if let Some(mean) = mean {
        let _ = write!(summary, ": {mean:.1} tokens per event on average");
    }
    found.push(
        Verdict::new(severity, summary)
            .affected(seen)
            .weight(chunks)
            .with("requests", seen.rids)
            .with("chunks", chunks)
            .with("confirmed", confirmed)
            .with("tokens_per_event", mean)
            .advice(advice::merging(context.facts())),
    );
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;
    use crate::event::Response;

    #[test]
    fn merged_deliveries_are_reported_as_merged_not_lost() {
        let mut scene = Scene::delivering();
        scene.send(0, &[("a", 1, 1)]);
        scene.deliver(1, "a", 1, 1, false);
        assert!(scene.check(check, 2).is_empty());
        scene.send(3, &[("a", 1, 2)]);
        scene.send(4, &[("a", 1, 3)]);
        scene.deliver(5, "a", 2, 3, false);
        let found = scene.check(check, 6);
        assert_eq!(found[0].evidence["chunks"], 1);
        assert_eq!(found[0].evidence["confirmed"], true);
        assert_eq!(found[0].evidence["tokens_per_event"], 2.0);
        assert!(found[0].summary.ends_with("in bursts: 2.0 tokens per event on average"), "{}", found[0].summary);
    }

    #[test]
    fn a_non_streaming_response_is_not_reported_as_merging() {
        let mut scene = Scene::delivering();
        (1..=3).for_each(|n| scene.send(n, &[("a", 1, n as u32)]));
        scene.respond(5, Response::Whole, "a", 3);
        assert!(scene.check(check, 6).is_empty());
        let fates = scene.ledger.totals().chunks.fates;
        assert_eq!((fates.delivered, fates.merged), (3, 0));
        assert_eq!(scene.ledger.balances(), Ok(()));
    }

    #[test]
    fn chunks_of_a_text_only_response_are_unjudged_and_its_tokens_unknown() {
        let mut scene = Scene::delivering();
        scene.send(1, &[("a", 1, 1)]);
        scene.respond(2, Response::Text, "a", 0);
        scene.send(3, &[("a", 1, 2)]);
        let totals = scene.ledger.totals();
        assert_eq!((totals.chunks.fates.unjudged, totals.tokens.uncounted), (2, 2));
        assert_eq!((scene.ledger.undelivered(), scene.ledger.tokens_delivered()), (0, None));
        assert_eq!(scene.ledger.request("a").expect("it is live").fates(), None);
        scene.send(4, &[("b", 1, 1)]);
        scene.deliver(5, "b", 1, 1, false);
        assert_eq!(scene.ledger.tokens_delivered(), Some(1));
        assert_eq!(scene.ledger.balances(), Ok(()));
    }
}
