//! A consumer that is not running while frames wait for it, with the reason: stopped, frozen, blocked in a system call, or asleep.

use super::consumer::{Late, SUSPENDED, late, worst_of_each_line};
use super::{DetectContext, Detector, Verdict, advice, io_starved};
use crate::event::AwayState;
use crate::words::percent;

/// Samples shorter than this in total do not show why a thread is away.
const SHORTEST_NS: u64 = 200_000_000;
/// Minimum share of time to report a blocked or sleeping thread. A smaller share is enough for a stopped or frozen one.
const MIN_SHARE: f64 = 0.5;

/// One reason for not running.
pub(super) struct ConsumerAway {
    kind: &'static str,
    states: &'static [AwayState],
}

pub(super) const STOPPED: ConsumerAway = ConsumerAway {
    kind: "consumer-stopped",
    states: &[AwayState::Stopped, AwayState::Traced],
};
pub(super) const FROZEN: ConsumerAway = ConsumerAway {
    kind: "consumer-frozen",
    states: &[AwayState::Frozen],
};
pub(super) const BLOCKED: ConsumerAway = ConsumerAway {
    kind: "consumer-blocked",
    states: &[AwayState::Blocked],
};
pub(super) const ASLEEP: ConsumerAway = ConsumerAway {
    kind: "consumer-asleep",
    states: &[AwayState::Polling, AwayState::Asleep],
};

impl Detector for ConsumerAway {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn is_intermittent(&self) -> bool {
        true
    }

    fn check(&self, context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
        let threshold = if self.is_allowed_to_run() {
            MIN_SHARE
        } else {
            context.thresholds.starved_share
        };
        let share = |one: &Late<'_>| {
            let excused = self.is_allowed_to_run() && is_excused(context, one);
            let judged = one.spent.interval_ns >= SHORTEST_NS && !excused;
            judged.then(|| one.spent.share(one.away.sum(self.states)))
        };
        for (one, share) in worst_of_each_line(late(context), threshold, share) {
            found.push(self.verdict(context, &one, share));
        }
    }
}

impl ConsumerAway {
    fn is_allowed_to_run(&self) -> bool {
        !self.states.iter().any(|state| SUSPENDED.contains(state))
    }

    fn verdict(&self, context: &DetectContext<'_>, one: &Late<'_>, share: f64) -> Verdict {
        let longest = self.states.iter().copied().max_by_key(|state| one.away.of(*state));
        let state = longest.unwrap_or(self.states[0]);
        let place = one.thread.away_in(state, one.from, context.now);
        let does = match state {
            AwayState::Stopped => String::from("is stopped by a signal"),
            AwayState::Traced => String::from("is stopped by a debugger"),
            AwayState::Frozen => String::from("is in a frozen cgroup"),
            AwayState::Blocked => format!("is blocked in {place}"),
            AwayState::Polling => format!("sleeps in its poll ({place})"),
            AwayState::Asleep if place.is_empty() => String::from("sleeps"),
            AwayState::Asleep => format!("sleeps in the kernel ({place})"),
        };
        let summary = format!(
            "{} {does} {} of the time {}",
            one.describe_thread(),
            percent(share),
            one.meanwhile()
        );
        let verdict = one
            .verdict(context, summary)
            .with("away", state.as_str())
            .advice(advice::away(state, place));
        if place.is_empty() {
            verdict
        } else {
            verdict.with("away_in", place)
        }
    }
}

/// Whether there is another explanation. A few waiting frames beside an idle thread may only be missed receives. A consumer whose I/O
/// thread lacks a CPU has nothing to wake up for.
fn is_excused(context: &DetectContext<'_>, one: &Late<'_>) -> bool {
    let io = io_starved::starved(context, one);
    one.frames < context.thresholds.burst_frames
        || io.is_some_and(|(.., share)| share >= context.thresholds.starved_share)
}

#[cfg(test)]
mod tests {
    use super::super::consumer_starved::ConsumerStarved;
    use super::super::scene::{MS, SECOND, Scene};
    use super::*;

    /// Scene in which a tokenizer thread is late for four seconds, with these CPU shares, this state and `frames` waiting frames.
    fn late_with(frames: u64, shares: [u64; 3], state: AwayState, place: &'static str) -> Scene {
        let mut scene = Scene::skip_path();
        scene.send(0, &[]);
        scene.receive_by(MS, 0, 7);
        for n in 1..40 {
            if n <= frames {
                scene.send(n * 100 * MS, &[]);
            }
            scene.away(n * 100 * MS, 7, shares, (state, place));
        }
        scene
    }

    fn kinds(scene: &Scene) -> Vec<&'static str> {
        let all = [&STOPPED, &FROZEN, &BLOCKED, &ASLEEP];
        let found = |one: &&&ConsumerAway| !scene.check(**one, 4 * SECOND).is_empty();
        all.iter().filter(found).map(|one| one.kind).collect()
    }

    #[test]
    fn each_off_cpu_state_has_its_own_finding_and_fix() {
        for (state, place, kind, does, fix) in [
            (
                AwayState::Stopped,
                "",
                "consumer-stopped",
                "stopped by a signal",
                "kill -CONT",
            ),
            (
                AwayState::Traced,
                "",
                "consumer-stopped",
                "stopped by a debugger",
                "detach",
            ),
            (
                AwayState::Frozen,
                "",
                "consumer-frozen",
                "frozen cgroup",
                "cgroup.freeze",
            ),
            (
                AwayState::Blocked,
                "fsync",
                "consumer-blocked",
                "blocked in fsync",
                "disk",
            ),
            (
                AwayState::Polling,
                "epoll_wait",
                "consumer-asleep",
                "(epoll_wait)",
                "py-spy dump",
            ),
        ] {
            let scene = late_with(39, [1, 1, 0], state, place);
            assert_eq!(kinds(&scene), [kind], "{state:?}");
            let detector = [&STOPPED, &FROZEN, &BLOCKED, &ASLEEP]
                .into_iter()
                .find(|d| d.kind == kind);
            let found = scene.check(detector.unwrap(), 4 * SECOND);
            assert!(found[0].summary.contains(does), "{}", found[0].summary);
            assert!(
                found[0].advice.as_deref().unwrap().contains(fix),
                "{:?}",
                found[0].advice
            );
            assert_eq!(found[0].evidence["away"], state.as_str());
        }
    }

    #[test]
    fn a_stopped_thread_is_not_reported_as_starved() {
        let scene = late_with(39, [20, 30, 0], AwayState::Stopped, "");
        assert!(scene.check(&ConsumerStarved, 4 * SECOND).is_empty());
        let scene = late_with(39, [20, 60, 0], AwayState::Polling, "epoll_wait");
        assert_eq!(scene.check(&ConsumerStarved, 4 * SECOND).len(), 1);
        assert_eq!(kinds(&scene), [""; 0]);
    }

    #[test]
    fn an_idle_thread_is_not_blamed_for_a_frame_with_an_unobserved_receive() {
        for (state, place) in [(AwayState::Polling, "epoll_wait"), (AwayState::Blocked, "futex")] {
            assert_eq!(kinds(&late_with(1, [1, 0, 0], state, place)), [""; 0]);
        }
        let stopped = late_with(1, [1, 0, 0], AwayState::Stopped, "");
        assert_eq!(
            kinds(&stopped),
            ["consumer-stopped"],
            "a stopped thread is always reported"
        );
    }
}
