//! Netlink socket for `sock_diag` in the current network namespace or in that of a process. It alone shows the other end of a Unix
//! connection and the queues of one socket (Linux 3.3).

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NetlinkMessage, NlasIterator, Parseable as _,
    parse_i32,
};
use netlink_packet_sock_diag::inet::{self, InetRequest, InetResponseHeader, SocketId};
use netlink_packet_sock_diag::unix::nlas::{Nla, UnixDiagName};
use netlink_packet_sock_diag::unix::{ShowFlags, StateFlags, UnixRequest, UnixResponseHeader};
use netlink_packet_sock_diag::{
    AF_INET, AF_INET6, AF_UNIX, IPPROTO_TCP, SOCK_DIAG_BY_FAMILY, SOCK_STREAM, SockDiagMessage, TCP_CLOSE_WAIT,
    TCP_CLOSING, TCP_ESTABLISHED, TCP_LAST_ACK, TCP_LISTEN,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::helper;
use crate::proc::net::UnixSocket;
use crate::proc::{Listing, ProcDir, ReadError};

/// Maximum wait for the kernel's reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// Buffer size. The kernel fills at most 32 KiB of each datagram of a dump.
const DATAGRAM_BYTES: usize = 64 * 1024;
/// Buffer size for a reply about one socket, whose description is far shorter.
const ONE_REPLY_BYTES: usize = 1024;
/// Inode in a request for all Unix sockets.
const ANY_INODE: u32 = 0;
/// Matches a socket whatever its cookie (`INET_DIAG_NOCOOKIE`).
const NO_COOKIE: [u8; 8] = [0xff; 8];
/// States after the peer's FIN, which takes a sequence number but is no byte to read.
const PEER_CLOSED: [u8; 3] = [TCP_CLOSE_WAIT, TCP_LAST_ACK, TCP_CLOSING];

/// Error of listing the sockets of a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiagError {
    /// Entering another network namespace was refused.
    #[error("cannot enter its network namespace ({0})")]
    Enter(ReadError),
    /// A netlink socket cannot be used here.
    #[error("cannot use a netlink sock_diag socket ({0})")]
    Socket(Errno),
    /// The kernel refused the request.
    #[error("the kernel has no unix_diag ({0})")]
    Refused(Errno),
    /// The kernel refused the request for TCP sockets.
    #[error("the kernel has no tcp_diag ({0})")]
    NoTcp(Errno),
}

/// Amount of data queued at one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueDepth {
    /// Bytes received and not read yet (`SIOCINQ`); `None` on a listening socket.
    pub receive_bytes: Option<u64>,
    /// Bytes sent and not yet read or acknowledged (`SIOCOUTQ`); `None` on a listening socket. On a Unix socket this includes the
    /// kernel's overhead.
    pub send_bytes: Option<u64>,
}

/// Addresses of a TCP socket. Both have the same family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpEnds {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
}

/// A listening TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpListenerSocket {
    pub(crate) port: u16,
    pub(crate) inode: u64,
}

/// A message of the kernel's reply.
enum DiagReply<'a> {
    /// Description of a socket.
    Socket(&'a [u8]),
    /// The dump is complete.
    Done,
    /// The kernel refused (with `ENOENT` if there is no such socket or the module is missing).
    Refused(Errno),
}

/// A netlink socket. It belongs to the network namespace that it was created in.
#[derive(Debug)]
pub(crate) struct DiagSocket {
    netlink: OwnedFd,
}

