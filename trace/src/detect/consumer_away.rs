//! A consumer that is not running while frames wait for it, with the reason: stopped, frozen, blocked in a system call, asleep, or without
//! frames from an I/O thread.

use super::consumer::{
    JudgedConsumer, LateConsumer, SUSPENDED, late_consumers, round_share, worst_consumer_of_each_group,
};
use super::thresholds::{BURST_FRAMES, STARVED_SHARE};
use super::{DetectContext, Verdicts, advice};
use crate::event::{AwayState, ThreadPart};
use crate::ledger::{Thread, TimeUse};
use crate::words::percent;

/// Samples shorter than this in total do not show why a thread is away.
const MIN_SAMPLED_NS: u64 = 200_000_000;
/// Minimum share of time to report a blocked or sleeping thread. A smaller share is enough for a stopped or frozen one.
pub(super) const MIN_SHARE: f64 = 0.5;

/// Reports consumers (threads that receive frames) that are off the CPU in one of these states while frames wait for them. `states` is not
/// empty.
pub(super) fn detect_consumer_away(context: &DetectContext<'_>, verdicts: &mut Verdicts, states: &[AwayState]) {
    // A suspended thread cannot run, even if it has work.
    let is_suspended = states.iter().any(|state| SUSPENDED.contains(state));
    // A thread without work sleeps for much of its time, so only a large share of sleep is reported. Suspension has no such excuse.
    let min_share = if is_suspended { STARVED_SHARE } else { MIN_SHARE };
    let judged_share = |late: &LateConsumer<'_>| {
        // Sleep may have a cause outside the thread. Suspension is the cause itself.
        let is_cause = is_suspended || may_be_away_by_itself(context, late);
        if is_cause { share_away(late, states) } else { None }
    };
    for JudgedConsumer { consumer, share } in worst_consumer_of_each_group(context, min_share, judged_share) {
        // Names the state in which the consumer was for longest.
        let longest = states.iter().copied().max_by_key(|state| consumer.away.time_in(*state));
        let state = longest.unwrap_or(states[0]);
        // Empty if the call is unknown.
        let system_call = consumer.thread.longest_sleep_place(state, consumer.from, context.now);
        let summary = format!(
            "{} {} {} of the time {}",
            consumer.describe_thread(),
            describe_away_state(state, system_call),
            percent(share),
            consumer.describe_waiting_frames()
        );
        let away_in = (!system_call.is_empty()).then_some(system_call);
        consumer
            .add_verdict(context, verdicts, summary)
            .with("away", state.as_str())
            .with_known("away_in", away_in)
            .advice(advice::not_running_advice(state, system_call));
    }
}

/// Whether something else explains the waiting frames. A few waiting frames beside an idle thread may only be missed receives. A consumer
/// whose I/O thread is waiting for a CPU has nothing to wake up for.
fn has_other_explanation(context: &DetectContext<'_>, one: &LateConsumer<'_>) -> bool {
    let io_thread = most_starved_io_thread(context, one);
    one.frames < u64::from(BURST_FRAMES) || io_thread.is_some_and(|io| io.starved_share >= STARVED_SHARE)
}

/// Whether the lateness of a consumer that may run may be due to its sleep. Not if something else explains it, nor for the scheduler, which
/// receives requests: while it computes a step, it is in system calls of its device.
fn may_be_away_by_itself(context: &DetectContext<'_>, late: &LateConsumer<'_>) -> bool {
    let is_scheduler = late.group.carries_requests;
    !is_scheduler && !has_other_explanation(context, late)
}

/// Share of the time that a consumer was in any of these states; `None` with too few samples.
fn share_away(late: &LateConsumer<'_>, states: &[AwayState]) -> Option<f64> {
    let has_enough_samples = late.spent.interval_ns >= MIN_SAMPLED_NS;
    has_enough_samples.then(|| late.spent.share(late.away.time_in_any(states)))
}

