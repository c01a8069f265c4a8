//! A runnable consumer that gets no CPU because other threads have it.

use super::consumer::{HELD, Late, late, rest, worst_of_each_line};
use super::{Detector, Look, Verdict, advice};
use crate::words::percent;

pub(super) struct ConsumerStarved;

impl Detector for ConsumerStarved {
    fn kind(&self) -> &'static str {
        "consumer-starved"
    }

    fn comes_and_goes(&self) -> bool {
        true
    }

    fn check(&self, look: &Look<'_>, found: &mut Vec<Verdict>) {
        // A stopped or mostly throttled thread does not lack a CPU: another verdict names its cause. The kernel counts a throttled period
        // when it ends, so a period in progress looks like waiting for a CPU.
        let starved = |one: &Late<'_>| {
            let held = one.away.sum(&HELD).max(one.spent.held_ns().unwrap_or(0));
            one.spent
                .starved_ns()
                .filter(|ns| *ns > held)
                .map(|ns| one.spent.share(ns))
        };
        for (one, share) in worst_of_each_line(late(look), look.thresholds.starved_share, starved) {
            let summary = format!(
                "{} waits for a CPU {} of the time {} ({} on one; {})",
                one.who(),
                percent(share),
                one.meanwhile(),
                percent(one.spent.share(one.spent.on_ns)),
                rest(&one.spent),
            );
            found.push(one.verdict(look, summary).advice(advice::STARVED));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scene::{MS, SECOND, Scene};
    use super::*;

    #[test]
    fn waiting_for_a_cpu_is_starving_unless_a_quota_made_it_wait() {
        let late_with = |shares| {
            let mut scene = Scene::skip_path();
            scene.send(0, &[]);
            scene.take_by(MS, 0, 7);
            for n in 1..40 {
                scene.send(n * 100 * MS, &[]);
                scene.cpu(n * 100 * MS, 7, shares);
            }
            scene.check(&ConsumerStarved, 4 * SECOND)
        };
        assert_eq!(late_with([40, 55, 0])[0].evidence["run_wait"], 0.55);
        assert!(late_with([90, 10, 0]).is_empty());
        assert!(
            late_with([40, 55, 80]).is_empty(),
            "the quota held it back all that time"
        );
        assert!(
            late_with([18, 77, 51]).is_empty(),
            "the quota held it back for most of that time"
        );
    }
}