impl DiagSocket {
    /// Opens a netlink socket in the current network namespace. Needs no privilege.
    pub(crate) fn open_here() -> Result<Self, DiagError> {
        let netlink = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(SOCK_DIAG))
            .map_err(DiagError::Socket)?;
        set_socket_timeout(&netlink, Timeout::Recv, Some(REPLY_TIMEOUT)).map_err(DiagError::Socket)?;
        Ok(Self { netlink })
    }

    /// Opens a netlink socket in the network namespace of `process`. Needs `CAP_SYS_ADMIN` over that namespace if it is not the current
    /// one.
    pub(crate) fn open_for_namespace_of(process: &ProcDir) -> Result<Self, DiagError> {
        let own_namespace = std::fs::metadata("/proc/self/ns/net").map(|file| file.ino()).ok();
        let namespace = process.network_namespace_inode().map_err(DiagError::Enter)?;
        if own_namespace == Some(namespace) { Self::open_here() } else { Self::open_in_namespace(process) }
    }

    /// Opens a socket that answers for the network namespace of the process. The helper process opens it where one runs, because only the
    /// helper may enter namespaces.
    fn open_in_namespace(process: &ProcDir) -> Result<Self, DiagError> {
        if let Some(helper) = helper::connected_helper() {
            return match helper.open_diag_socket(process.pid) {
                Ok(netlink) => Ok(Self { netlink }),
                // Whatever the reason, this process may not enter the namespace itself.
                Err(_) => Err(DiagError::Enter(ReadError::Denied)),
            };
        }
        Self::open_on_temporary_thread(process.open_network_namespace().map_err(DiagError::Enter)?)
    }

    /// Opens a socket in the network namespace of a descriptor. A temporary thread does it, because entering a namespace changes the
    /// thread permanently.
    fn open_on_temporary_thread(namespace: OwnedFd) -> Result<Self, DiagError> {
        let thread = std::thread::Builder::new().name("netns".into()).spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|errno| DiagError::Enter(errno.into()))?;
            Self::open_here()
        });
        let joined = thread.map_err(|error| DiagError::Enter(error.into()))?.join();
        // An error means that the thread has panicked.
        joined.unwrap_or(Err(DiagError::Socket(Errno::IO)))
    }

    /// Its descriptor, for another process.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.netlink.as_fd()
    }

    /// Lists listening and connected stream sockets, at most `max_sockets`.
    pub(crate) fn list_unix_sockets(&self, max_sockets: usize) -> Result<Listing<UnixSocket>, DiagError> {
        let states = StateFlags::ESTABLISHED | StateFlags::LISTEN;
        let request = unix_request(ANY_INODE, states, ShowFlags::NAME | ShowFlags::PEER);
        self.dump_sockets(request, max_sockets, parse_unix_socket, DiagError::Refused)
    }

    /// Lists listening TCP sockets of both families, at most `max_per_family` of each. The kernel does not walk its table of connections
    /// for them.
    pub(crate) fn list_tcp_listeners(&self, max_per_family: usize) -> Result<Vec<TcpListenerSocket>, DiagError> {
        let mut listeners = Vec::new();
        for (family, any_socket) in [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())] {
            let request = tcp_request(family, any_socket, inet::StateFlags::LISTEN);
            listeners.extend(self.dump_sockets(request, max_per_family, parse_tcp_listener, DiagError::NoTcp)?.items);
        }
        Ok(listeners)
    }

    /// Lists the sockets that match the request and that `parse` accepts, at most `max_sockets`. If the kernel refuses the request,
    /// `to_refusal_error` makes the error from its number.
    fn dump_sockets<T>(
        &self,
        request: SockDiagMessage,
        max_sockets: usize,
        parse: fn(&[u8]) -> Option<T>,
        to_refusal_error: fn(Errno) -> DiagError,
    ) -> Result<Listing<T>, DiagError> {
        self.send_request(request, NLM_F_DUMP)?;
        let mut listing = Listing { items: Vec::new(), is_truncated: false };
        let mut buffer = vec![0; DATAGRAM_BYTES];
        loop {
            for reply in parse_replies(self.receive_datagram(&mut buffer)?) {
                match reply {
                    DiagReply::Socket(body) => listing.items.extend(parse(body)),
                    DiagReply::Done => return Ok(listing),
                    DiagReply::Refused(errno) => return Err(to_refusal_error(errno)),
                }
            }
            // The rest of the dump is read and dropped. Otherwise it would be read as the reply to the next request.
            if listing.items.len() > max_sockets {
                listing.is_truncated = true;
                listing.items.truncate(max_sockets);
            }
        }
    }

    /// Tests whether the kernel reports Unix sockets. A query for one socket cannot show that, because `ENOENT` also means that the
    /// kernel's module is missing. The test is a dump of the sockets in no state, which is empty.
    pub(crate) fn check_unix_support(&self) -> Result<(), DiagError> {
        let no_sockets = unix_request(ANY_INODE, StateFlags::empty(), ShowFlags::empty());
        self.query_single_reply(no_sockets, NLM_F_DUMP, DiagError::Refused, &mut [0; ONE_REPLY_BYTES])?;
        Ok(())
    }

    /// Tests whether the kernel reports TCP sockets, by a dump of those in no state.
    pub(crate) fn check_tcp_support(&self) -> Result<(), DiagError> {
        let no_sockets = tcp_request(AF_INET, SocketId::new_v4(), inet::StateFlags::empty());
        self.query_single_reply(no_sockets, NLM_F_DUMP, DiagError::NoTcp, &mut [0; ONE_REPLY_BYTES])?;
        Ok(())
    }

    /// Queues of one Unix socket; `None` if this namespace has no such socket.
    pub(crate) fn query_unix_depth(&self, inode: u32) -> Result<Option<QueueDepth>, DiagError> {
        let request = unix_request(inode, StateFlags::empty(), ShowFlags::RQLEN);
        self.query_depth(request, inode.into(), DiagError::Refused)
    }

    /// Queues of the TCP socket `inode`; `None` if it no longer has these addresses.
    pub(crate) fn query_tcp_depth(
        &self,
        inode: u64,
        TcpEnds { local, remote }: TcpEnds,
    ) -> Result<Option<QueueDepth>, DiagError> {
        let socket = SocketId {
            source_port: local.port(),
            destination_port: remote.port(),
            source_address: local.ip(),
            destination_address: remote.ip(),
            interface_id: 0,
            cookie: NO_COOKIE,
        };
        let family = if local.is_ipv4() { AF_INET } else { AF_INET6 };
        // A query for one socket ignores the states, which select the sockets of a dump.
        let request = tcp_request(family, socket, inet::StateFlags::empty());
        self.query_depth(request, inode, DiagError::NoTcp)
    }

    /// Asks for the queues of one socket. `None` if it does not exist any more. If the kernel refuses the request, `to_refusal_error` makes
    /// the error from its number.
    fn query_depth(
        &self,
        request: SockDiagMessage,
        inode: u64,
        to_refusal_error: fn(Errno) -> DiagError,
    ) -> Result<Option<QueueDepth>, DiagError> {
        let mut buffer = [0; ONE_REPLY_BYTES];
        let no_flags = 0;
        let body = match self.query_single_reply(request, no_flags, to_refusal_error, &mut buffer) {
            Ok(body) => body,
            // There is no such socket. The kernel answers the same if it cannot report sockets at all, which `check_unix_support` tests.
            Err(error) if error == to_refusal_error(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error),
        };
        let queues = body.and_then(SocketQueues::parse).ok_or(DiagError::Socket(Errno::BADMSG))?;
        // If the connection is closed, the kernel describes the listener of its port instead.
        if queues.inode != inode {
            return Ok(None);
        }
        Ok(Some(queues.depth))
    }

    /// Sends a request whose reply is one datagram. Returns the description of a socket in the reply, or `None` if it has none. `flags` are
    /// those of [`Self::send_request`]. If the kernel refuses the request, `to_refusal_error` makes the error from its number.
    fn query_single_reply<'b>(
        &self,
        request: SockDiagMessage,
        flags: u16,
        to_refusal_error: fn(Errno) -> DiagError,
        buffer: &'b mut [u8],
    ) -> Result<Option<&'b [u8]>, DiagError> {
        self.send_request(request, flags)?;
        match parse_replies(self.receive_datagram(buffer)?).next() {
            Some(DiagReply::Refused(errno)) => Err(to_refusal_error(errno)),
            Some(DiagReply::Socket(body)) => Ok(Some(body)),
            Some(DiagReply::Done) | None => Ok(None),
        }
    }

    /// Sends a request to the kernel. `flags` are netlink flags besides that of every request, for example that of a dump.
    fn send_request(&self, request: SockDiagMessage, flags: u16) -> Result<(), DiagError> {
        let mut message = NetlinkMessage::from(request);
        message.header.flags = NLM_F_REQUEST | flags;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        let kernel_port = 0;
        let no_multicast_group = 0;
        let kernel = SocketAddrNetlink::new(kernel_port, no_multicast_group);
        sendto(&self.netlink, &bytes, SendFlags::empty(), &kernel).map_err(DiagError::Socket)?;
        Ok(())
    }

    /// Receives the next part of the kernel's answer into the buffer.
    fn receive_datagram<'b>(&self, buffer: &'b mut [u8]) -> Result<&'b [u8], DiagError> {
        let received = retry_on_intr(|| recv(&self.netlink, &mut *buffer, RecvFlags::empty()));
        let (length, _) = received.map_err(DiagError::Socket)?;
        Ok(&buffer[..length])
    }
}

