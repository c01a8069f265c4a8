//! A consumer that is not running while frames wait for it, with the reason: stopped, frozen, blocked in a system call, or asleep.

use super::consumer::{Late, SUSPENDED, worst_of_each_line};
use super::thresholds::{BURST_FRAMES, STARVED_SHARE};
use super::{DetectContext, Verdicts, advice, io_starved};
use crate::event::AwayState;
use crate::words::percent;

/// Samples shorter than this in total do not show why a thread is away.
const SHORTEST_NS: u64 = 200_000_000;
/// Minimum share of time to report a blocked or sleeping thread. A smaller share is enough for a stopped or frozen one.
const MIN_SHARE: f64 = 0.5;

/// Reports consumers that are not running in one of these states.
pub(super) fn check(context: &DetectContext<'_>, out: &mut Verdicts, states: &[AwayState]) {
    let allowed_to_run = !states.iter().any(|state| SUSPENDED.contains(state));
    let threshold = if allowed_to_run { MIN_SHARE } else { STARVED_SHARE };
    let share = |one: &Late<'_>| {
        let excused = allowed_to_run && is_excused(context, one);
        let judged = one.spent.interval_ns >= SHORTEST_NS && !excused;
        judged.then(|| one.spent.share(one.away.sum(states)))
    };
    for (one, share) in worst_of_each_line(context, threshold, share) {
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
        one.report(context, out, summary)
            .with("away", state.as_str())
            .with_known("away_in", away_in)
            .advice(advice::away(state, place));
    }
}

/// Whether there is another explanation. A few waiting frames beside an idle thread may only be missed receives. A consumer whose I/O
/// thread lacks a CPU has nothing to wake up for.
fn is_excused(context: &DetectContext<'_>, one: &Late<'_>) -> bool {
    let io = io_starved::starved(context, one);
    one.frames < BURST_FRAMES || io.is_some_and(|(.., share)| share >= STARVED_SHARE)
}
