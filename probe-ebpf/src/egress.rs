//! What the kernel side tells of the TCP sockets that a serving process writes to: each write as the kernel accepted it, each
//! read where that is wanted, and each change of state.
//!
//! A record begins with [`MARK`], which no time is, so that it shares the ring, and so the order, with the messages' records.

use core::mem::{offset_of, size_of};

/// First word of every record here.
pub const MARK: u64 = u64::MAX;

/// Most bytes in one record; a longer write comes in several.
pub const SEGMENT: usize = 16 << 10;

/// `TCP_ESTABLISHED`, `include/net/tcp_states.h`.
pub const ESTABLISHED: u8 = 1;
/// `TCP_CLOSE`: the socket is over.
pub const CLOSE: u8 = 7;
/// `TCP_CLOSE_WAIT`: the other end has closed.
pub const CLOSE_WAIT: u8 = 8;

/// What a record tells.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Bytes that the kernel accepted; or with a negative [`Head::accepted`] a write that it refused.
    Wrote = 1,
    /// The socket went from [`Head::before`] to [`Head::state`].
    State = 2,
    /// Bytes that the process has read.
    Read = 3,
}

/// The head of a record. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// [`MARK`].
    pub mark: u64,
    /// When the write returned, or the state changed.
    pub at_ns: u64,
    /// The kernel's `struct sock *`: names the connection until [`CLOSE`].
    pub socket: u64,
    /// What the call returned: bytes, or an error below 0.
    pub accepted: i64,
    /// What a call with one buffer was asked to write; 0 where it was several.
    pub asked: u64,
    /// Where in the call these bytes begin.
    pub from: u32,
    /// Bytes that follow this head.
    pub captured: u32,
    /// The kernel's own count of what was written on this connection, behind this write (`tcp_sock.write_seq`; of what was read
    /// `copied_seq`): it goes on whoever writes and whatever is lost, so a step that is not `accepted` is bytes that were not
    /// observed.
    pub written: u32,
    /// Bytes accepted and not acknowledged (`write_seq - snd_una`).
    pub unacknowledged: u32,
    /// Index of the process among the targets.
    pub target: u32,
    /// Local and remote port.
    pub ports: [u16; 2],
    /// [`Kind`].
    pub kind: u8,
    /// State before; only in [`Kind::State`].
    pub before: u8,
    /// State now.
    pub state: u8,
    /// Keeps the struct without padding.
    pub reserved: [u8; 5],
}

/// A record as user space sees it, borrowed from the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// What it tells.
    pub kind: Kind,
    /// The rest of the head.
    pub head: Head,
    /// The captured bytes.
    pub payload: &'a [u8],
}

impl<'a> Record<'a> {
    /// Reads the record in `raw`; `None` if it is not one of these, or shorter than it says.
    pub fn parse(raw: &'a [u8]) -> Option<Self> {
        let (bytes, rest) = raw.split_at_checked(size_of::<Head>())?;
        let u64_at = |at: usize| bytes[at..at + 8].try_into().map(u64::from_ne_bytes).ok();
        let u32_at = |at: usize| bytes[at..at + 4].try_into().map(u32::from_ne_bytes).ok();
        let u16_at = |at: usize| bytes[at..at + 2].try_into().map(u16::from_ne_bytes).ok();
        let mark = u64_at(offset_of!(Head, mark)).filter(|mark| *mark == MARK)?;
        let head = Head {
            mark,
            at_ns: u64_at(offset_of!(Head, at_ns))?,
            socket: u64_at(offset_of!(Head, socket))?,
            accepted: u64_at(offset_of!(Head, accepted))?.cast_signed(),
            asked: u64_at(offset_of!(Head, asked))?,
            from: u32_at(offset_of!(Head, from))?,
            captured: u32_at(offset_of!(Head, captured))?,
            written: u32_at(offset_of!(Head, written))?,
            unacknowledged: u32_at(offset_of!(Head, unacknowledged))?,
            target: u32_at(offset_of!(Head, target))?,
            ports: [u16_at(offset_of!(Head, ports))?, u16_at(offset_of!(Head, ports) + 2)?],
            kind: bytes[offset_of!(Head, kind)],
            before: bytes[offset_of!(Head, before)],
            state: bytes[offset_of!(Head, state)],
            reserved: [0; 5],
        };
        let kind = match head.kind {
            1 => Kind::Wrote,
            2 => Kind::State,
            3 => Kind::Read,
            _ => return None,
        };
        Some(Self {
            kind,
            head,
            payload: rest.get(..head.captured as usize)?,
        })
    }
}

