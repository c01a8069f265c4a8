//! Observations of a probe, borrowed from the ring without copying.

use probe_ebpf::Loss;
use probe_ebpf::egress::Record;
use trace::MonoNs;

/// A ZMQ socket of a watched process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId {
    /// Process id, as given by the caller.
    pub pid: u32,
    /// The application's `void *`. A later socket may have the same address.
    pub address: u64,
}

/// An observed libzmq call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Time of the call.
    pub at: MonoNs,
    /// Socket of the call.
    pub socket: SocketId,
    /// Calling thread.
    pub tid: u32,
    /// Number of the message on this socket in this direction, counted from 0 at the attach. Lost records leave gaps.
    pub seq: u64,
    /// Number of polls by the thread that may have slept; messages of one wakeup share it. `None` when not observed.
    pub wakeup: Option<u64>,
}

/// A message with the call that sent or received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The call.
    pub call: Call,
    /// Length of the whole message in bytes.
    pub bytes: u64,
    /// Whether another part of the same multipart message follows. For received messages it is known only if bytes are captured.
    pub more: bool,
    /// Captured bytes. If the message exceeds the capture limit, the first half of that many bytes and the last half. Empty if they could
    /// not be read.
    pub payload: &'a [u8],
}

/// One observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the comment of a variant describes its fields")]
pub enum Observation<'a> {
    /// A message entered the sender's socket.
    Sent(Message<'a>),
    /// The send of the message with this number was refused. The number will be reused.
    Unsent(Call),
    /// The application received a message.
    Received(Message<'a>),
    /// The application requested its next message, so it has processed the one with this number.
    Processed(Call),
    /// The method returned that was passed the message with this number: the server in the process has taken it.
    Returned(Call),
    /// A serving process wrote to a client's socket, or that socket changed state; or a process read a ZMTP connection without libzmq.
    Egress { pid: u32, record: Record<'a> },
    /// Observations were lost since the last report.
    Lost { cause: Loss, count: u64 },
    /// A watched process ended.
    Exited { pid: u32 },
}
