//! A consumer that is not running while frames wait for it, with the reason: stopped, frozen, blocked in a system call, asleep, or without
//! frames from an I/O thread.

use super::consumer::{Late, SUSPENDED, late, rounded, worst_of_each_line};
use super::thresholds::{BURST_FRAMES, STARVED_SHARE};
use super::{DetectContext, Verdicts, advice};
use crate::event::{AwayState, ThreadPart};
use crate::ledger::{Thread, TimeUse};
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
    let io = starved_io_thread(context, one);
    one.frames < BURST_FRAMES || io.is_some_and(|(.., share)| share >= STARVED_SHARE)
}

/// libzmq I/O threads without a CPU: frames wait on their way into the inbox although the consumer has time for them.
pub(super) fn io_starved(context: &DetectContext<'_>, out: &mut Verdicts) {
    for one in late(context) {
        // A consumer that never sleeps is itself the cause.
        let asleep = one.spent.blocked_ns().map(|ns| one.spent.share(ns));
        let suspended = one.spent.share(one.away.sum(&SUSPENDED));
        if asleep.is_none_or(|share| share - suspended < STARVED_SHARE) {
            continue;
        }
        let Some((thread, spent, share)) =
            starved_io_thread(context, &one).filter(|(.., share)| *share >= STARVED_SHARE)
        else {
            continue;
        };
        let id = thread.id;
        let summary = format!(
            "libzmq's I/O thread {} of the {} ({}/{}) waits for a CPU {} of the time {}, and the consumer sleeps {}",
            thread.name,
            thread.role,
            id.pid,
            id.tid,
            percent(share),
            one.meanwhile(),
            asleep.map_or_else(String::new, percent),
        );
        one.report(context, out, summary)
            .with("io_pid", id.pid)
            .with("io_tid", id.tid)
            .with("io_on_cpu", rounded(spent.share(spent.on_ns)))
            .with("io_run_wait", rounded(share))
            .advice("other threads have its CPU: do not pin the process to fewer CPUs than it has busy threads");
    }
}

/// The I/O thread at either end of the line that waits most for a CPU.
fn starved_io_thread<'a>(context: &DetectContext<'a>, one: &Late<'a>) -> Option<(&'a Thread, TimeUse, f64)> {
    let sender = &*one.group.ends.from;
    let is_endpoint = |t: &&Thread| t.id.pid == one.thread.id.pid || *t.role == *sender;
    let io = context.ledger.threads().iter().filter(|t| t.part == Some(ThreadPart::Io));
    io.filter(is_endpoint)
        .filter_map(|thread| {
            let spent = thread.between(one.from, context.now)?;
            Some((thread, spent, spent.share(spent.starved_ns()?)))
        })
        .max_by(|a, b| a.2.total_cmp(&b.2))
}