/// A connection that a serving process has written to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// Index of the process among the targets.
    pub target: u32,
    /// 1 when user space has no use for what is written here.
    pub ignored: u32,
}

/// Most bytes copied of a call of a process; 0: such calls are passed over.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Serves {
    /// Of a write.
    pub written: u32,
    /// Of a read.
    pub read: u32,
}

/// Where the kernel side finds what it needs: numbers of system calls, and byte offsets inside kernel structs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// `write`, `writev`, `sendto`, `sendmsg`.
    pub calls: [u32; 4],
    /// `read`, `recvfrom`.
    pub reads: [u32; 2],
    /// In `struct pt_regs`: the call's number.
    pub number: u32,
    /// In `struct pt_regs`: the first three arguments, which are still there when the call returns.
    pub arguments: [u32; 3],
    /// `task_struct.files`.
    pub files: u32,
    /// `files_struct.fdt`.
    pub table: u32,
    /// `fdtable.max_fds`.
    pub room: u32,
    /// `fdtable.fd`.
    pub descriptors: u32,
    /// `file.f_inode`.
    pub inode: u32,
    /// `inode.i_mode`.
    pub mode: u32,
    /// `file.private_data`: a socket's `struct socket`.
    pub private: u32,
    /// `socket.sk`.
    pub sock: u32,
    /// `sock.__sk_common.skc_family`.
    pub family: u32,
    /// `sock.sk_protocol`.
    pub protocol: u32,
    /// `sock.__sk_common.skc_num`: the local port.
    pub local: u32,
    /// `sock.__sk_common.skc_dport`: the remote port, big endian.
    pub remote: u32,
    /// `tcp_sock.write_seq`.
    pub written: u32,
    /// `tcp_sock.snd_una`.
    pub acknowledged: u32,
    /// `tcp_sock.copied_seq`.
    pub consumed: u32,
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    // As the kernel side writes it: the fields in order, no padding between them.
    fn raw(head: &Head, payload: &[u8]) -> Vec<u8> {
        let mut raw = Vec::new();
        for word in [
            head.mark,
            head.at_ns,
            head.socket,
            head.accepted.cast_unsigned(),
            head.asked,
        ] {
            raw.extend(word.to_ne_bytes());
        }
        for word in [head.from, head.captured, head.written, head.unacknowledged, head.target] {
            raw.extend(word.to_ne_bytes());
        }
        raw.extend(head.ports.iter().flat_map(|port| port.to_ne_bytes()));
        raw.extend([head.kind, head.before, head.state]);
        raw.extend(head.reserved);
        raw.extend(payload);
        raw
    }

    proptest! {
        #[test]
        fn reads_what_the_kernel_side_writes(
            words in any::<[u64; 4]>(), halves in any::<[u32; 4]>(), ports in any::<[u16; 2]>(), kind in 1_u8..=3, before: u8, state: u8,
            payload in prop::collection::vec(any::<u8>(), 0..200), slack in 0_usize..9,
        ) {
            let [at_ns, socket, accepted, asked] = words;
            let [from, written, unacknowledged, target] = halves;
            let head = Head {
                mark: MARK, at_ns, socket, accepted: accepted.cast_signed(), asked, from, captured: payload.len() as u32, written,
                unacknowledged, target, ports, kind, before, state, reserved: [0; 5],
            };
            let mut bytes = raw(&head, &payload);
            prop_assert_eq!(bytes.len(), size_of::<Head>() + payload.len());
            bytes.extend(core::iter::repeat_n(0xee, slack));
            let record = Record::parse(&bytes).unwrap();
            prop_assert_eq!((record.head, record.payload, record.kind as u8), (head, &payload[..], kind));
        }

        #[test]
        fn never_panics(raw in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Record::parse(&raw).is_none() || raw.starts_with(&MARK.to_ne_bytes()));
        }
    }
}
