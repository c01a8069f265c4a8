//! Requests that began and then stopped producing.

use super::{Detector, Look, Severity, Verdict};
use crate::ledger::Request;
use crate::words::{duration, plural};

pub(super) struct StalledStream;

impl Detector for StalledStream {
    fn kind(&self) -> &'static str {
        "stalled-stream"
    }

    fn comes_and_goes(&self) -> bool {
        true
    }

    fn check(&self, look: &Look<'_>, found: &mut Vec<Verdict>) {
        let (mut stalled, mut retracted, mut worst_ns, mut worst_rid) = (0, 0, 0, "");
        // Requests known only from the engine's log have no observed tokens. A request with missed observations since its last chunk may
        // have continued unseen.
        let heard = |r: &&Request| !r.streams().is_empty() && look.ledger.heard_all_since(r);
        let seen = |r: &&Request| r.finish().is_none() && heard(r);
        for request in look.ledger.requests().filter(seen) {
            let silent = look.now.since(request.last_at());
            if silent < look.thresholds.stalled_ns {
                continue;
            }
            stalled += 1;
            retracted += u64::from(request.retractions() > 0);
            if silent > worst_ns {
                (worst_ns, worst_rid) = (silent, request.rid());
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
                .advice("the scheduler has retracted them, or they ended where this point cannot see it"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::scene::{SECOND, Scene};
    use super::*;

    #[test]
    fn silence_is_a_stall_only_after_a_while() {
        let mut scene = Scene::skip_path();
        scene.send(0, &[("a", 1, 1)]);
        assert!(scene.check(&StalledStream, 29 * SECOND).is_empty());
        assert_eq!(&*scene.check(&StalledStream, 31 * SECOND)[0].rid, "a");
    }

    #[test]
    fn silence_behind_a_loss_of_ours_is_none() {
        let mut scene = Scene::skip_path();
        scene.send(0, &[("a", 1, 1)]);
        scene.lose(SECOND);
        assert!(
            scene.check(&StalledStream, 31 * SECOND).is_empty(),
            "its end may be what was lost"
        );
        scene.send(40 * SECOND, &[("a", 1, 3)]);
        assert_eq!(scene.check(&StalledStream, 71 * SECOND).len(), 1);
    }
}
