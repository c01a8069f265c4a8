//! A consumer that cannot run because its container's CPU quota is used up.

use super::consumer::{Late, report_waits};
use super::thresholds::THROTTLED_SHARE;
use super::{DetectContext, Verdict, advice};

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let throttled = |one: &Late<'_>| one.spent.throttled_ns().map(|ns| one.spent.share(ns));
    let min = THROTTLED_SHARE;
    report_waits(context, found, min, throttled, ("is throttled by its CPU limit", advice::THROTTLED));
}

#[cfg(test)]
mod tests {
    use super::super::scene::{SECOND, Scene};
    use super::*;

    #[test]
    fn throttling_is_reported_while_the_thread_is_runnable() {
        let late_with = |shares| Scene::late_consumer(shares).check(check, 4 * SECOND);
        assert_eq!(late_with([30, 65, 60])[0].evidence["throttled"], 0.6);
        assert!(late_with([2, 1, 90]).is_empty(), "other threads of its cgroup were throttled; it slept");
        assert!(late_with([95, 3, 0]).is_empty());
    }
}
