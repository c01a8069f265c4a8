//! Location of a message's bytes in the target's memory.

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::bpf_probe_read_user;
use aya_log_ebpf::{debug, warn};
use probe_ebpf::{Loss, Payload, message};

use crate::maps::count_loss;

/// Location and size of a message's bytes.
#[derive(Clone, Copy)]
pub(crate) struct Body {
    /// Address of the first byte.
    pub(crate) at: u64,
    /// Length of the message.
    pub(crate) len: u64,
    /// Number of message bytes that can be read at that address.
    pub(crate) readable: u64,
    /// The `zmq_msg_t` type byte; 0 for a plain buffer.
    pub(crate) kind: u8,
    /// Whether another part follows. Valid only for a received message whose `zmq_msg_t` was read.
    pub(crate) more: bool,
}

impl Body {
    /// Body of a message of `len` bytes in a plain buffer of `room` bytes.
    #[inline(always)]
    pub(crate) fn of_buffer(at: u64, len: u64, room: u64) -> Self {
        Self { at, len, readable: len.min(room), kind: 0, more: false }
    }

    /// Body of a message of `len` bytes whose content is not read.
    #[inline(always)]
    pub(crate) fn unread(len: u64) -> Self {
        Self { at: 0, len, readable: 0, kind: 0, more: false }
    }

    /// Body of the `zmq_msg_t` at `message_address`. Counts a miss if it is unreadable or of an unknown type.
    #[inline(always)]
    pub(crate) fn of_message<C: EbpfContext>(ctx: &C, message_address: u64) -> Option<Self> {
        // SAFETY: a read of the target's memory; a fault is an error value.
        let Ok(raw) = (unsafe { bpf_probe_read_user(message_address as *const [u8; message::SIZE]) }) else {
            count_loss(Loss::HeaderFault);
            warn!(ctx, "zmq_msg_t at {:x} is not readable", message_address);
            return None;
        };
        let (at, len) = match message::payload(&raw) {
            Payload::Inline { len } => (message_address + message::AT_DATA as u64, len),
            Payload::Direct { data, len } => (data, len),
            Payload::Content { content } => {
                // SAFETY: as above. content_t begins with the data pointer and the size.
                let Ok([data, size]) = (unsafe { bpf_probe_read_user(content as *const [u64; 2]) }) else {
                    count_loss(Loss::HeaderFault);
                    warn!(ctx, "content_t at {:x} is not readable", content);
                    return None;
                };
                (data, size)
            }
            Payload::Unknown => {
                count_loss(Loss::UnknownMessage);
                debug!(ctx, "zmq_msg_t of unknown type {}", message::kind(&raw));
                return None;
            }
        };
        Some(Self { at, len, readable: len, kind: message::kind(&raw), more: message::more(&raw) })
    }
}
