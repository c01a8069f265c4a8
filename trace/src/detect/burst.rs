//! Frames received in bursts: the event loop was away from its poll and then processed all queued frames at once. Information only: other
//! detectors measure whether tokens wait or are lost.

use super::thresholds::BURST_FRAMES;
use super::{DetectContext, Severity, Verdict};
use crate::words::{count, percent, plural};

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    for (place, group) in context.ledger.groups().iter().enumerate() {
        // Includes the wakeup still in progress.
        let max = context.ledger.members(place).map(|h| h.counts.wakeup_frames_max).max();
        let max = u64::from(max.unwrap_or(0));
        if max < BURST_FRAMES {
            continue;
        }
        let frames = plural(max, "frame");
        let mut summary = match (group.wakeups.quantile(0.5), group.wakeups.quantile(0.99)) {
            (Some(median), Some(p99)) => format!(
                "up to {frames} of {} are received in one wakeup (median {}, p99 {})",
                group.name,
                count(median),
                count(p99),
            ),
            _ => format!("{frames} of {} were received in one wakeup that has not ended", group.name),
        };
        let away = away_from_poll(context, place);
        if let Some(share) = away {
            summary += ": the receiver's event loop is away from its poll ";
            summary += &percent(share);
        }
        let verdict = Verdict::new(Severity::Info, summary)
            .hop(&group.name)
            .weight(max)
            .with("wakeups_ended", group.wakeups.count())
            .with("frames_max", max)
            .with_known("frames_p50", group.wakeups.quantile(0.5))
            .with_known("frames_p99", group.wakeups.quantile(0.99))
            .with_known("away_from_poll", away.map(super::consumer::rounded));
        found.push(verdict);
    }
}

/// Share of the run that receivers of the line spent outside their polls; the largest one.
fn away_from_poll(context: &DetectContext<'_>, place: usize) -> Option<f64> {
    let polls = context.ledger.members(place).filter_map(|hop| context.ledger.thread(hop.receiving_thread()?)?.poll);
    polls.map(|poll| 1.0 - poll.polled_ns as f64 / poll.interval_ns.max(1) as f64).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::super::scene::{MS, Scene};
    use super::*;

    #[test]
    fn bursts_are_reported_from_a_minimum_of_frames_per_wakeup() {
        let mut scene = Scene::skip_path();
        for n in 0..7 {
            scene.send(n, &[]);
        }
        for n in 0..7 {
            scene.receive_in_wakeup(10 + n, n, 1);
        }
        assert!(scene.check(check, 20).is_empty());
        let mut endless = Scene::skip_path();
        for n in 0..8 {
            endless.send(n, &[]);
            endless.receive_in_wakeup(n + 10, n, 1);
        }
        let found = endless.check(check, 20);
        assert_eq!(found[0].severity, Severity::Info);
        assert_eq!(found[0].evidence.get("frames_p50"), None);
        for n in 7..57 {
            scene.send(n * MS, &[]);
            scene.receive_in_wakeup(n * MS + 1, n, n);
        }
        for n in 57..77 {
            scene.send(n * MS, &[]);
        }
        for n in 57..77 {
            scene.receive_in_wakeup(80 * MS + n, n, 100);
        }
        let found = scene.check(check, 90 * MS);
        assert_eq!(found[0].severity, Severity::Info);
        assert_eq!(found[0].evidence["frames_max"], 20);
        assert_eq!(found[0].evidence["frames_p50"], 1);
    }
}