/// Request for the Unix socket `inode`. In a dump, `inode` is 0 and the sockets in these states are meant.
fn unix_request(inode: u32, state_flags: StateFlags, show_flags: ShowFlags) -> SockDiagMessage {
    SockDiagMessage::UnixRequest(UnixRequest { state_flags, inode, show_flags, cookie: NO_COOKIE })
}

/// Request for the TCP socket `socket_id`, or for a dump of all sockets in these states. In a dump, `socket_id` has no addresses.
fn tcp_request(family: u8, socket_id: SocketId, states: inet::StateFlags) -> SockDiagMessage {
    SockDiagMessage::InetRequest(InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: inet::ExtensionFlags::empty(),
        states,
        socket_id,
    })
}

/// Messages in a datagram, without those of other types. Ends at a truncated or malformed one.
fn parse_replies(mut datagram: &[u8]) -> impl Iterator<Item = DiagReply<'_>> {
    let messages = std::iter::from_fn(move || {
        let message = NetlinkBuffer::new_checked(datagram).ok()?;
        // The next message begins at a multiple of four bytes.
        datagram = datagram.get((message.length() as usize).next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    });
    messages.filter_map(|message| DiagReply::parse(message.message_type(), message.payload()))
}

impl<'a> DiagReply<'a> {
    /// Parses a message by its type. `None` if it is of another type.
    fn parse(message_type: u16, body: &'a [u8]) -> Option<Self> {
        match message_type {
            SOCK_DIAG_BY_FAMILY => Some(Self::Socket(body)),
            NLMSG_DONE | NLMSG_ERROR => {
                // Messages of both types begin with 0 for success, or with a negative error number.
                let errno = body.get(..4).and_then(|errno| parse_i32(errno).ok()).unwrap_or(0);
                if errno < 0 {
                    return Some(Self::Refused(Errno::from_raw_os_error(errno.saturating_neg())));
                }
                Some(Self::Done)
            }
            _ => None,
        }
    }
}

