//! Observations that tokengap missed: never a loss in the engine.

use super::{Detector, Look, Severity, Verdict};
use crate::ledger::Missed;
use crate::words::count;

pub(super) struct MissedObservations;

impl Detector for MissedObservations {
    fn kind(&self) -> &'static str {
        "missed-observations"
    }

    fn check(&self, look: &Look<'_>, found: &mut Vec<Verdict>) {
        let missed = look.ledger.totals().missed;
        let all = missed.reported().saturating_add(missed.unannounced);
        if all == 0 {
            return;
        }
        let summary = format!(
            "{} observations missed by tokengap; the traffic was not touched, and counts of frames and chunks are too low",
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
}

/// Advice against the most frequent cause.
fn advice(missed: &Missed) -> &'static str {
    let causes = [
        (
            missed.queue_full,
            "tokengap had too little CPU: give it a core, or a larger --ring",
        ),
        (
            missed.unframed,
            "start tokengap before the connection is made: it joined in the middle of a frame",
        ),
        (missed.too_large, "raise --capture: frames exceed the capture limit"),
        (
            missed.cut_short,
            "read the engine's log: connections ended inside a frame",
        ),
        (
            missed.unannounced,
            "give tokengap a core, or a larger --ring: frames passed without a record",
        ),
    ];
    let most = causes.into_iter().max_by_key(|(n, _)| *n);
    most.map_or("", |(_, advice)| advice)
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;

    #[test]
    fn a_miss_is_counted_once_whether_announced_or_numbered() {
        let mut scene = Scene::skip_path();
        scene.send(0, &[("a", 1, 1)]);
        scene.lose(1);
        scene.send(1, &[("a", 1, 3)]);
        let found = scene.check(&MissedObservations, 2);
        assert_eq!(
            (&found[0].evidence["queue_full"], &found[0].evidence["unannounced"]),
            (&1.into(), &0.into())
        );
    }
}
