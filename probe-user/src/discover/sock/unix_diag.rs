//! `unix_diag`, the only interface that shows the other end of a Unix connection (`linux/unix_diag.h`, Linux 3.3).

/// `NETLINK_SOCK_DIAG` message type for requests and sockets.
pub(super) const SOCK_DIAG_BY_FAMILY: u16 = 20;
pub(super) const AF_UNIX: u8 = 1;
const SOCK_STREAM: u8 = 1;

pub(super) const NLMSG_ERROR: u16 = 2;
pub(super) const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST_DUMP: u16 = 0x0001 | 0x0300;

const UDIAG_SHOW_NAME: u32 = 0x01;
const UDIAG_SHOW_PEER: u32 = 0x04;
const ATTR_NAME: u16 = 0;
const ATTR_PEER: u16 = 2;

const TCP_ESTABLISHED: u8 = 1;
pub(super) const TCP_LISTEN: u8 = 10;

pub(super) const HEADER: usize = 16;

/// A Unix stream socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnixSocket {
    pub(crate) inode: u32,
    pub(crate) listening: bool,
    pub(crate) connected: bool,
    /// A path, or `@name` for the abstract namespace; empty for the connecting side. An accepted socket has its listener's name.
    pub(crate) name: Vec<u8>,
    /// Inode of the other end.
    pub(crate) peer: Option<u32>,
}

/// Request for all listening or connected stream sockets of a network namespace.
pub(crate) fn request() -> [u8; HEADER + 24] {
    let mut message = [0; HEADER + 24];
    let length = message.len() as u32;
    message[0..4].copy_from_slice(&length.to_ne_bytes());
    message[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message[6..8].copy_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    message[16] = AF_UNIX;
    let states: u32 = 1 << TCP_ESTABLISHED | 1 << TCP_LISTEN;
    message[20..24].copy_from_slice(&states.to_ne_bytes());
    message[28..32].copy_from_slice(&(UDIAG_SHOW_NAME | UDIAG_SHOW_PEER).to_ne_bytes());
    message
}

/// Status after one datagram of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// More datagrams follow.
    More,
    /// The dump is complete.
    Done,
    /// The kernel refused with this errno (2, `ENOENT`, if the module is missing).
    Refused(i32),
}

/// Parses the sockets in one datagram of the reply. Skips truncated or malformed parts.
pub(crate) fn parse(datagram: &[u8], sockets: &mut Vec<UnixSocket>) -> Answer {
    let mut rest = datagram;
    while let (Some(length), Some(kind)) = (u32_at(rest, 0), u16_at(rest, 4)) {
        let length = length as usize;
        let Some(body) = rest.get(HEADER..length) else { break };
        match kind {
            NLMSG_DONE => return Answer::Done,
            NLMSG_ERROR => return Answer::Refused(u32_at(body, 0).map_or(0, |errno| (errno as i32).saturating_neg())),
            SOCK_DIAG_BY_FAMILY => sockets.extend(socket(body)),
            _ => {}
        }
        rest = rest.get(aligned(length)..).unwrap_or_default();
    }
    Answer::More
}

fn socket(body: &[u8]) -> Option<UnixSocket> {
    let &[AF_UNIX, SOCK_STREAM, state, ..] = body else {
        return None;
    };
    let mut socket = UnixSocket {
        inode: u32_at(body, 4)?,
        listening: state == TCP_LISTEN,
        connected: state == TCP_ESTABLISHED,
        name: Vec::new(),
        peer: None,
    };
    let mut rest = body.get(16..)?;
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let length = usize::from(length);
        let Some(value) = rest.get(4..length) else { break };
        match kind {
            ATTR_NAME => socket.name = name(value),
            ATTR_PEER => socket.peer = u32_at(value, 0).filter(|&inode| inode != 0),
            _ => {}
        }
        rest = rest.get(aligned(length)..).unwrap_or_default();
    }
    Some(socket)
}

/// Converts `sun_path`: abstract names begin with NUL and have no terminator, paths may have one.
fn name(sun_path: &[u8]) -> Vec<u8> {
    match sun_path {
        [0, rest @ ..] if !rest.is_empty() => [b"@", rest].concat(),
        path => path.iter().copied().take_while(|&b| b != 0).collect(),
    }
}

pub(super) fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER, 0);
        bytes.extend(body);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    fn body(state: u8, inode: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![AF_UNIX, SOCK_STREAM, state, 0];
        bytes.extend(inode.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(attributes.concat());
        bytes
    }

    #[test]
    fn parses_an_accepted_socket_and_the_end() {
        let accepted =
            body(TCP_ESTABLISHED, 53112, &[attribute(0, b"/tmp/tmpk3v_0qz7\0"), attribute(2, &53110u32.to_ne_bytes())]);
        let listener = body(TCP_LISTEN, 53111, &[attribute(0, b"\0abstract")]);
        let datagram = [message(20, &accepted), message(20, &listener), message(NLMSG_DONE, &[0; 4])].concat();
        let mut sockets = Vec::new();
        assert_eq!(parse(&datagram, &mut sockets), Answer::Done);
        assert_eq!(sockets[0].name, b"/tmp/tmpk3v_0qz7");
        assert_eq!((sockets[0].inode, sockets[0].peer, sockets[0].connected), (53112, Some(53110), true));
        assert_eq!((sockets[1].name.as_slice(), sockets[1].listening), (b"@abstract".as_slice(), true));
    }

    #[test]
    fn a_missing_kernel_module_is_reported_as_a_refusal() {
        let datagram = message(NLMSG_ERROR, &(-2i32).to_ne_bytes());
        assert_eq!(parse(&datagram, &mut Vec::new()), Answer::Refused(2));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            parse(&bytes, &mut Vec::new());
            socket(&bytes);
        }

        #[test]
        fn a_truncated_datagram_gives_only_complete_sockets(cut in 0usize..200) {
            let one = body(TCP_ESTABLISHED, 7, &[attribute(0, b"/tmp/x"), attribute(2, &8u32.to_ne_bytes())]);
            let datagram = [message(20, &one), message(20, &one)].concat();
            let mut sockets = Vec::new();
            parse(&datagram[..cut.min(datagram.len())], &mut sockets);
            for socket in sockets {
                prop_assert_eq!((socket.inode, socket.peer), (7, Some(8)));
            }
        }
    }
}