/// Parses the description of a Unix stream socket. `None` if it is neither listening nor connected. Skips malformed attributes.
fn parse_unix_socket(body: &[u8]) -> Option<UnixSocket> {
    let header = parse_unix_header(body)?;
    if header.kind != SOCK_STREAM {
        return None;
    }
    // The kernel gives Unix sockets the numbers of TCP states.
    let is_listening = match header.state {
        TCP_LISTEN => true,
        TCP_ESTABLISHED => false,
        _ => return None,
    };
    let mut socket = UnixSocket { inode: header.inode, is_listening, name: Vec::new(), peer: None };
    for attribute in parse_unix_attributes(body) {
        match attribute {
            Nla::Name(UnixDiagName::Pathname(path)) => socket.name = path.into_encoded_bytes(),
            // Abstract names are shown with `@` in front.
            Nla::Name(UnixDiagName::Abstract(name)) if !name.is_empty() => socket.name = [b"@", &*name].concat(),
            // Inode 0 stands for no peer.
            Nla::Peer(inode) => socket.peer = (inode != 0).then_some(inode),
            _ => {}
        }
    }
    Some(socket)
}

/// Parses the description of a listening TCP socket.
fn parse_tcp_listener(body: &[u8]) -> Option<TcpListenerSocket> {
    let header = InetResponseHeader::parse(body).ok().filter(|header| header.state == TCP_LISTEN)?;
    Some(TcpListenerSocket { port: header.socket_id.source_port, inode: header.inode.into() })
}

