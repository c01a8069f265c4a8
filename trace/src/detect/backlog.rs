//! Frames that pile up between send and receive.

use super::thresholds::{BACKLOG_CRITICAL_FRAMES, BACKLOG_FRAMES, LATE_NS};
use super::{DetectContext, Severity, Verdict, advice};
use crate::words::{duration, plural};

/// Seconds during which the backlog must not have fallen.
const SECONDS: usize = 3;

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    for (place, group) in context.ledger.groups().iter().enumerate() {
        let Some((seconds, from, to)) = group.trend.rising() else {
            continue;
        };
        if to < BACKLOG_FRAMES || seconds < SECONDS {
            continue;
        }
        let oldest = context.ledger.members(place).filter_map(crate::ledger::Hop::oldest_waiting).min();
        let waited = oldest.map_or(0, |at| context.now.since(at));
        // On a hop with many small frames, a backlog of a hundred clears within milliseconds.
        if waited < LATE_NS {
            continue;
        }
        let severity = Severity::critical_if(group.backlog >= BACKLOG_CRITICAL_FRAMES);
        let summary = format!(
            "{} waiting on {}, {} more than {} s ago; the oldest for {}",
            plural(group.backlog, "frame"),
            group.name,
            group.backlog.saturating_sub(from),
            seconds,
            duration(waited),
        );
        found.push(
            Verdict::new(severity, summary)
                .hop(&group.name)
                .weight(group.backlog)
                .with("backlog_frames", group.backlog)
                .with("backlog_frames_before", from)
                .with("seconds", seconds)
                .with("oldest_waiting_ns", waited)
                .advice(advice::of_hop(context.facts(), &context.attribution, &group.name)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::scene::{MS, SECOND, Scene};
    use super::*;

    #[test]
    fn only_a_growing_backlog_is_reported() {
        let mut scene = Scene::skip_path();
        for second in 0..5 {
            for n in 0..30 {
                scene.send(second * SECOND + n, &[]);
            }
            scene.tick(second * SECOND + 100);
        }
        let found = scene.check(check, 5 * SECOND);
        assert_eq!(found[0].severity, Severity::Warning);
        assert_eq!(&*found[0].hop, "scheduler->tokenizer");
        for second in 5..70 {
            scene.tick(second * SECOND);
        }
        assert!(scene.check(check, 70 * SECOND).is_empty());
    }

    #[test]
    fn a_short_queue_spike_is_not_a_backlog() {
        let mut scene = Scene::skip_path();
        let mut seq = 0;
        for second in 0..5_u64 {
            for _ in 0..90 + second {
                scene.send(second * SECOND, &[]);
            }
            scene.tick(second * SECOND + 100);
            assert!(scene.check(check, second * SECOND + 100).is_empty());
            for _ in 0..90 + second {
                scene.receive(second * SECOND + MS, seq);
                seq += 1;
            }
        }
    }
}
