//! Advice for a bottleneck: one text for each role and cause.

use super::DetectContext;
use super::attribution::{Attribution, BOTTLENECK_SHARE, Leg, LegKind, ThreadState, count_receivers};
use super::thresholds::CPU_BOUND_SHARE;
use crate::engine::{Drops, EngineState, Facts, Mode, Waiter};
use crate::event::AwayState;
use crate::ledger::Hop;
use crate::words::percent;

/// A process that is busy for less than this share of the run has time to spare: only stalls can have put it behind.
const SPARE_TIME_SHARE: f64 = 0.5;

/// Processes that share some work: all receivers of a hop, or of the hops to one role.
#[derive(Clone, Copy)]
pub(super) struct Receivers<'a> {
    pub(super) role: &'a str,
    /// How many were observed.
    pub(super) count: usize,
}

impl<'a> Receivers<'a> {
    /// Counts the receivers of the hops with this group name. They are processes of this role.
    pub(super) fn of_group(context: &DetectContext<'a>, hop_group_name: &str, role: &'a str) -> Self {
        let ledger = context.ledger;
        let hops: Vec<&Hop> =
            ledger.hops().iter().filter(|hop| ledger.groups()[hop.group].name == hop_group_name).collect();
        Self { role, count: count_receivers(&hops) }
    }
}

/// Returns the engine's advice how to relieve processes with too much work; empty if it has none. If several processes share the work
/// already, the advice begins with their number.
fn relief_advice(engine: &dyn Facts, receivers: Receivers<'_>) -> String {
    let Receivers { role, count } = receivers;
    let runs_several = count > 1;
    let relief = engine.advice_for_busy_role(role, runs_several);
    if relief.is_empty() || !runs_several {
        return relief.to_owned();
    }
    format!("{count} of them run already; {relief}")
}

/// Advice for a thread that was on a CPU nearly all the time.
pub(super) fn cpu_bound_advice(engine: &dyn Facts, receivers: Receivers<'_>) -> String {
    with_relief("it is CPU-bound, not I/O-bound", engine, receivers)
}

/// Advice for a CPU-bound process that spends most of its work writing HTTP responses.
pub(super) fn own_writes_advice(engine: &dyn Facts, receivers: Receivers<'_>) -> String {
    let work = cpu_bound_advice(engine, receivers);
    format!("it spends most of its time writing HTTP responses, one write per chunk; {work}")
}

/// The state of processes with too much work, and how to relieve them if that is known.
pub(super) fn with_relief(state: &str, engine: &dyn Facts, receivers: Receivers<'_>) -> String {
    let relief = relief_advice(engine, receivers);
    if relief.is_empty() { state.to_owned() } else { format!("{state}: {relief}") }
}

/// For a thread that is waiting for a CPU.
pub(super) const STARVED: &str =
    "other threads use its CPU: give the engine's host processes dedicated CPUs, or run fewer threads beside them";

/// For a thread throttled by the CPU quota of its cgroup.
pub(super) const THROTTLED: &str =
    "raise or remove the container's CPU limit (resources.limits.cpu; cpu.max of its cgroup)";

/// System call for [`not_running_advice`] about states whose advice does not depend on it.
pub(super) const ANY_SYSTEM_CALL: &str = "";

/// Advice for a thread that is not running, by its state. For a blocked thread, the advice depends on the system call that blocks it. In
/// other states, `system_call` is ignored.
pub(super) fn not_running_advice(state: AwayState, system_call: &str) -> &'static str {
    match state {
        AwayState::Stopped => "a signal (SIGSTOP, SIGTSTP) stopped the process: `kill -CONT PID` resumes it",
        AwayState::Traced => {
            "a debugger holds the process (ptrace): detach gdb or strace; run py-spy with --nonblocking"
        }
        AwayState::Frozen => {
            "unfreeze the cgroup: `docker unpause`, or write 0 to its cgroup.freeze (THAWED to freezer.state in version 1)"
        }
        AwayState::Blocked => match system_call {
            "futex" => {
                "it waits for a lock that another thread holds (the GIL, a mutex): `py-spy dump --native` shows both threads"
            }
            "write" | "writev" | "sendto" | "sendmsg" | "sendmmsg" | "sendfile" => {
                "its output is read slowly or not at all (a client, a log pipe, a disk): `py-spy dump --native` shows the write"
            }
            "fsync" | "fdatasync" | "openat" | "open" | "pread64" | "pwrite64" | "statx" | "getdents64" => {
                "it waits for a disk or a network file system: move file I/O off this thread; `py-spy dump --native` shows the caller"
            }
            "nanosleep" | "clock_nanosleep" => "its own code sleeps on the receiving thread: `py-spy dump` shows where",
            _ => "a blocking call holds up the receiving thread: `py-spy dump --native` shows where",
        },
        // These states are only recorded while frames wait for the thread.
        AwayState::Polling | AwayState::Asleep => {
            "it waits for something other than its socket: `py-spy dump` shows whether the receiving task has ended or awaits something"
        }
    }
}

