//! What the kernel side of the probe and user space say to each other: plain-old-data records, and the pure rules that
//! both apply to them (the layout of `zmq_msg_t`, size classes, thread accounting).
//!
//! No dependency, no allocation, no I/O, so that each rule is tested on the host. The kernel side itself is the binary
//! target `tokengap-bpf` in `kernel/`; `cargo xtask ebpf` builds it.
#![no_std]
#![expect(
    clippy::inline_always,
    reason = "the verifier follows calls, but the stack of a program is 512 bytes in all"
)]

pub mod call;
pub mod class;
pub mod egress;
pub mod loss;
pub mod message;
pub mod offsets;
pub mod record;
pub mod site;
pub mod thread;

pub use call::Call;
pub use loss::Loss;
pub use message::Payload;
pub use offsets::Offsets;
pub use record::{Header, Kind, Record};
pub use site::{Cookie, Kept, Register, Site};
pub use thread::{State, Thread};

/// Most processes that one probe watches: the length of the kernel side's per-target arrays.
pub const MAX_TARGETS: u32 = 256;

/// How many bytes of a message are copied to user space, per target. Of a longer message that many in all: the first half
/// and the last half, which tell frames apart better than as many first ones.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    /// Bytes of each message it sends; 0 copies the length only.
    pub sent: u32,
    /// Bytes of each message it takes; 0 copies the length only.
    pub taken: u32,
}

/// What the kernel side knows of a target.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// What to copy.
    pub capture: Capture,
    /// 1 when its sends count: from when all takes of all targets are seen, so that a frame seen sent is seen taken.
    pub sends: u32,
    /// Keeps the struct a multiple of 8 bytes.
    pub reserved: u32,
}

/// A ZMQ socket's counts since the attach. They go on when a record is dropped, so a gap in [`Header::seq`] says exactly
/// which observations were lost.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channel {
    /// Messages that entered `zmq_msg_send` or `zmq_send`, less those it refused.
    pub sent: u64,
    /// Messages that `zmq_msg_recv` or `zmq_recv` returned.
    pub taken: u64,
    /// `taken` at the last handled mark: equal to `taken` when the application has asked for the next message.
    pub handled: u64,
}

/// The key of a [`Channel`]: the target's index in the highest byte and the application's `void *` socket below it (user
/// addresses have at most 56 bits on x86-64 and aarch64).
#[inline(always)]
pub fn channel_key(target: u32, socket: u64) -> u64 {
    const { assert!(MAX_TARGETS <= 1 << 8) };
    (u64::from(target) << 56) | (socket & ((1 << 56) - 1))
}
