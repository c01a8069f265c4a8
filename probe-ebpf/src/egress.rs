//! Records about sockets: a serving process's TCP writes as accepted by the kernel, its reads if they are captured, changes of
//! connection state, and reads of ZMTP connections by processes without libzmq.
//!
//! A record begins with [`MARK`], which is never a valid timestamp. It can therefore share a ring, and thus an order, with
//! message records.

use core::mem::{offset_of, size_of};

use crate::traceparent::CallerSpan;

/// First word of every egress record.
pub const MARK: u64 = u64::MAX;

/// Maximum payload of one record in bytes; a longer write is split.
pub const SEGMENT: usize = 16 << 10;

/// `TCP_ESTABLISHED`, `include/net/tcp_states.h`.
pub const ESTABLISHED: u8 = 1;
/// `TCP_SYN_RECV`: a connection that a client opens, before the last packet of its handshake.
pub const SYN_RECV: u8 = 3;
/// `TCP_CLOSE`: the connection has ended.
pub const CLOSE: u8 = 7;
/// `TCP_CLOSE_WAIT`: the peer has closed its side.
pub const CLOSE_WAIT: u8 = 8;

/// Type of a record.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Bytes that the kernel accepted, or a refused write if [`Head::accepted`] is negative.
    Wrote = 1,
    /// The connection changed from [`Head::before`] to [`Head::state`].
    State = 2,
    /// Bytes that the process read.
    Read = 3,
    /// Bytes that the process read from a ZMTP connection. Without a payload, it read them by a call whose buffers are not copied.
    Zmtp = 4,
    /// Plain bytes that the process passed to its TLS library. [`Head::accepted`] counts the bytes that the library accepted.
    Tls = 5,
    /// The process freed a TLS connection.
    TlsClosed = 6,
    /// The process begins to answer a request: the payload is its [`RequestTimes`] and [`CallerSpan`]. Precedes the record of the write.
    Request = 7,
}

/// Header of a record. Times are `CLOCK_MONOTONIC` in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Always [`MARK`].
    pub mark: u64,
    /// Time when the call returned or the state changed.
    pub at_ns: u64,
    /// The kernel's `struct sock *`, which identifies the connection until [`CLOSE`]; the socket's inode in [`Kind::Zmtp`],
    /// and [`tls_key`] in [`Kind::Tls`].
    pub socket: u64,
    /// Return value of the call: number of bytes, or a negative error.
    pub accepted: i64,
    /// Size of the call's buffer; 0 for a vectored call.
    pub asked: u64,
    /// Offset of these bytes within the call.
    pub from: u32,
    /// Number of payload bytes after this header.
    pub captured: u32,
    /// The connection's byte count after this call: `tcp_sock.write_seq` for a write, `copied_seq` for a read, and
    /// [`ZmtpConnection::read`] for a Unix socket, [`TlsConnection::written`] for TLS. It also counts calls whose record was dropped, so a step other than `accepted`
    /// reveals bytes that were not observed.
    pub written: u32,
    /// Bytes accepted but not yet acknowledged (`write_seq - snd_una`).
    pub unacknowledged: u32,
    /// Index of the process among the targets.
    pub target: u32,
    /// Calling thread in user space's PID namespace; set only in [`Kind::Zmtp`].
    pub tid: u32,
    /// Local and remote port.
    pub ports: [u16; 2],
    /// [`Kind`] as a number.
    pub kind: u8,
    /// Previous state; set only in [`Kind::State`].
    pub before: u8,
    /// New state; set only in [`Kind::State`].
    pub state: u8,
    /// Explicit padding.
    pub reserved: u8,
}

/// A parsed record, borrowed from the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Type of the record.
    pub kind: Kind,
    /// Header.
    pub head: Head,
    /// Captured bytes.
    pub payload: &'a [u8],
}

impl<'a> Record<'a> {
    /// Parses a record of the ring, field by field in native byte order. `None` if it is not an egress record, or is truncated.
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
            tid: u32_at(offset_of!(Head, tid))?,
            ports: [u16_at(offset_of!(Head, ports))?, u16_at(offset_of!(Head, ports) + 2)?],
            kind: bytes[offset_of!(Head, kind)],
            before: bytes[offset_of!(Head, before)],
            state: bytes[offset_of!(Head, state)],
            reserved: 0,
        };
        let kind = match head.kind {
            1 => Kind::Wrote,
            2 => Kind::State,
            3 => Kind::Read,
            4 => Kind::Zmtp,
            5 => Kind::Tls,
            6 => Kind::TlsClosed,
            7 => Kind::Request,
            _ => return None,
        };
        Some(Self { kind, head, payload: rest.get(..head.captured as usize)? })
    }
}

/// When a request reached a serving process, in nanoseconds of `CLOCK_MONOTONIC`; 0 if not observed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTimes {
    /// When the handshake of its connection was complete; 0 unless it is the first request of the connection.
    pub opened_ns: u64,
    /// When the process had accepted the connection; 0 as above.
    pub accepted_ns: u64,
    /// When its first bytes were in the socket.
    pub arrived_ns: u64,
    /// When the process had read its first bytes.
    pub read_ns: u64,
}

impl RequestTimes {
    /// Parses the payload of a [`Kind::Request`] record; `None` if it is truncated.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let word = |at: usize| payload.get(at..at + 8)?.try_into().map(u64::from_ne_bytes).ok();
        Some(Self {
            opened_ns: word(offset_of!(Self, opened_ns))?,
            accepted_ns: word(offset_of!(Self, accepted_ns))?,
            arrived_ns: word(offset_of!(Self, arrived_ns))?,
            read_ns: word(offset_of!(Self, read_ns))?,
        })
    }
}

