//! Samples of the engine's threads, of kernel queues and of Python stacks.

use serde::{Deserialize, Serialize};

use crate::id::ThreadId;
use crate::words::names;

/// CPU use of one engine thread over about 100 ms, or over a second for threads outside the token path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CpuSample<'a> {
    /// Id of the thread.
    pub thread: ThreadId,
    /// Role of its process, as in hop names.
    pub role: &'a str,
    /// Name in the kernel: at most 15 bytes; empty when unknown.
    pub name: &'a str,
    /// Part of the thread in its process.
    pub part: ThreadPart,
    /// Length of the interval in nanoseconds.
    pub interval_ns: u64,
    /// Nanoseconds of the interval on a CPU.
    pub on_ns: u64,
    /// Nanoseconds of the interval spent waiting for a CPU, including throttled time; `None` without `CONFIG_SCHED_INFO`.
    pub wait_ns: Option<u64>,
    /// Throttled nanoseconds of its cgroup (`cpu.stat`, summed over CPUs); `None` without a quota.
    pub throttled_ns: Option<u64>,
    /// Polls of its event loop; `None` when not observed or not read for this sample.
    pub poll: Option<PollUse>,
    /// Why it is not running at the end of the interval; `None` if it runs, if no frame waits, or if not checked.
    pub away: Option<Away<'a>>,
}

/// State and place of a thread that is not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Away<'a> {
    /// Why it is not running.
    pub state: AwayState,
    /// System call or kernel function in which it sleeps; empty when unknown or meaningless.
    pub place: &'a str,
}

/// Reasons why a thread is not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AwayState {
    /// Stopped by a signal (`SIGSTOP`).
    Stopped,
    /// Stopped by a debugger (`ptrace`).
    Traced,
    /// Its cgroup is frozen.
    Frozen,
    /// In a system call other than a poll.
    Blocked,
    /// In the poll of an event loop or of libzmq: waiting for work.
    Polling,
    /// In a system call that cannot be determined.
    Asleep,
}

/// Part of a thread in its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadPart {
    /// The main thread.
    Main,
    /// One of libzmq's I/O threads: moves bytes between kernel sockets and the queues that the application reads.
    Io,
    /// Any other thread.
    Other,
}

/// Polls of an event loop since the thread's last sample with poll data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PollUse {
    /// Length of the interval in nanoseconds.
    pub interval_ns: u64,
    /// Nanoseconds of the interval inside the poll. The rest was spent in callbacks.
    pub polled_ns: u64,
    /// Polls that were allowed to sleep, because the loop had no work left.
    pub wakeups: u64,
}

/// Kernel queues of all connections of the hops of one name, at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QueueSample<'a> {
    /// Name of the hops.
    pub hop: &'a str,
    /// Bytes in the receivers' sockets not yet read by libzmq (`SIOCINQ`); `None` if no receiver's socket can be read.
    pub receive_bytes: Option<u64>,
    /// Bytes in the senders' sockets not yet read or acknowledged (`SIOCOUTQ`). On Unix sockets these are the receivers' bytes plus kernel
    /// overhead. `None` if no sender's socket can be read.
    pub send_bytes: Option<u64>,
}

/// One function in the stack samples of a thread over an interval. A thread's functions of one interval are consecutive. All threads of a
/// process share the end of an interval. A thread that never ran has one event, without a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StackSample<'a> {
    /// Id of the thread.
    pub thread: ThreadId,
    /// Role of its process, as in hop names.
    pub role: &'a str,
    /// Name of the function; empty when the thread did not run in the interval.
    pub function: &'a str,
    /// Its source file, shortened to the part that distinguishes it.
    pub file: &'a str,
    /// Length of the interval in nanoseconds.
    pub interval_ns: u64,
    /// Number of stack samples of the thread in the interval.
    pub samples: u32,
    /// Number of samples with the function anywhere on the stack of the running thread.
    pub total: u32,
    /// Number of samples with the function innermost on the stack of the running thread.
    pub own: u32,
    /// Number of samples with the function innermost while the thread held the GIL; `None` if the GIL owner cannot be read.
    pub gil: Option<u32>,
}

names! {
    AwayState {
        Stopped = "stopped",
        Traced = "traced",
        Frozen = "frozen",
        Blocked = "blocked",
        Polling = "polling",
        Asleep = "asleep",
    }
    ThreadPart { Main = "main", Io = "io", Other = "other" }
}