/// Advice for frames that wait on a hop.
pub(super) fn hop_advice(engine: &dyn Facts, attribution: &Attribution<'_>, hop: &str) -> String {
    hop_advice_by_state(engine, attribution, hop, None)
}

/// Advice for frames that wait on a hop (a connection between two processes). It depends on the state of the hop's receiving thread. The
/// attribution has this state if the thread is sampled. Otherwise `observed` is used, which the caller found in another way.
pub(super) fn hop_advice_by_state(
    engine: &dyn Facts,
    attribution: &Attribution<'_>,
    hop_name: &str,
    observed: Option<ThreadState>,
) -> String {
    // A leg is a part of the tokens' path. This one is the wait on the hop.
    let leg = attribution.legs.iter().find(|leg| leg.kind == LegKind::Wait && leg.name == hop_name);
    let Some(leg) = leg else { return String::from("the receiver of this hop is slower than its senders") };
    if leg.thread == ThreadState::Unknown
        && let Some(observed_state) = observed
    {
        return leg_advice(engine, &Leg { thread: observed_state, ..leg.clone() });
    }
    leg_advice(engine, leg)
}

/// Advice for first tokens that wait. `bottleneck` is the leg (a hop or a process on the tokens' path) with at least half of the wait, if
/// there is one.
pub(super) fn first_token_advice(engine: &dyn Facts, bottleneck: Option<&Leg<'_>>) -> String {
    const SPREAD: &str = "no single hop or process has half of the wait: the report lists the share of each leg";
    /// Without a role, the engine gives advice that holds for processes of every role.
    const ANY_ROLE: &str = "";
    if let Some(leg) = bottleneck {
        return leg_advice(engine, leg);
    }
    // The number of processes has no meaning without a role.
    let runs_several = false;
    let relief = engine.advice_for_busy_role(ANY_ROLE, runs_several);
    if relief.is_empty() {
        return SPREAD.to_owned();
    }
    format!("{SPREAD}; {relief} for all of them")
}

/// Advice for first tokens that wait according to the engine's log, which does not show where.
pub(super) fn logged_first_token_advice(engine: &dyn Facts) -> String {
    const ATTACH: &str = "`tokengap attach` on the running server shows what holds them up";
    // The log does not show how many of them run.
    let runs_several = false;
    let relief = engine.advice_for_busy_role(engine.receiver(), runs_several);
    if relief.is_empty() {
        return ATTACH.to_owned();
    }
    format!("{ATTACH}; if the {} is CPU-bound, {relief}", engine.receiver())
}

