//! A consumer that is not running while frames wait for it, with the reason: stopped, frozen, blocked in a system call, or asleep.

use super::consumer::{Late, SUSPENDED, late, worst_of_each_line};
use super::thresholds::{BURST_FRAMES, STARVED_SHARE};
use super::{DetectContext, Verdict, advice, io_starved};
use crate::event::AwayState;
use crate::words::percent;

/// Samples shorter than this in total do not show why a thread is away.
const SHORTEST_NS: u64 = 200_000_000;
/// Minimum share of time to report a blocked or sleeping thread. A smaller share is enough for a stopped or frozen one.
const MIN_SHARE: f64 = 0.5;

pub(super) fn stopped(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    check(context, found, &[AwayState::Stopped, AwayState::Traced]);
}

pub(super) fn frozen(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    check(context, found, &[AwayState::Frozen]);
}

pub(super) fn blocked(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    check(context, found, &[AwayState::Blocked]);
}

pub(super) fn asleep(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    check(context, found, &[AwayState::Polling, AwayState::Asleep]);
}

/// Reports consumers that are not running in one of these states.
fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>, states: &[AwayState]) {
    let allowed_to_run = !states.iter().any(|state| SUSPENDED.contains(state));
    let threshold = if allowed_to_run { MIN_SHARE } else { STARVED_SHARE };
    let share = |one: &Late<'_>| {
        let excused = allowed_to_run && is_excused(context, one);
        let judged = one.spent.interval_ns >= SHORTEST_NS && !excused;
        judged.then(|| one.spent.share(one.away.sum(states)))
    };
    for (one, share) in worst_of_each_line(late(context), threshold, share) {
        found.push(verdict(context, &one, states, share));
    }
}

fn verdict(context: &DetectContext<'_>, one: &Late<'_>, states: &[AwayState], share: f64) -> Verdict {
    let longest = states.iter().copied().max_by_key(|state| one.away.of(*state));
    let state = longest.unwrap_or(states[0]);
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
    let summary = format!("{} {does} {} of the time {}", one.describe_thread(), percent(share), one.meanwhile());
    let away_in = (!place.is_empty()).then_some(place);
    let verdict = one.verdict(context, summary).with("away", state.as_str()).with_known("away_in", away_in);
    verdict.advice(advice::away(state, place))
}

/// Whether there is another explanation. A few waiting frames beside an idle thread may only be missed receives. A consumer whose I/O
/// thread lacks a CPU has nothing to wake up for.
fn is_excused(context: &DetectContext<'_>, one: &Late<'_>) -> bool {
    let io = io_starved::starved(context, one);
    one.frames < BURST_FRAMES || io.is_some_and(|(.., share)| share >= STARVED_SHARE)
}

#[cfg(test)]
mod tests {
    use super::super::scene::{MS, SECOND, Scene};
    use super::super::{Check, consumer_starved};
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

    /// Verdicts of the four states, with their kinds.
    fn found(scene: &Scene) -> Vec<(&'static str, Verdict)> {
        let states: [(_, Check); 4] =
            [("stopped", stopped), ("frozen", frozen), ("blocked", blocked), ("asleep", asleep)];
        let of = |(kind, check)| scene.check(check, 4 * SECOND).into_iter().map(move |v| (kind, v));
        states.into_iter().flat_map(of).collect()
    }

    #[test]
    fn each_off_cpu_state_has_its_own_finding_and_fix() {
        use AwayState::{Blocked, Frozen, Polling, Stopped, Traced};
        for (state, place, kind, does, fix) in [
            (Stopped, "", "stopped", "stopped by a signal", "kill -CONT"),
            (Traced, "", "stopped", "stopped by a debugger", "detach"),
            (Frozen, "", "frozen", "frozen cgroup", "cgroup.freeze"),
            (Blocked, "fsync", "blocked", "blocked in fsync", "disk"),
            (Polling, "epoll_wait", "asleep", "(epoll_wait)", "py-spy dump"),
        ] {
            let found = found(&late_with(39, [1, 1, 0], state, place));
            let [(found_kind, verdict)] = &*found else {
                panic!("{state:?}: {found:?}");
            };
            assert_eq!(*found_kind, kind, "{state:?}");
            assert!(verdict.summary.contains(does), "{}", verdict.summary);
            let advice = verdict.advice.as_deref().unwrap();
            assert!(advice.contains(fix), "{advice}");
            assert_eq!(verdict.evidence["away"], state.as_str());
        }
    }

    #[test]
    fn a_stopped_thread_is_not_reported_as_starved() {
        let scene = late_with(39, [20, 30, 0], AwayState::Stopped, "");
        assert!(scene.check(consumer_starved::check, 4 * SECOND).is_empty());
        let scene = late_with(39, [20, 60, 0], AwayState::Polling, "epoll_wait");
        assert_eq!(scene.check(consumer_starved::check, 4 * SECOND).len(), 1);
        assert!(found(&scene).is_empty());
    }

    #[test]
    fn an_idle_thread_is_not_blamed_for_a_frame_with_an_unobserved_receive() {
        for (state, place) in [(AwayState::Polling, "epoll_wait"), (AwayState::Blocked, "futex")] {
            assert!(found(&late_with(1, [1, 0, 0], state, place)).is_empty());
        }
        let stopped = found(&late_with(1, [1, 0, 0], AwayState::Stopped, ""));
        assert_eq!(stopped[0].0, "stopped", "a stopped thread is always reported");
    }
}
