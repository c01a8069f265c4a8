//! What a probe says, as it says it: borrowed from the ring, nothing copied.

use probe_ebpf::Loss;
use probe_ebpf::egress::Record;
use trace::MonoNs;

/// A ZMQ socket of a watched process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId {
    /// Process id, as the caller named it.
    pub pid: u32,
    /// The application's `void *`; another socket may get it after this one is closed.
    pub address: u64,
}

/// What the scheduler's tracepoints saw of a thread since the attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Nanoseconds on a CPU.
    pub on_ns: u64,
    /// Nanoseconds runnable without a CPU.
    pub wait_ns: u64,
    /// Nanoseconds asleep.
    pub blocked_ns: u64,
}

/// One observed libzmq call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// When.
    pub at: MonoNs,
    /// On which socket.
    pub socket: SocketId,
    /// By which thread.
    pub tid: u32,
    /// Which message of this socket and direction, counted from 0 at the attach. Lost records leave gaps.
    pub seq: u64,
    /// The thread's times up to now; `None` when the scheduler is not observed.
    pub cpu: Option<CpuTimes>,
    /// How often the thread went to a poll that may sleep: messages of one wakeup share it. `None` when not observed.
    pub wakeup: Option<u64>,
}

/// A message and the call that moved it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The call.
    pub call: Call,
    /// Length of the whole message in bytes.
    pub bytes: u64,
    /// Another part of the same multipart message follows. Of a message taken it is known only where bytes are asked for.
    pub more: bool,
    /// Its bytes; of a message longer than what was asked for, the first half of that and the last half. Empty if they could
    /// not be read.
    pub payload: &'a [u8],
}

/// One observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation<'a> {
    /// A message entered the sender's socket.
    Sent(Message<'a>),
    /// The send of the message with this number was refused; the number will be used again.
    Unsent(Call),
    /// The application took a message.
    Taken(Message<'a>),
    /// The application asked for the next message: it is done with the one of this number.
    Handled(Call),
    /// A serving process wrote to a client's socket, or that socket changed its state.
    Egress {
        /// The process.
        pid: u32,
        /// What happened.
        record: Record<'a>,
    },
    /// Observations were lost, so many since the last time this was said.
    Lost {
        /// Why.
        cause: Loss,
        /// How many.
        count: u64,
    },
    /// A watched process ended.
    Exited {
        /// Which.
        pid: u32,
    },
}