/// The queues of a socket, as the kernel describes it.
struct SocketQueues {
    inode: u64,
    depth: QueueDepth,
}

impl SocketQueues {
    /// Parses the queues in the description of a Unix or TCP socket. `None` if it is malformed or lacks them.
    fn parse(body: &[u8]) -> Option<Self> {
        // A Unix socket has its queues in an attribute, a TCP socket in the header.
        if let Some(header) = parse_unix_header(body) {
            let (receive, send) = parse_unix_attributes(body).find_map(|attribute| match attribute {
                Nla::ReceiveQueueLength(receive, send) => Some((receive, send)),
                _ => None,
            })?;
            return Some(Self::from_kernel_counts(header.inode, header.state, receive, send));
        }
        let tcp = InetResponseHeader::parse(body).ok()?;
        // After the peer has closed, the kernel counts its FIN as a byte of the queue.
        let fin_bytes = u32::from(PEER_CLOSED.contains(&tcp.state));
        Some(Self::from_kernel_counts(tcp.inode, tcp.state, tcp.recv_queue.saturating_sub(fin_bytes), tcp.send_queue))
    }

    /// Creates the queues from the kernel's two numbers for a socket. `state` decides whether they are bytes.
    fn from_kernel_counts(inode: u32, state: u8, receive_bytes: u32, send_bytes: u32) -> Self {
        // On a listening socket, the same fields count connections.
        let depth = if state == TCP_LISTEN {
            QueueDepth { receive_bytes: None, send_bytes: None }
        } else {
            QueueDepth { receive_bytes: Some(receive_bytes.into()), send_bytes: Some(send_bytes.into()) }
        };
        Self { inode: inode.into(), depth }
    }
}

/// Header of an answer about a Unix socket; `None` if the answer is about a socket of another family, or malformed.
fn parse_unix_header(body: &[u8]) -> Option<UnixResponseHeader> {
    if body.first() != Some(&AF_UNIX) {
        return None;
    }
    UnixResponseHeader::parse(body).ok()
}

/// Attributes behind the header of an answer about a Unix socket.
fn parse_unix_attributes(body: &[u8]) -> impl Iterator<Item = Nla> {
    // Length of `struct unix_diag_msg`.
    const HEADER: usize = 16;
    let attributes = NlasIterator::new(body.get(HEADER..).unwrap_or_default()).map_while(Result::ok);
    attributes.filter_map(|attribute| Nla::parse(&attribute).ok())
}

