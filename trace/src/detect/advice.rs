//! Advice for a bottleneck: one text for each role and cause.

use super::attribution::{Attribution, Leg, LegKind, ThreadState};
use crate::event::AwayState;

/// For a CPU-bound thread.
pub(super) fn own_work(role: &str) -> &'static str {
    match role {
        "tokenizer" => {
            "its own work is the limit, not the sockets: --tokenizer-worker-num spreads it over processes, a larger \
             --stream-interval makes fewer and larger chunks"
        }
        "worker" => {
            "its own work is the limit, not the sockets: a higher --tokenizer-worker-num spreads it, a larger \
             --stream-interval makes fewer and larger chunks"
        }
        "detokenizer" => {
            "its own work is the limit, not the sockets: --detokenizer-worker-num, where the release has it, spreads it over \
             processes, a larger --stream-interval makes fewer and larger chunks"
        }
        _ => "its own work is the limit, not the sockets: a larger --stream-interval makes fewer and larger chunks",
    }
}

/// For a CPU-bound process that spends most of its work writing HTTP responses.
pub(super) fn own_writes(role: &str) -> String {
    format!(
        "writing HTTP responses takes most of its time, and each chunk is a write of its own; {}",
        own_work(role)
    )
}

/// For a runnable thread without a CPU.
pub(super) const STARVED: &str =
    "other threads have its CPU: give the engine's host processes CPUs of their own, or fewer threads beside them";

/// For a thread throttled by the CPU quota of its cgroup.
pub(super) const THROTTLED: &str =
    "raise or remove the container's CPU limit (resources.limits.cpu; cpu.max of its cgroup)";

/// For a thread that is not running, by its state and system call.
pub(super) fn away(state: AwayState, place: &str) -> &'static str {
    match state {
        AwayState::Stopped => "a signal (SIGSTOP, SIGTSTP) stopped the process: `kill -CONT PID` lets it go on",
        AwayState::Traced => {
            "a debugger holds the process (ptrace): detach gdb or strace; run py-spy with --nonblocking"
        }
        AwayState::Frozen => {
            "unfreeze the cgroup: `docker unpause`, or write 0 to its cgroup.freeze (THAWED to freezer.state in version 1)"
        }
        AwayState::Blocked => match place {
            "futex" => {
                "it waits for a lock that another thread holds (the GIL, a mutex): `py-spy dump --native` shows both"
            }
            "write" | "writev" | "sendto" | "sendmsg" | "sendmmsg" | "sendfile" => {
                "what it writes to is not read or is slow (a client, a pipe of a log, a disk): `py-spy dump --native` shows what \
                 it writes"
            }
            "fsync" | "fdatasync" | "openat" | "open" | "pread64" | "pwrite64" | "statx" | "getdents64" => {
                "it waits for a disk or a network file system: keep files off its thread; `py-spy dump --native` shows the caller"
            }
            "nanosleep" | "clock_nanosleep" => {
                "its own code sleeps on the thread that receives: `py-spy dump` shows where"
            }
            _ => "a blocking call keeps the thread that receives: `py-spy dump --native` shows where it is made",
        },
        AwayState::Polling | AwayState::Asleep => {
            "it waits for something else than its socket: `py-spy dump` shows whether the task that receives has ended or awaits \
             something"
        }
    }
}

/// For frames that wait on a hop.
pub(super) fn of_hop(attribution: &Attribution<'_>, hop: &str) -> String {
    let leg = attribution
        .legs
        .iter()
        .find(|leg| leg.kind == LegKind::Wait && leg.name == hop);
    leg.map_or_else(
        || String::from("the receiver of this hop is slower than its senders"),
        of_leg,
    )
}

/// For first tokens that wait, by the leg where they wait.
pub(super) fn first_token(bottleneck: Option<&Leg<'_>>) -> String {
    bottleneck.map_or_else(
        || {
            String::from(
                "no single hop or process has half of the wait: the table of where time goes lists each; a larger \
                 --stream-interval makes fewer and larger chunks for all of them",
            )
        },
        of_leg,
    )
}

fn of_leg(leg: &Leg<'_>) -> String {
    let one = leg
        .worker
        .as_deref()
        .map_or(String::new(), |worker| format!(" ({worker})"));
    let who = format!("the {}{one}", leg.role);
    match leg.thread {
        _ if leg.kind != LegKind::Wait => format!("the time is inside {who}: {}", own_work(leg.role)),
        ThreadState::CpuBound | ThreadState::Busy => format!("{who} is busy while frames wait; {}", own_work(leg.role)),
        ThreadState::Starved => format!("{who} has no CPU while frames wait; {STARVED}"),
        ThreadState::Throttled => format!("{who} is held back by its CPU quota while frames wait; {THROTTLED}"),
        ThreadState::Stopped => format!(
            "{who} is stopped while frames wait: `kill -CONT PID` ends a stop by a signal, detaching the debugger one by ptrace"
        ),
        ThreadState::Frozen => format!("{who} is frozen while frames wait; {}", away(AwayState::Frozen, "")),
        ThreadState::Blocked => format!(
            "{who} is blocked in a system call while frames wait: the finding consumer-blocked names it, `py-spy dump --native` \
             shows who makes it"
        ),
        ThreadState::Asleep => format!(
            "{who} sleeps while frames wait: a finding io-thread-starved says that they do not reach it; without one, {}",
            away(AwayState::Polling, "")
        ),
        ThreadState::Waiting => format!(
            "{who} neither runs nor wants to while frames wait: look for what it waits on (a stopped process, a lock, I/O) with \
             py-spy dump"
        ),
        ThreadState::Unknown => format!(
            "the time of the thread of {who} is not sampled, so the cause is unknown: `tokengap attach` with the capabilities \
             that `tokengap doctor` lists samples it"
        ),
    }
}
