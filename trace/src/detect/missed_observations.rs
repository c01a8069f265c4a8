//! Observations that tokengap missed: never a loss in the engine.

use super::{DetectContext, Severity, Verdict};
use crate::ledger::MissedCounts;
use crate::words::count;

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let missed = context.ledger.totals().missed;
    let all = missed.reported().saturating_add(missed.unannounced);
    if all == 0 {
        return;
    }
    let summary = format!(
        "tokengap missed {} observations; traffic is not affected, but counts of frames and chunks are too low",
        count(all),
    );
    found.push(
        Verdict::new(Severity::Warning, summary)
            .since(missed.since)
            .weight(all)
            .with("queue_full", missed.queue_full)
            .with("unframed", missed.unframed)
            .with("too_large", missed.too_large)
            .with("cut_short", missed.cut_short)
            .with("unannounced", missed.unannounced)
            .advice(advice(&missed)),
    );
}

/// Advice for the most frequent cause.
fn advice(missed: &MissedCounts) -> &'static str {
    let causes = [
        (missed.queue_full, "tokengap had too little CPU: give it a core, or a larger --ring"),
        (missed.unframed, "start tokengap before the engine connects: it joined in the middle of a frame"),
        (missed.too_large, "raise --capture: frames exceed the capture limit"),
        (missed.cut_short, "read the engine's log: connections ended inside a frame"),
        (missed.unannounced, "give tokengap a core, or a larger --ring: frames passed without a record"),
    ];
    let max = causes.into_iter().max_by_key(|(n, _)| *n);
    max.map_or("", |(_, advice)| advice)
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;

    #[test]
    fn an_announced_miss_with_a_sequence_gap_is_counted_once() {
        let mut scene = Scene::skip_path();
        scene.send(0, &[("a", 1, 1)]);
        scene.lose(1);
        scene.send(1, &[("a", 1, 3)]);
        let found = scene.check(check, 2);
        assert_eq!(found[0].evidence["queue_full"], 1);
        assert_eq!(found[0].evidence["unannounced"], 0);
    }
}