/// A connection that a client has opened to a serving process, or on which such a process has written.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// Index of the process among the targets.
    pub target: u32,
    /// 1 if user space does not need this connection's writes.
    pub ignored: u32,
    /// Times of the request that the process has not begun to answer.
    pub request: RequestTimes,
    /// Span of that request's caller.
    pub caller: CallerSpan,
    /// When the first byte arrived that the process has not read; 0 if it has read all.
    pub unread_since_ns: u64,
}

/// Key of a listening port in a network namespace, given by its inode.
#[inline(always)]
pub fn listener_key(namespace: u32, port: u16) -> u64 {
    u64::from(namespace) << 16 | u64::from(port)
}

/// A TLS connection on which a serving process has written.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlsConnection {
    /// Number of plain bytes written since the attach. Counts every write, even if its record is dropped.
    pub written: u32,
    /// 1 if user space does not need this connection's writes.
    pub ignored: u32,
}

/// Key of the connection that target `target` knows by this address. It differs from every kernel address.
#[inline(always)]
pub fn tls_key(target: u32, address: u64) -> u64 {
    address ^ u64::from(target) << 48
}

/// Copy limits for a process's calls in bytes; 0 ignores such calls.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Serves {
    /// Limit for a write.
    pub written: u32,
    /// Limit for a read.
    pub read: u32,
    /// 1 to search the heads of requests for the spans of their callers.
    pub callers: u32,
}

/// Maximum number of listening ports of serving processes.
pub const MAX_LISTENERS: u32 = 1024;

/// Maximum number of [`ZmtpConnection`]s.
pub const MAX_ZMTP: u32 = 1024;

/// A ZMTP connection of a target without libzmq.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZmtpConnection {
    /// Number of bytes read since the attach. Counts every read, even if its record is dropped.
    pub read: u64,
    /// Index of the reading process among the targets.
    pub target: u32,
    /// Maximum number of bytes to copy per read.
    pub limit: u32,
}

/// System call numbers and kernel struct offsets that the kernel side needs, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// System call numbers of `write`, `writev`, `sendto`, `sendmsg`.
    pub calls: [u32; 4],
    /// System call numbers of `read`, `readv`, `recvfrom`, `recvmsg`.
    pub reads: [u32; 4],
    /// In `struct pt_regs`: the system call number.
    pub number: u32,
    /// In `struct pt_regs`: the first three arguments, which remain valid when the call returns.
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
    /// `inode.i_ino`.
    pub inode_number: u32,
    /// `file.private_data`: a socket's `struct socket`.
    pub private: u32,
    /// `socket.sk`.
    pub sock: u32,
    /// `socket.file`.
    pub file: u32,
    /// `sock.sk_socket`.
    pub socket: u32,
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
    /// `tcp_sock.rcv_nxt`.
    pub arrived: u32,
    /// `sock.__sk_common.skc_net.net`: a `struct net`.
    pub network: u32,
    /// `net.ns.inum`.
    pub namespace: u32,
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    // Same layout as the kernel side: fields in order, without padding.
    fn raw(head: &Head, payload: &[u8]) -> Vec<u8> {
        let mut raw = Vec::new();
        for word in [head.mark, head.at_ns, head.socket, head.accepted.cast_unsigned(), head.asked] {
            raw.extend(word.to_ne_bytes());
        }
        for word in [head.from, head.captured, head.written, head.unacknowledged, head.target, head.tid] {
            raw.extend(word.to_ne_bytes());
        }
        raw.extend(head.ports.iter().flat_map(|port| port.to_ne_bytes()));
        raw.extend([head.kind, head.before, head.state, head.reserved]);
        raw.extend(payload);
        raw
    }

    proptest! {
        #[test]
        fn parses_records_of_the_kernel_side(
            words in any::<[u64; 4]>(), halves in any::<[u32; 5]>(), ports in any::<[u16; 2]>(), kind in 1_u8..=7, before: u8, state: u8,
            payload in prop::collection::vec(any::<u8>(), 0..200), slack in 0_usize..9,
        ) {
            let [at_ns, socket, accepted, asked] = words;
            let [from, written, unacknowledged, target, tid] = halves;
            let head = Head {
                mark: MARK, at_ns, socket, accepted: accepted.cast_signed(), asked, from, captured: payload.len() as u32, written,
                unacknowledged, target, tid, ports, kind, before, state, reserved: 0,
            };
            let mut bytes = raw(&head, &payload);
            prop_assert_eq!(bytes.len(), size_of::<Head>() + payload.len());
            bytes.extend(core::iter::repeat_n(0xee, slack));
            let record = Record::parse(&bytes).unwrap();
            prop_assert_eq!((record.head, record.payload, record.kind as u8), (head, &payload[..], kind));
        }

        #[test]
        fn times_of_requests_are_parsed(words in any::<[u64; 4]>(), cut in 0_usize..32) {
            let raw: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let [opened_ns, accepted_ns, arrived_ns, read_ns] = words;
            prop_assert_eq!(RequestTimes::parse(&raw), Some(RequestTimes { opened_ns, accepted_ns, arrived_ns, read_ns }));
            prop_assert_eq!(RequestTimes::parse(&raw[..cut]), None);
        }

        #[test]
        fn never_panics(raw in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Record::parse(&raw).is_none() || raw.starts_with(&MARK.to_ne_bytes()));
        }
    }
}
