//! What to do about a bottleneck: one text for each role and cause.

use super::attribution::{Attribution, Leg, LegKind, ThreadState};

/// For a thread whose own work is the limit.
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

/// For a thread that is runnable and gets no CPU.
pub(super) const STARVED: &str =
    "other threads have its CPU: give the engine's host processes CPUs of their own, or fewer threads beside them";

/// For a thread whose cgroup has used up its quota.
pub(super) const THROTTLED: &str =
    "raise or remove the container's CPU limit (resources.limits.cpu; cpu.max of its cgroup)";

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

/// For first tokens that wait, by where they wait.
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
        ThreadState::Waiting => format!(
            "{who} neither runs nor wants to while frames wait: look for what it waits on (a stopped process, a lock, I/O) with \
             py-spy dump"
        ),
        ThreadState::Unknown => format!(
            "the time of the thread of {who} is not sampled, so the cause cannot be told: `tokengap attach` with the capabilities \
             that `tokengap doctor` lists samples it"
        ),
    }
}
