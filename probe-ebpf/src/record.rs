//! One record of the ring buffer: a [`Header`], and after it the captured bytes.

use core::mem::{offset_of, size_of};

/// What a record tells.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A message entered `zmq_msg_send` or `zmq_send`.
    Sent = 1,
    /// That send was refused (a non-blocking send without room, or the context ended): its [`Header::seq`] is free again.
    Unsent = 2,
    /// `zmq_msg_recv` or `zmq_recv` returned a message.
    Taken = 3,
    /// The application asked for the next message: it is done with the one of this [`Header::seq`].
    Handled = 4,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Sent,
            2 => Self::Unsent,
            3 => Self::Taken,
            4 => Self::Handled,
            _ => return None,
        })
    }
}

/// The head of every record. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// When it happened.
    pub at_ns: u64,
    /// The application's `void *` socket.
    pub socket: u64,
    /// Which message of this socket and direction, counted from 0 at the attach. A step of more than 1 is the number of
    /// lost records, plus 1.
    pub seq: u64,
    /// Length of the whole message in bytes.
    pub bytes: u64,
    /// The calling thread's time on a CPU so far, as far as the scheduler programs saw it.
    pub on_ns: u64,
    /// Its time waiting for a CPU so far.
    pub wait_ns: u64,
    /// Its time asleep so far.
    pub blocked_ns: u64,
    /// Poll calls that could sleep which the thread entered so far: messages of one wakeup share it.
    pub wakeup: u64,
    /// Index of the process among the targets.
    pub target: u32,
    /// The calling thread, in the namespace of the probe's user side.
    pub tid: u32,
    /// Bytes of the message that follow this header; where it is longer, the first half of them and the last half.
    pub captured: u32,
    /// [`Kind`].
    pub kind: u8,
    /// 1 when another part of the same multipart message follows.
    pub more: u8,
    /// 1 when the payload could not be read.
    pub fault: u8,
    /// The `zmq_msg_t` type byte; 0 where the call took a plain buffer.
    pub message_type: u8,
}

/// A record as user space sees it, borrowed from the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// What it tells.
    pub kind: Kind,
    /// The rest of the head.
    pub header: Header,
    /// The captured bytes: all of the message, or as many from its beginning as from its end.
    pub payload: &'a [u8],
}

impl<'a> Record<'a> {
    /// Reads the record in `raw`; `None` if it is shorter than it says or of an unknown kind (an object and a reader of
    /// different builds).
    pub fn parse(raw: &'a [u8]) -> Option<Self> {
        let (head, rest) = raw.split_at_checked(size_of::<Header>())?;
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
        let payload = rest.get(..header.captured as usize)?;
        Some(Self {
            kind: Kind::of(header.kind)?,
            header,
            payload,
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    // As the kernel side writes it: the fields in order, no padding between them.
    fn written(h: &Header, payload: &[u8]) -> Vec<u8> {
        let words = [
            h.at_ns,
            h.socket,
            h.seq,
            h.bytes,
            h.on_ns,
            h.wait_ns,
            h.blocked_ns,
            h.wakeup,
        ];
        let mut raw: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        raw.extend([h.target, h.tid, h.captured].iter().flat_map(|w| w.to_ne_bytes()));
        raw.extend([h.kind, h.more, h.fault, h.message_type]);
        raw.extend(payload);
        raw
    }

    proptest! {
        #[test]
        fn reads_what_the_kernel_side_writes(
            words in any::<[u64; 8]>(), target: u32, tid: u32, kind in 1_u8..=4, more: u8, fault: u8, message_type: u8,
            payload in prop::collection::vec(any::<u8>(), 0..300), slack in 0_usize..50,
        ) {
            let [at_ns, socket, seq, bytes, on_ns, wait_ns, blocked_ns, wakeup] = words;
            let captured = payload.len() as u32;
            let header = Header { at_ns, socket, seq, bytes, on_ns, wait_ns, blocked_ns, wakeup, target, tid,
                captured, kind, more, fault, message_type };
            let mut raw = written(&header, &payload);
            prop_assert_eq!(size_of::<Header>(), raw.len() - payload.len());
            raw.extend(core::iter::repeat_n(0xee, slack)); // a class is larger than what it holds
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
    fn a_record_that_is_cut_short_is_refused() {
        let header = Header {
            kind: Kind::Sent as u8,
            captured: 10,
            ..Header::default()
        };
        let raw = written(&header, &[7; 10]);
        assert!(Record::parse(&raw).is_some());
        for cut in 0..raw.len() {
            assert_eq!(Record::parse(&raw[..cut]), None);
        }
    }
}
