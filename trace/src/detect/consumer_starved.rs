//! A runnable consumer that gets no CPU because other threads have it.

use super::consumer::{Late, SUSPENDED, report_waits};
use super::thresholds::STARVED_SHARE;
use super::{DetectContext, Verdict, advice};

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    // A stopped or mostly throttled thread does not lack a CPU: another verdict names its cause. The kernel counts a throttled period
    // when it ends, so a period in progress looks like waiting for a CPU.
    let starved = |one: &Late<'_>| {
        let suspended = one.away.sum(&SUSPENDED).max(one.spent.throttled_ns().unwrap_or(0));
        one.spent.starved_ns().filter(|ns| *ns > suspended).map(|ns| one.spent.share(ns))
    };
    let min = STARVED_SHARE;
    report_waits(context, found, min, starved, ("waits for a CPU", advice::STARVED));
}

#[cfg(test)]
mod tests {
    use super::super::scene::{SECOND, Scene};
    use super::*;

    #[test]
    fn cpu_wait_is_starvation_unless_caused_by_a_quota() {
        let late_with = |shares| Scene::late_consumer(shares).check(check, 4 * SECOND);
        assert_eq!(late_with([40, 55, 0])[0].evidence["run_wait"], 0.55);
        assert!(late_with([90, 10, 0]).is_empty());
        assert!(late_with([40, 55, 80]).is_empty(), "all of the wait was throttling");
        assert!(late_with([18, 77, 51]).is_empty(), "most of the wait was throttling");
    }
}
