//! Tokens that wait in the process that generated them: by its own timestamps, or by the time in the call that sends them.

use super::server_threads::with_busiest;
use super::thresholds::{GAP_WARNING_NS, gap_severity};
use super::{DetectContext, Verdict};
use crate::words::{duration, plural};

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    for group in context.ledger.groups() {
        let worst = group.send_wait.max().unwrap_or(0);
        // If even the shortest wait is long, the engine's clock differs (a time namespace), and the waits are not real.
        let shortest = group.send_wait.quantile(0.0).unwrap_or(0);
        let severity = gap_severity(worst);
        let Some(severity) = severity.filter(|_| shortest < GAP_WARNING_NS / 2) else {
            continue;
        };
        let source = context.facts().source();
        let median = group.send_wait.quantile(0.5).unwrap_or(0);
        let summary = format!(
            "tokens wait up to {} in the {source} before they are sent (median {}, {})",
            duration(worst),
            duration(median),
            plural(group.send_wait.count(), "message"),
        );
        let verdict = Verdict::new(severity, summary)
            .hop(&group.name)
            .weight(worst)
            .with("send_wait_max_ns", worst)
            .with("send_wait_p50_ns", median)
            .advice(context.facts().late_send());
        let recent = group.send_wait.recent(context.now).max();
        found.push(if recent >= GAP_WARNING_NS { with_busiest(verdict, context, recent) } else { verdict });
    }
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::super::scene::{MS, SECOND, Scene};
    use super::*;
    use crate::event::{SendWait, What};
    use crate::id::HopId;

    fn sent(scene: &mut Scene, at: u64, ns: u64) -> Vec<Verdict> {
        scene.send(at, &[]);
        scene.apply(at, What::SendWait(SendWait { hop: HopId(0), ns }));
        scene.check(check, at)
    }

    #[test]
    fn a_clock_that_differs_is_not_a_wait() {
        let mut scene = Scene::skip_path();
        for second in 20..30 {
            assert!(sent(&mut scene, second * SECOND, 12 * SECOND).is_empty());
        }
    }

    #[test]
    fn a_message_that_is_sent_long_after_its_timestamp_is_reported() {
        let mut scene = Scene::skip_path();
        assert!(sent(&mut scene, SECOND, MS).is_empty());
        let found = sent(&mut scene, 20 * SECOND, 12 * SECOND);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].severity, Severity::Critical);
        assert_eq!(found[0].evidence["send_wait_max_ns"], 12 * SECOND);
    }
}