/// Describes what a thread did in this state: `was blocked in futex`. `system_call` is empty if it is unknown.
pub(super) fn describe_away_state(state: AwayState, system_call: &str) -> String {
    match state {
        AwayState::Stopped => String::from("was stopped by a signal"),
        AwayState::Traced => String::from("was stopped by a debugger"),
        AwayState::Frozen => String::from("was in a frozen cgroup"),
        AwayState::Blocked => format!("was blocked in {system_call}"),
        AwayState::Polling => format!("slept in its poll ({system_call})"),
        AwayState::Asleep if system_call.is_empty() => String::from("slept"),
        AwayState::Asleep => format!("slept in the kernel ({system_call})"),
    }
}

/// Reports I/O threads of libzmq that wait for a CPU. Such a thread moves frames from the socket to the inbox of the consumer, which is the
/// thread that receives them. While the I/O thread waits, so do the frames, although the consumer has time for them.
pub(super) fn detect_starved_io_thread(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    // A scheduler, which receives requests, also sleeps in calls of its device while it computes, so its sleep shows nothing.
    for consumer in late_consumers(context).into_iter().filter(|consumer| !consumer.group.carries_requests) {
        // A consumer that hardly slept is itself the cause.
        let Some(off_cpu) = off_cpu_share_if_mostly_asleep(&consumer) else { continue };
        let io_thread = most_starved_io_thread(context, &consumer).filter(|io| io.starved_share >= STARVED_SHARE);
        let Some(StarvedIoThread { thread, spent, starved_share: share }) = io_thread else { continue };
        let id = thread.id;
        let summary = format!(
            "libzmq's I/O thread {} of the {} ({}/{}) was waiting for a CPU {} of the time {}, and the consumer slept {}",
            thread.name,
            thread.role,
            id.pid,
            id.tid,
            percent(share),
            consumer.describe_waiting_frames(),
            percent(off_cpu),
        );
        consumer
            .add_verdict(context, verdicts, summary)
            .with("io_pid", id.pid)
            .with("io_tid", id.tid)
            .with("io_on_cpu", round_share(spent.share(spent.on_ns)))
            .with("io_run_wait", round_share(share))
            .advice("other threads have its CPU: do not pin the process to fewer CPUs than it has busy threads");
    }
}

/// Share of the time that a consumer was off the CPU without waiting for one. `None` if it hardly slept, because it is then itself the
/// cause. Also `None` if its waits for a CPU are not sampled.
fn off_cpu_share_if_mostly_asleep(consumer: &LateConsumer<'_>) -> Option<f64> {
    let off_cpu = consumer.spent.share(consumer.spent.blocked_ns()?);
    // Time stopped or frozen is time off the CPU, but no sleep.
    let suspended = consumer.spent.share(consumer.away.time_in_any(&SUSPENDED));
    let hardly_slept = off_cpu - suspended < STARVED_SHARE;
    if hardly_slept { None } else { Some(off_cpu) }
}

/// Finds the I/O thread that waits most for a CPU among those of the consumer's process and of the processes that send to it. `None` if
/// none is sampled.
fn most_starved_io_thread<'a>(context: &DetectContext<'a>, late: &LateConsumer<'a>) -> Option<StarvedIoThread<'a>> {
    let sender_role = &*late.group.ends.from;
    let mut sampled_threads: Vec<StarvedIoThread<'a>> = Vec::new();
    for thread in context.ledger.threads().iter().filter(|thread| thread.part == Some(ThreadPart::Io)) {
        let may_move_its_frames = thread.id.pid == late.thread.id.pid || *thread.role == *sender_role;
        if !may_move_its_frames {
            continue;
        }
        // `late.from` is when the judged interval begins, which is when the oldest waiting frame was sent.
        let Some(spent) = thread.use_between(late.from, context.now) else { continue };
        let Some(starved_ns) = spent.starved_ns() else { continue };
        sampled_threads.push(StarvedIoThread { thread, spent, starved_share: spent.share(starved_ns) });
    }
    sampled_threads.into_iter().max_by(|a, b| a.starved_share.total_cmp(&b.starved_share))
}

/// An I/O thread of libzmq, and the share of its time waiting for a CPU.
struct StarvedIoThread<'a> {
    thread: &'a Thread,
    spent: TimeUse,
    starved_share: f64,
}
