//! Queries for the queues of one socket: `unix_diag` by inode and `inet_diag` by addresses (`linux/unix_diag.h`, `linux/inet_diag.h`).

use std::net::{IpAddr, SocketAddr};

use super::unix_diag::{AF_UNIX, HEADER, NLMSG_DONE, NLMSG_ERROR, SOCK_DIAG_BY_FAMILY, TCP_LISTEN};
use super::unix_diag::{aligned, u16_at, u32_at};

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;

const NLM_F_REQUEST: u16 = 0x0001;
const NLM_F_DUMP: u16 = 0x0300;

const UDIAG_SHOW_RQLEN: u32 = 0x10;
const ATTR_RQLEN: u16 = 4;
/// Matches a socket whatever its cookie (`INET_DIAG_NOCOOKIE`).
const NO_COOKIE: [u8; 8] = [0xff; 8];

/// States after the peer's FIN, which takes a sequence number but is no byte to read: `CLOSE_WAIT`, `LAST_ACK`, `CLOSING`.
const PEER_CLOSED: [u8; 3] = [8, 9, 11];

/// Amount of data queued at one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Bytes received and not read yet (`SIOCINQ`); `None` on a listening socket.
    pub receive_bytes: Option<u64>,
    /// Bytes sent and not yet read or acknowledged (`SIOCOUTQ`); `None` on a listening socket. On a Unix socket this includes the
    /// kernel's overhead.
    pub send_bytes: Option<u64>,
}

const UNIX_REQUEST: usize = HEADER + 24;
const TCP_REQUEST: usize = HEADER + 56;

fn header<const N: usize>(flags: u16) -> [u8; N] {
    let mut message = [0; N];
    message[0..4].copy_from_slice(&(N as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message[6..8].copy_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
    message
}

/// Request for the queues of the Unix socket `inode`.
pub(crate) fn unix(inode: u32) -> [u8; UNIX_REQUEST] {
    let mut message = header(0);
    message[16] = AF_UNIX;
    message[24..28].copy_from_slice(&inode.to_ne_bytes());
    message[28..32].copy_from_slice(&UDIAG_SHOW_RQLEN.to_ne_bytes());
    message[32..40].copy_from_slice(&NO_COOKIE);
    message
}

/// Dump request that no Unix socket matches. Shows whether the kernel has `unix_diag`.
pub(crate) fn no_unix() -> [u8; UNIX_REQUEST] {
    let mut message = header(NLM_F_DUMP);
    message[16] = AF_UNIX;
    message
}

/// Request for the TCP socket with these addresses. Both have the same family.
pub(crate) fn tcp(local: SocketAddr, remote: SocketAddr) -> [u8; TCP_REQUEST] {
    let mut message = header(0);
    message[16] = if local.is_ipv4() { AF_INET } else { AF_INET6 };
    message[17] = IPPROTO_TCP;
    message[24..26].copy_from_slice(&local.port().to_be_bytes());
    message[26..28].copy_from_slice(&remote.port().to_be_bytes());
    address(&mut message[28..44], local.ip());
    address(&mut message[44..60], remote.ip());
    message[64..72].copy_from_slice(&NO_COOKIE);
    message
}

fn address(field: &mut [u8], ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => field[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => field.copy_from_slice(&ip.octets()),
    }
}

/// Dump request that no TCP socket matches. Shows whether the kernel has `tcp_diag`.
pub(crate) fn no_tcp() -> [u8; TCP_REQUEST] {
    let mut message = header(NLM_F_DUMP);
    message[16] = AF_INET;
    message[17] = IPPROTO_TCP;
    message
}

/// Reply to one of these requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Inode and queues of the socket.
    Found(u64, Depth),
    /// The dump is complete and no socket matched.
    Empty,
    /// The kernel refused with this errno (2, `ENOENT`, if there is no such socket or the module is missing).
    Refused(i32),
    /// Truncated, or not a reply to such a request.
    Malformed,
}

/// Parses the datagram with the reply.
pub(crate) fn parse(datagram: &[u8]) -> Reply {
    let message = u32_at(datagram, 0).zip(u16_at(datagram, 4));
    let body = message.and_then(|(length, kind)| Some((kind, datagram.get(HEADER..length as usize)?)));
    match body {
        Some((NLMSG_ERROR | NLMSG_DONE, body)) => match u32_at(body, 0).map_or(0, |errno| errno as i32) {
            errno if errno < 0 => Reply::Refused(errno.saturating_neg()),
            _ => Reply::Empty,
        },
        Some((SOCK_DIAG_BY_FAMILY, body)) => {
            let found = match body.first() {
                Some(&AF_UNIX) => unix_depth(body),
                Some(&(AF_INET | AF_INET6)) => tcp_depth(body),
                _ => None,
            };
            found.map_or(Reply::Malformed, |(inode, depth)| Reply::Found(inode, depth))
        }
        _ => Reply::Malformed,
    }
}

fn unix_depth(body: &[u8]) -> Option<(u64, Depth)> {
    let (state, inode) = (*body.get(2)?, u32_at(body, 4)?);
    let mut rest = body.get(16..)?;
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let value = rest.get(4..length.into())?;
        if kind == ATTR_RQLEN {
            let depth = depth(state, u32_at(value, 0)?, u32_at(value, 4)?);
            return Some((inode.into(), depth));
        }
        rest = rest.get(aligned(length.into())..).unwrap_or_default();
    }
    None
}

fn tcp_depth(body: &[u8]) -> Option<(u64, Depth)> {
    let (state, receive, send, inode) = (*body.get(1)?, u32_at(body, 56)?, u32_at(body, 60)?, u32_at(body, 68)?);
    let fin = u32::from(PEER_CLOSED.contains(&state));
    Some((inode.into(), depth(state, receive.saturating_sub(fin), send)))
}

/// On a listening socket, the same fields count connections.
fn depth(state: u8, receive: u32, send: u32) -> Depth {
    let bytes = |bytes: u32| (state != TCP_LISTEN).then_some(bytes.into());
    Depth { receive_bytes: bytes(receive), send_bytes: bytes(send) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tcp_reply(state: u8, receive: u32) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + 72];
        bytes[0..4].copy_from_slice(&((HEADER + 72) as u32).to_ne_bytes());
        bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        bytes[HEADER..HEADER + 2].copy_from_slice(&[AF_INET, state]);
        bytes[HEADER + 56..HEADER + 60].copy_from_slice(&receive.to_ne_bytes());
        bytes[HEADER + 68..HEADER + 72].copy_from_slice(&77u32.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_fin_is_not_counted_as_a_byte_and_a_listener_has_no_queue() {
        let received = |state, receive| match parse(&tcp_reply(state, receive)) {
            Reply::Found(77, depth) => depth.receive_bytes,
            other => panic!("{other:?}"),
        };
        assert_eq!(received(1, 5001), Some(5001));
        assert_eq!(received(8, 5001), Some(5000));
        assert_eq!(received(8, 0), Some(0));
        assert_eq!(received(TCP_LISTEN, 3), None);
    }

    #[test]
    fn a_dump_may_end_with_an_error() {
        let done = |errno: i32| {
            let mut bytes = vec![0; HEADER];
            bytes[0..4].copy_from_slice(&20u32.to_ne_bytes());
            bytes[4..6].copy_from_slice(&NLMSG_DONE.to_ne_bytes());
            bytes.extend(errno.to_ne_bytes());
            parse(&bytes)
        };
        assert_eq!((done(0), done(-2)), (Reply::Empty, Reply::Refused(2)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            parse(&bytes);
            unix_depth(&bytes);
            tcp_depth(&bytes);
        }
    }
}
