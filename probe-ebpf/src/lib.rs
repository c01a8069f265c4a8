//! Interface between the probe's kernel side and user space: plain-old-data records, and pure functions that both use (layout
//! of `zmq_msg_t`, size classes, thread accounting).
//!
//! No dependencies, allocation or I/O, so that everything is tested on the host. The kernel side is the binary target
//! `tokengap-bpf` in `kernel/`, which `cargo xtask ebpf` builds.
#![no_std]
#![expect(clippy::inline_always, reason = "calls use stack, and a BPF program has 512 bytes of it")]

pub mod call;
pub mod class;
pub mod egress;
pub mod loss;
pub mod message;
pub mod offsets;
pub mod probe_point;
pub mod record;
pub mod thread;
pub mod traceparent;

pub use call::Call;
pub use loss::Loss;
pub use message::Payload;
pub use offsets::Offsets;
pub use probe_point::{Cookie, Kept, ProbePoint, Register};
pub use record::{Header, Kind, Record};
pub use thread::{State, Thread};

/// Maximum number of processes that one probe watches; the length of the per-target arrays.
pub const MAX_TARGETS: u32 = 256;

/// Per-target limits on the bytes of a message that are copied to user space. Half of a truncated copy comes from the start of
/// the message and half from its end, which distinguishes frames better than the start alone.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    /// Limit for sent messages; 0 copies only the length.
    pub sent: u32,
    /// Limit for received messages; 0 copies only the length.
    pub received: u32,
}

/// Settings of a target.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Copy limits.
    pub capture: Capture,
    /// 1 to count its sends. Set once the receives of all targets are probed, so that no frame is observed only at its sender.
    pub sends: u32,
    /// Pads the struct to a multiple of 8 bytes.
    pub reserved: u32,
}

/// Counters of a ZMQ socket since the attach. They also count dropped records, so a gap in [`Header::seq`] identifies exactly
/// the missed observations.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channel {
    /// Messages passed to `zmq_msg_send` or `zmq_send`, minus refused ones.
    pub sent: u64,
    /// Messages returned by `zmq_msg_recv` or `zmq_recv`.
    pub received: u64,
    /// Value of `received` when the application last asked for a message. Equal to `received` if no message is being processed.
    pub processed: u64,
}

/// Key of a [`Channel`]: the target index in the highest byte, and below it the application's `void *` socket. User addresses
/// have at most 56 bits on x86-64 and aarch64.
#[inline(always)]
pub fn channel_key(target: u32, socket: u64) -> u64 {
    const { assert!(MAX_TARGETS <= 1 << 8) };
    (u64::from(target) << 56) | (socket & ((1 << 56) - 1))
}