/// Advice for chunks that their receiver merged into the delivery of a later chunk. It depends on the share of the run for which the
/// receiver was busy. The attribution has that share: it divides the tokens' time among the legs (parts) of their path.
pub(super) fn merging_advice(engine: &dyn Facts, attribution: &Attribution<'_>) -> String {
    let receiver = engine.receiver();
    let wakeup = format!("the {receiver}'s event loop receives several frames in one wakeup");
    let leg = attribution.legs.iter().find(|leg| leg.role == receiver);
    let receivers = Receivers { role: receiver, count: leg.map_or(0, |leg| leg.receivers) };
    // The share is `None` if the receiver's work is not observed.
    let Some(busy) = leg.and_then(|leg| leg.busy) else {
        return with_relief(&format!("{wakeup}: look at its CPU use"), engine, receivers);
    };
    let busy_percent = percent(busy);
    if busy < SPARE_TIME_SHARE {
        // It has time to spare, so only stalls can have put it behind.
        format!(
            "{wakeup}, although it is busy only {busy_percent} of the run: stalls hold it up, such as garbage collection, a blocking call or a wait for a CPU; `tokengap attach --python-stacks 50` lists what it runs while frames wait"
        )
    } else if busy < CPU_BOUND_SHARE {
        format!(
            "{wakeup} and is busy {busy_percent} of the run: it stalls or, at times, cannot keep up; `tokengap attach --python-stacks 50` lists what it runs while frames wait"
        )
    } else {
        // Its own work alone explains the queue.
        with_relief(&format!("{wakeup} and is busy {busy_percent} of the run"), engine, receivers)
    }
}

/// Advice for chunks dropped by a waiter, the engine's code that takes the queued chunks of one request.
pub(super) fn dropped_chunks_advice(engine: &EngineState) -> String {
    // No release of this engine is known to drop chunks of incremental output.
    let Some(drops) = engine.facts().drops() else {
        return String::from("cumulative output loses none: each chunk replaces the one before");
    };
    // The flag that selects incremental mode in this release. If the release is unknown, the flag of the releases that drop chunks.
    let flag = engine.behaviour().incremental_output_flag().unwrap_or(drops.flag);
    let cause = match engine.waiter {
        Some(Waiter::KeepsLast) => format!(" ({} keeps only the last)", engine.title()),
        _ => String::new(),
    };
    format!(
        "fixed in {}, which merges queued chunks{cause}; until then run without {flag}",
        name_fixed_releases(engine, &drops)
    )
}

/// Advice for text that arrived at the server and is in no event of its response.
pub(super) fn lost_text_advice(engine: &EngineState) -> String {
    // Releases that cut text do so in incremental mode only.
    let may_cut_text = engine.mode != Some(Mode::Cumulative);
    if may_cut_text
        && let Some(version) = engine.version.as_deref()
        && let Some(cut) = engine.facts().text_loss_of_release(version)
    {
        return format!(
            "the OpenAI endpoints of this release cut the text: fixed in {}; until then run without {}",
            cut.fixed_in, cut.flag
        );
    }
    String::from(
        "the text of these tokens reached the server, but no event carries it: check its middleware and serving code",
    )
}

/// Advice for tokens whose ids no event of an `OpenAI` response lists.
pub(super) fn unlisted_ids_advice(engine: &EngineState) -> String {
    // Empty for engines whose events list no ids.
    let engine_advice = engine.facts_for_listed_ids().unlisted_ids();
    if engine_advice.is_empty() {
        return String::from(
            "the events list fewer ids than the usage counts: the server's serving code or a parser left them out; compare with the text of the response",
        );
    }
    engine_advice.to_owned()
}

/// Advice for an engine in cumulative mode whose release would drop chunks in incremental mode.
pub(super) fn would_drop_advice(engine: &EngineState) -> String {
    // Without a release that is known to drop chunks, there is none that is known to be fixed.
    let Some(drops) = engine.facts().drops() else {
        return String::from("keep the cumulative mode in this release");
    };
    // The flag that selects incremental mode.
    let flag = engine.behaviour().incremental_output_flag().unwrap_or(drops.flag);
    format!("do not set {flag} before {}, which merges queued chunks", name_fixed_releases(engine, &drops))
}

/// Names the first release that drops no chunks. If that release still cuts text, also names the first one that does not.
fn name_fixed_releases(engine: &EngineState, drops: &Drops) -> String {
    match engine.facts().text_loss_of_release(drops.fixed_in) {
        Some(cut) => format!("{} ({} for the OpenAI endpoints)", drops.fixed_in, cut.fixed_in),
        None => drops.fixed_in.to_owned(),
    }
}