/// Parses a datagram as the reply to every kind of request. Returns the number of sockets in it.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn count_parsed_sockets(datagram: &[u8]) -> usize {
    let mut sockets = 0;
    for reply in parse_replies(datagram) {
        let DiagReply::Socket(body) = reply else { continue };
        // Every body goes through both parsers.
        let has_queues = SocketQueues::parse(body).is_some();
        let is_unix = parse_unix_socket(body).is_some();
        if has_queues || is_unix {
            sockets += 1;
        }
    }
    sockets
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    use netlink_packet_core::Emitable as _;
    use netlink_packet_sock_diag::unix::UnixResponse;
    use proptest::prelude::*;

    use super::*;

    fn inode(socket: impl std::os::fd::AsFd) -> u32 {
        let file = std::fs::File::from(socket.as_fd().try_clone_to_owned().unwrap());
        file.metadata().unwrap().ino() as u32
    }

    #[test]
    fn the_kernel_reports_the_peer_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer_ipc");
        let listener = UnixListener::bind(&path).unwrap();
        let sender = UnixStream::connect(&path).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let abstract_name = format!("tokengap-test-{}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let unnamed_file = UnixListener::bind_addr(&address).unwrap();
        let Listing { items: sockets, is_truncated } =
            DiagSocket::open_here().unwrap().list_unix_sockets(100_000).unwrap();
        assert!(!is_truncated);
        let of = |ino| sockets.iter().find(|s| s.inode == ino).unwrap();
        let (sender, accepted, listener) = (inode(&sender), inode(&accepted), inode(&listener));
        assert_eq!(of(sender).peer, Some(accepted));
        assert_eq!(of(accepted).peer, Some(sender));
        assert!(of(sender).name.is_empty());
        let path = path.into_os_string().into_encoded_bytes();
        assert_eq!((&of(accepted).name, of(listener).is_listening), (&path, true));
        assert_eq!(of(inode(&unnamed_file)).name, format!("@{abstract_name}").into_bytes());
        let cut = DiagSocket::open_here().unwrap().list_unix_sockets(1).unwrap();
        assert_eq!((cut.items.len(), cut.is_truncated), (1, true));
    }

    #[test]
    fn entering_the_current_namespace_gives_a_socket_or_a_reason() {
        let me = ProcDir::open(std::process::id()).unwrap();
        match DiagSocket::open_in_namespace(&me) {
            Ok(diag) => assert!(diag.list_unix_sockets(100_000).is_ok()),
            Err(e) => assert_eq!(e, DiagError::Enter(ReadError::Denied)),
        }
    }

    #[test]
    fn a_fin_is_not_counted_as_a_byte_and_a_listener_has_no_queue() {
        let received = |state, recv_queue| {
            let socket_id = SocketId::new_v4();
            let (family, timer, uid, inode) = (AF_INET, None, 0, 77);
            let header = InetResponseHeader { family, state, timer, socket_id, recv_queue, send_queue: 0, uid, inode };
            let mut body = vec![0; header.buffer_len()];
            header.emit(&mut body);
            let found = SocketQueues::parse(&body).unwrap();
            assert_eq!(found.inode, 77);
            found.depth.receive_bytes
        };
        assert_eq!(received(TCP_ESTABLISHED, 5001), Some(5001));
        assert_eq!(received(TCP_CLOSE_WAIT, 5001), Some(5000));
        assert_eq!(received(TCP_CLOSE_WAIT, 0), Some(0));
        assert_eq!(received(TCP_LISTEN, 3), None);
    }

    #[test]
    fn a_dump_may_end_with_an_error_and_a_missing_module_is_a_refusal() {
        let refusal = |kind: u16, errno: i32| {
            let mut datagram = [0; 20];
            datagram[0..4].copy_from_slice(&20_u32.to_ne_bytes());
            datagram[4..6].copy_from_slice(&kind.to_ne_bytes());
            datagram[16..20].copy_from_slice(&errno.to_ne_bytes());
            match parse_replies(&datagram).next().unwrap() {
                DiagReply::Refused(errno) => Some(errno),
                DiagReply::Done => None,
                DiagReply::Socket(_) => panic!("no socket"),
            }
        };
        assert_eq!((refusal(NLMSG_DONE, 0), refusal(NLMSG_DONE, -2)), (None, Some(Errno::NOENT)));
        assert_eq!(refusal(NLMSG_ERROR, -2), Some(Errno::NOENT));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            count_parsed_sockets(&bytes);
            let _ = (parse_unix_socket(&bytes), SocketQueues::parse(&bytes));
        }

        #[test]
        fn a_truncated_datagram_gives_only_complete_sockets(cut in 0usize..200) {
            let header = UnixResponseHeader { kind: SOCK_STREAM, state: TCP_ESTABLISHED, inode: 7, cookie: [0; 8] };
            let nlas = [Nla::Name(UnixDiagName::Pathname("/tmp/x".into())), Nla::Peer(8)].into_iter().collect();
            let mut message = NetlinkMessage::from(SockDiagMessage::UnixResponse(Box::new(UnixResponse { header, nlas })));
            message.finalize();
            let mut one = vec![0; message.buffer_len()];
            message.serialize(&mut one);
            let datagram = [&*one, &one].concat();
            let complete = UnixSocket { inode: 7, is_listening: false, name: b"/tmp/x".to_vec(), peer: Some(8) };
            let cut = cut.min(datagram.len());
            let sockets: Vec<_> = parse_replies(&datagram[..cut]).filter_map(|reply| match reply {
                DiagReply::Socket(body) => parse_unix_socket(body),
                _ => None,
            }).collect();
            prop_assert_eq!(sockets, vec![complete; cut / one.len()]);
        }
    }
}
