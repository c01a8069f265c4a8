//! Netlink socket for `sock_diag` in the current network namespace or in that of a process.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::exact::{self, Depth, Reply};
use super::unix_diag::{self, Answer, UnixSocket};
use crate::discover::proc::{ProcDir, ReadError};

/// Maximum wait for the kernel's reply.
const PATIENCE: Duration = Duration::from_secs(2);
/// Buffer size. The kernel fills at most 32 KiB of each datagram of a dump.
const DATAGRAM: usize = 64 * 1024;

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

/// A netlink socket. It belongs to the network namespace that it was created in.
#[derive(Debug)]
pub(crate) struct Diag(OwnedFd);

impl Diag {
    /// Opens one in the current network namespace. Needs no privilege.
    pub(crate) fn here() -> Result<Self, DiagError> {
        let family = AddressFamily::NETLINK;
        let fd =
            socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(SOCK_DIAG)).map_err(DiagError::Socket)?;
        set_socket_timeout(&fd, Timeout::Recv, Some(PATIENCE)).map_err(DiagError::Socket)?;
        Ok(Self(fd))
    }

    /// Opens one in the network namespace of `process`. Needs `CAP_SYS_ADMIN` over that namespace.
    pub(crate) fn inside(process: &ProcDir) -> Result<Self, DiagError> {
        let namespace = process.open_namespace("net").map_err(DiagError::Enter)?;
        // Entering a namespace changes the thread permanently, so a temporary thread does it.
        let enter = move || {
            use std::os::fd::AsFd;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|errno| DiagError::Enter(errno.into()))?;
            Self::here()
        };
        let thread = std::thread::Builder::new().name("netns".into()).spawn(enter);
        let joined = thread.map_err(|e| DiagError::Enter(e.into()))?.join();
        joined.unwrap_or(Err(DiagError::Socket(Errno::IO)))
    }

    /// Lists listening and connected stream sockets, at most `limit`. The flag tells whether there are more.
    pub(crate) fn unix_sockets(&self, limit: usize) -> Result<(Vec<UnixSocket>, bool), DiagError> {
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.0, &unix_diag::request(), SendFlags::empty(), &kernel).map_err(DiagError::Socket)?;
        let mut sockets = Vec::new();
        let mut more = false;
        let mut buffer = vec![0; DATAGRAM];
        loop {
            let (length, _) = recv(&self.0, buffer.as_mut_slice(), RecvFlags::empty()).map_err(DiagError::Socket)?;
            match unix_diag::parse(&buffer[..length], &mut sockets) {
                Answer::More => {}
                Answer::Done => return Ok((sockets, more)),
                Answer::Refused(errno) => return Err(DiagError::Refused(Errno::from_raw_os_error(errno))),
            }
            // Read and discard the rest of the dump, so that the next request gets its own reply.
            if sockets.len() > limit {
                more = true;
                sockets.truncate(limit);
            }
        }
    }

    /// Tests whether the kernel reports Unix sockets, since it answers a query for one socket with `ENOENT` in both cases.
    pub(crate) fn has_unix(&self) -> Result<(), DiagError> {
        match self.ask(&exact::no_unix())? {
            Reply::Refused(errno) => Err(DiagError::Refused(Errno::from_raw_os_error(errno))),
            _ => Ok(()),
        }
    }

    /// Tests whether the kernel reports TCP sockets.
    pub(crate) fn has_tcp(&self) -> Result<(), DiagError> {
        match self.ask(&exact::no_tcp())? {
            Reply::Refused(errno) => Err(DiagError::NoTcp(Errno::from_raw_os_error(errno))),
            _ => Ok(()),
        }
    }

    /// Queues of one Unix socket; `None` if this namespace has no such socket.
    pub(crate) fn unix_depth(&self, inode: u32) -> Result<Option<Depth>, DiagError> {
        let request = exact::unix(inode);
        self.depth(&request, inode.into(), DiagError::Refused)
    }

    /// Queues of the TCP socket `inode`; `None` if it no longer has these addresses.
    pub(crate) fn tcp_depth(
        &self,
        inode: u64,
        (local, remote): (SocketAddr, SocketAddr),
    ) -> Result<Option<Depth>, DiagError> {
        self.depth(&exact::tcp(local, remote), inode, DiagError::NoTcp)
    }

    fn depth(&self, request: &[u8], inode: u64, refused: fn(Errno) -> DiagError) -> Result<Option<Depth>, DiagError> {
        match self.ask(request)? {
            // Without the connection, the kernel returns the listener of its port.
            Reply::Found(found, depth) => Ok((found == inode).then_some(depth)),
            Reply::Refused(errno) => match Errno::from_raw_os_error(errno) {
                Errno::NOENT => Ok(None),
                errno => Err(refused(errno)),
            },
            Reply::Empty | Reply::Malformed => Err(DiagError::Socket(Errno::BADMSG)),
        }
    }

    /// Sends a request with a reply of one datagram.
    fn ask(&self, request: &[u8]) -> Result<Reply, DiagError> {
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.0, request, SendFlags::empty(), &kernel).map_err(DiagError::Socket)?;
        let mut buffer = [0; 1024];
        let received = retry_on_intr(|| recv(&self.0, buffer.as_mut_slice(), RecvFlags::empty()));
        let (length, _) = received.map_err(DiagError::Socket)?;
        Ok(exact::parse(&buffer[..length]))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;
    use crate::discover::proc::ProcRoot;

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
        let (sockets, more) = Diag::here().unwrap().unix_sockets(100_000).unwrap();
        assert!(!more);
        let of = |ino| sockets.iter().find(|s| s.inode == ino).unwrap();
        let (sender, accepted, listener) = (inode(&sender), inode(&accepted), inode(&listener));
        assert_eq!(of(sender).peer, Some(accepted));
        assert_eq!(of(accepted).peer, Some(sender));
        assert!(of(sender).name.is_empty());
        let path = path.into_os_string().into_encoded_bytes();
        assert_eq!((&of(accepted).name, of(listener).listening), (&path, true));
        let (cut, more) = Diag::here().unwrap().unix_sockets(1).unwrap();
        assert_eq!((cut.len(), more), (1, true));
    }

    #[test]
    fn entering_the_current_namespace_gives_a_socket_or_a_reason() {
        let me = ProcRoot::new("/proc").process(std::process::id()).unwrap();
        match Diag::inside(&me) {
            Ok(diag) => assert!(diag.unix_sockets(100_000).is_ok()),
            Err(e) => assert_eq!(e, DiagError::Enter(ReadError::Denied)),
        }
    }
}