/// Advice for a leg of the path that takes long, by the state of its receiving thread.
fn leg_advice(engine: &dyn Facts, leg: &Leg<'_>) -> String {
    let worker = leg.worker.as_deref().map_or(String::new(), |worker| format!(" ({worker})"));
    let subject = format!("the {}{worker}", leg.role);
    let receivers = Receivers { role: leg.role, count: leg.receivers };
    if leg.kind != LegKind::Wait {
        // No frame waits there, so the state of a receiving thread says nothing.
        return with_relief(&format!("the time is spent inside {subject}"), engine, receivers);
    }
    match leg.thread {
        ThreadState::CpuBound => {
            format!("{subject} is on a CPU while frames wait; {}", cpu_bound_advice(engine, receivers))
        }
        ThreadState::Busy => with_relief(
            &format!("{subject} processes frames nearly all the time, and its use of a CPU is not observed"),
            engine,
            receivers,
        ),
        ThreadState::PartlyRunning if leg.spent.share(leg.spent.on_ns) >= BOTTLENECK_SHARE => {
            let running = leg.describe_running_share();
            with_relief(
                &format!("while frames wait, {subject} {running}: most of it is its own work"),
                engine,
                receivers,
            )
        }
        ThreadState::PartlyRunning => {
            format!("while frames wait, {subject} {}: no single cause has most of it", leg.describe_running_share())
        }
        ThreadState::Starved => format!("{subject} is waiting for a CPU while frames wait; {STARVED}"),
        ThreadState::Throttled => format!("{subject} is throttled by its CPU quota while frames wait; {THROTTLED}"),
        ThreadState::Stopped => {
            format!("{subject} is stopped while frames wait: resume it with `kill -CONT PID`, or detach the debugger")
        }
        ThreadState::Frozen => {
            format!("{subject} is frozen while frames wait; {}", not_running_advice(AwayState::Frozen, ANY_SYSTEM_CALL))
        }
        ThreadState::Blocked => format!(
            "{subject} is blocked in a system call while frames wait: the finding consumer-blocked names the call; `py-spy dump --native` shows the caller"
        ),
        ThreadState::Asleep => format!(
            "{subject} sleeps while frames wait: if there is a finding io-thread-starved, frames do not reach it; otherwise {}",
            not_running_advice(AwayState::Polling, ANY_SYSTEM_CALL)
        ),
        ThreadState::Waiting => {
            format!(
                "{subject} neither runs nor is waiting for a CPU while frames wait: `py-spy dump` shows the cause (a lock, I/O)"
            )
        }
        ThreadState::Unknown => format!(
            "the cause is unknown because the thread of {subject} is not sampled: use `tokengap attach` with the capabilities that `tokengap doctor` lists"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::attribution::LegTime;
    use super::*;
    use crate::engine::example;
    use crate::ledger::TimeUse;
    use crate::stats::Distribution;

    #[test]
    fn advice_names_the_processes_that_run_already_and_a_cpu_only_if_it_was_observed() {
        let spread = Distribution::default();
        let advice = |kind, thread, receivers| {
            let leg = Leg {
                name: "router->detokenizer",
                role: "detokenizer",
                kind,
                spread: &spread,
                chunk: [LegTime::default(); 2],
                first_token: [LegTime::default(); 2],
                long_gaps: crate::stats::LongDurations::default(),
                busy: Some(0.92),
                thread,
                receivers,
                spent: TimeUse { interval_ns: 100, on_ns: 75, wait_ns: Some(20), ..TimeUse::default() },
                worker: None,
            };
            leg_advice(example::ENGINES.0[0], &leg)
        };
        assert_eq!(
            advice(LegKind::Wait, ThreadState::Busy, 4),
            "the detokenizer processes frames nearly all the time, and its use of a CPU is not observed: 4 of them run already; \
             --workers spreads it"
        );
        assert_eq!(
            advice(LegKind::Inside, ThreadState::Unknown, 1),
            "the time is spent inside the detokenizer: --workers spreads it"
        );
        assert_eq!(
            advice(LegKind::Wait, ThreadState::CpuBound, 1),
            "the detokenizer is on a CPU while frames wait; it is CPU-bound, not I/O-bound: --workers spreads it"
        );
        assert_eq!(
            advice(LegKind::Wait, ThreadState::PartlyRunning, 1),
            "while frames wait, the detokenizer runs 75 % of that time and waits for a CPU 20 %: most of it is its own work: --workers \
             spreads it"
        );
    }
}
