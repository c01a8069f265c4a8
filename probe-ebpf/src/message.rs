//! Memory layout of a `zmq_msg_t`: 64 bytes, the type byte at offset 42, the rest depending on the type. Verified against
//! `zmq_msg_data` and `zmq_msg_size` of libzmq 4.2.5, 4.3.2, 4.3.4 and 4.3.5 (x86-64).

/// Size of a `zmq_msg_t`.
pub const SIZE: usize = 64;
/// Maximum length of a message stored inside the `zmq_msg_t` itself.
pub const INLINE_MAX: u8 = 33;

const VSM: u8 = 101;
const LMSG: u8 = 102;
const CMSG: u8 = 104;
const ZCLMSG: u8 = 105;

const AT_TYPE: usize = 42;
const AT_FLAGS: usize = 43;
const AT_INLINE_SIZE: usize = 41;
/// Offset of an inline message's bytes, or of the pointer to any other message's.
pub const AT_DATA: usize = 8;
const AT_CONSTANT_SIZE: usize = 16;
const MORE: u8 = 1;

/// Location of a message's payload in the target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// `len` bytes at [`AT_DATA`] of the message itself.
    Inline {
        /// Length in bytes, at most [`INLINE_MAX`].
        len: u64,
    },
    /// Described by a `content_t { void *data; size_t size; .. }` at `content`.
    Content {
        /// Address of the `content_t`.
        content: u64,
    },
    /// `len` bytes at `data`.
    Direct {
        /// Address of the bytes.
        data: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Unknown message type; its layout is not guessed.
    Unknown,
}

/// Returns the payload's location from the `zmq_msg_t` in `raw`.
#[inline(always)]
pub fn payload(raw: &[u8; SIZE]) -> Payload {
    match raw[AT_TYPE] {
        VSM if raw[AT_INLINE_SIZE] <= INLINE_MAX => Payload::Inline { len: u64::from(raw[AT_INLINE_SIZE]) },
        LMSG | ZCLMSG => Payload::Content { content: word::<AT_DATA>(raw) },
        CMSG => Payload::Direct { data: word::<AT_DATA>(raw), len: word::<AT_CONSTANT_SIZE>(raw) },
        _ => Payload::Unknown,
    }
}

/// Raw type byte, for diagnostics.
#[inline(always)]
pub fn kind(raw: &[u8; SIZE]) -> u8 {
    raw[AT_TYPE]
}

/// Whether another part follows a received message. At the entry of `zmq_msg_send` the flag is not set yet; use the call's
/// third argument.
#[inline(always)]
pub fn more(raw: &[u8; SIZE]) -> bool {
    raw[AT_FLAGS] & MORE != 0
}

#[inline(always)]
fn word<const AT: usize>(raw: &[u8; SIZE]) -> u64 {
    u64::from_ne_bytes([
        raw[AT],
        raw[AT + 1],
        raw[AT + 2],
        raw[AT + 3],
        raw[AT + 4],
        raw[AT + 5],
        raw[AT + 6],
        raw[AT + 7],
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8) -> [u8; SIZE] {
        let mut raw = [0; SIZE];
        raw[AT_TYPE] = kind;
        raw
    }

    #[test]
    fn short_messages_are_inline() {
        let mut raw = message(VSM);
        for len in [0, 1, INLINE_MAX] {
            raw[AT_INLINE_SIZE] = len;
            assert_eq!(payload(&raw), Payload::Inline { len: u64::from(len) });
        }
        raw[AT_INLINE_SIZE] = INLINE_MAX + 1;
        assert_eq!(payload(&raw), Payload::Unknown);
    }

    #[test]
    fn long_and_zero_copy_messages_are_reached_through_their_content() {
        for kind in [LMSG, ZCLMSG] {
            let mut raw = message(kind);
            raw[AT_DATA..AT_DATA + 8].copy_from_slice(&0x7fff_1234_5678_u64.to_ne_bytes());
            assert_eq!(payload(&raw), Payload::Content { content: 0x7fff_1234_5678 });
        }
    }

    #[test]
    fn constant_messages_store_address_and_length() {
        let mut raw = message(CMSG);
        raw[8..16].copy_from_slice(&0x1000_u64.to_ne_bytes());
        raw[16..24].copy_from_slice(&70_000_u64.to_ne_bytes());
        assert_eq!(payload(&raw), Payload::Direct { data: 0x1000, len: 70_000 });
    }

    #[test]
    fn other_types_are_unknown() {
        for kind in (0..=255).filter(|k| ![VSM, LMSG, CMSG, ZCLMSG].contains(k)) {
            assert_eq!(payload(&message(kind)), Payload::Unknown, "type {kind}");
        }
    }
}
