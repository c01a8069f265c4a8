//! Requests that began and then stopped producing.

use super::thresholds::STALLED_NS;
use super::{DetectContext, Severity, Verdict};
use crate::ledger::Request;
use crate::words::{duration, plural};

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let (mut stalled, mut retracted, mut worst_ns, mut worst_rid) = (0, 0, 0, "");
    let limit = STALLED_NS;
    let is_stalled = |r: &&Request| context.ledger.is_stalled(r, context.now, limit);
    for request in context.ledger.requests().filter(is_stalled) {
        let silent = context.now.since(request.last_at);
        stalled += 1;
        retracted += u64::from(request.retractions > 0);
        if silent > worst_ns {
            (worst_ns, worst_rid) = (silent, &request.rid);
        }
    }
    if stalled == 0 {
        return;
    }
    let summary = format!(
        "{} unfinished and without a new token, the longest for {}",
        plural(stalled, "request"),
        duration(worst_ns),
    );
    found.push(
        Verdict::new(Severity::Warning, summary)
            .rid(worst_rid)
            .weight(stalled)
            .with("requests", stalled)
            .with("retracted_before", retracted)
            .with("longest_ns", worst_ns)
            .advice(format!(
                "the {} retracted them, or they ended without a frame on this hop",
                context.facts().source()
            )),
    );
}

#[cfg(test)]
mod tests {
    use super::super::scene::{SECOND, Scene};
    use super::*;

    #[test]
    fn silence_is_a_stall_only_after_a_timeout() {
        let mut scene = Scene::skip_path();
        scene.send(0, &[("a", 1, 1)]);
        assert!(scene.check(check, 29 * SECOND).is_empty());
        assert_eq!(&*scene.check(check, 31 * SECOND)[0].rid, "a");
    }

    #[test]
    fn a_non_streaming_request_may_be_silent_for_fifty_steps() {
        let mut scene = Scene::skip_path();
        scene.send(0, &[("whole", 50, 50), ("stream", 1, 1)]);
        scene.send(SECOND, &[("stream", 1, 2)]);
        for step in 2..50 {
            scene.send(step * SECOND, &[("other", 1, step as u32)]);
        }
        let found = scene.check(check, 50 * SECOND);
        assert_eq!(found[0].weight, 1, "its next chunk is due after 50 steps");
        assert_eq!(&*found[0].rid, "stream");
        scene.send(50 * SECOND, &[("other", 1, 50)]);
        scene.send(51 * SECOND, &[("other", 1, 51)]);
        assert_eq!(scene.check(check, 52 * SECOND)[0].weight, 2);
    }

    #[test]
    fn silence_after_missed_observations_is_not_a_stall() {
        let mut scene = Scene::skip_path();
        scene.send(0, &[("a", 1, 1)]);
        scene.lose(SECOND);
        assert!(scene.check(check, 31 * SECOND).is_empty(), "its end may have been missed");
        scene.send(40 * SECOND, &[("a", 1, 3)]);
        assert_eq!(scene.check(check, 71 * SECOND).len(), 1);
    }
}
