//! A ring buffer record: a [`Header`] followed by the captured bytes.

use core::mem::{offset_of, size_of};

/// Type of a record.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A message was passed to `zmq_msg_send` or `zmq_send`.
    Sent = 1,
    /// The send was refused (a full queue on a non-blocking send, or a terminated context). Its [`Header::seq`] is reused.
    Unsent = 2,
    /// `zmq_msg_recv` or `zmq_recv` returned a message.
    Received = 3,
    /// The application asked for the next message, so it has processed the one with this [`Header::seq`].
    Processed = 4,
    /// The method returned that was passed the message with this [`Header::seq`].
    Returned = 5,
}

impl Kind {
    /// Kind with this number. `None` for a number that only another build has.
    fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Sent,
            2 => Self::Unsent,
            3 => Self::Received,
            4 => Self::Processed,
            5 => Self::Returned,
            _ => return None,
        })
    }
}

/// Header of every record. Times are `CLOCK_MONOTONIC` in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Time of the event.
    pub at_ns: u64,
    /// The application's `void *` socket.
    pub socket: u64,
    /// Number of the message within its socket and direction, counted from 0 at the attach. A step of n + 1 means n missed
    /// records.
    pub seq: u64,
    /// Length of the whole message in bytes.
    pub bytes: u64,
    /// Time that the calling thread has spent on a CPU, as observed by the scheduler programs.
    pub on_ns: u64,
    /// Time that it has waited for a CPU.
    pub wait_ns: u64,
    /// Time that it has slept.
    pub blocked_ns: u64,
    /// Number of polls with a timeout that the thread has entered. Messages of one wakeup share this number.
    pub wakeup: u64,
    /// Index of the process among the targets.
    pub target: u32,
    /// Id of the calling thread in user space's PID namespace.
    pub tid: u32,
    /// Number of message bytes after this header. Half of a truncated copy comes from the message's start and half from its end.
    pub captured: u32,
    /// [`Kind`] as a number.
    pub kind: u8,
    /// 1 if another part of the same multipart message follows.
    pub more: u8,
    /// 1 if the payload could not be read.
    pub fault: u8,
    /// The `zmq_msg_t` type byte; 0 for a call with a plain buffer.
    pub message_type: u8,
}

/// A parsed record, borrowed from the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Type of the record.
    pub kind: Kind,
    /// Header.
    pub header: Header,
    /// Captured bytes: the whole message, or equal parts of its start and end.
    pub payload: &'a [u8],
}

impl<'a> Record<'a> {
    /// Parses a record of the ring. `None` if it is truncated or of an unknown kind (kernel object and reader from different builds).
    pub fn parse(raw: &'a [u8]) -> Option<Self> {
        let (head, rest) = raw.split_at_checked(size_of::<Header>())?;
        // The header is read field by field, which needs no `unsafe`.
        let u64_at = |at: usize| head[at..at + 8].try_into().map(u64::from_ne_bytes).ok();
        let u32_at = |at: usize| head[at..at + 4].try_into().map(u32::from_ne_bytes).ok();
        let header = Header {
            at_ns: u64_at(offset_of!(Header, at_ns))?,
            socket: u64_at(offset_of!(Header, socket))?,
            seq: u64_at(offset_of!(Header, seq))?,
            bytes: u64_at(offset_of!(Header, bytes))?,
            on_ns: u64_at(offset_of!(Header, on_ns))?,
            wait_ns: u64_at(offset_of!(Header, wait_ns))?,
            blocked_ns: u64_at(offset_of!(Header, blocked_ns))?,
            wakeup: u64_at(offset_of!(Header, wakeup))?,
            target: u32_at(offset_of!(Header, target))?,
            tid: u32_at(offset_of!(Header, tid))?,
            captured: u32_at(offset_of!(Header, captured))?,
            kind: head[offset_of!(Header, kind)],
            more: head[offset_of!(Header, more)],
            fault: head[offset_of!(Header, fault)],
            message_type: head[offset_of!(Header, message_type)],
        };
        let kind = Kind::of(header.kind)?;
        let payload = rest.get(..header.captured as usize)?;
        Some(Self { kind, header, payload })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    // Same layout as the kernel side: fields in order, without padding.
    fn written(h: &Header, payload: &[u8]) -> Vec<u8> {
        let words = [h.at_ns, h.socket, h.seq, h.bytes, h.on_ns, h.wait_ns, h.blocked_ns, h.wakeup];
        let mut raw: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        raw.extend([h.target, h.tid, h.captured].iter().flat_map(|w| w.to_ne_bytes()));
        raw.extend([h.kind, h.more, h.fault, h.message_type]);
        raw.extend(payload);
        raw
    }

    proptest! {
        #[test]
        fn parses_records_of_the_kernel_side(
            words in any::<[u64; 8]>(), target: u32, tid: u32, kind in 1_u8..=5, more: u8, fault: u8, message_type: u8,
            payload in prop::collection::vec(any::<u8>(), 0..300), slack in 0_usize..50,
        ) {
            let [at_ns, socket, seq, bytes, on_ns, wait_ns, blocked_ns, wakeup] = words;
            let captured = payload.len() as u32;
            let header = Header { at_ns, socket, seq, bytes, on_ns, wait_ns, blocked_ns, wakeup, target, tid,
                captured, kind, more, fault, message_type };
            let mut raw = written(&header, &payload);
            prop_assert_eq!(size_of::<Header>(), raw.len() - payload.len());
            raw.extend(core::iter::repeat_n(0xee, slack)); // a size class may exceed the record
            let record = Record::parse(&raw).unwrap();
            prop_assert_eq!(record.header, header);
            prop_assert_eq!(record.payload, &payload[..]);
            prop_assert_eq!(record.kind as u8, kind);
        }

        #[test]
        fn never_panics(raw in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Some(record) = Record::parse(&raw) {
                prop_assert_eq!(record.payload.len(), record.header.captured as usize);
            }
        }
    }

    #[test]
    fn a_truncated_record_is_rejected() {
        let header = Header { kind: Kind::Sent as u8, captured: 10, ..Header::default() };
        let raw = written(&header, &[7; 10]);
        assert!(Record::parse(&raw).is_some());
        for cut in 0..raw.len() {
            assert_eq!(Record::parse(&raw[..cut]), None);
        }
    }
}
