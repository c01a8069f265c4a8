//! A consumer that cannot run because its container's CPU quota is used up.

use super::consumer::{Late, late, rest, worst_of_each_line};
use super::{DetectContext, Detector, Verdict, advice};
use crate::words::percent;

pub(super) struct ConsumerThrottled;

impl Detector for ConsumerThrottled {
    fn kind(&self) -> &'static str {
        "consumer-throttled"
    }

    fn is_intermittent(&self) -> bool {
        true
    }

    fn check(&self, context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
        let throttled = |one: &Late<'_>| one.spent.throttled_ns().map(|ns| one.spent.share(ns));
        for (one, share) in worst_of_each_line(late(context), context.thresholds.throttled_share, throttled) {
            let summary = format!(
                "{} is throttled by its CPU limit {} of the time {} ({} running; {})",
                one.describe_thread(),
                percent(share),
                one.meanwhile(),
                percent(one.spent.share(one.spent.on_ns)),
                rest(&one.spent),
            );
            found.push(one.verdict(context, summary).advice(advice::THROTTLED));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scene::{MS, SECOND, Scene};
    use super::*;

    #[test]
    fn throttling_is_reported_while_the_thread_is_runnable() {
        let late_with = |shares| {
            let mut scene = Scene::skip_path();
            scene.send(0, &[]);
            scene.receive_by(MS, 0, 7);
            for n in 1..40 {
                scene.send(n * 100 * MS, &[]);
                scene.cpu(n * 100 * MS, 7, shares);
            }
            scene.check(&ConsumerThrottled, 4 * SECOND)
        };
        assert_eq!(late_with([30, 65, 60])[0].evidence["throttled"], 0.6);
        assert!(
            late_with([2, 1, 90]).is_empty(),
            "other threads of its cgroup were throttled; it slept"
        );
        assert!(late_with([95, 3, 0]).is_empty());
    }
}
