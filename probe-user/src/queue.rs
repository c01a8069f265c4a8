//! Bytes in the kernel queues of a process's sockets, without eBPF and without the process's descriptors.
//!
//! The kernel's socket diagnostics (`sock_diag`) return exact byte counts. A Unix socket is identified by its inode, a TCP socket by its
//! addresses. A query needs no privilege in the current network namespace; opening another namespace needs `SYS_ADMIN`. These queues are
//! only a part of a hop's queue, since libzmq drains them into its own.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use adapter::discover::End;

use crate::discover::diag_socket::{DiagSocket, TcpEnds};
use crate::discover::{DiagError, ReadError};
use crate::proc::net::{self, TcpState};
use crate::proc::{ProcDir, SocketDescriptor};
use crate::process_files::MAX_DESCRIPTORS;

pub use crate::discover::diag_socket::QueueDepth;

/// Maximum number of TCP sockets of a network namespace that are searched.
const MAX_TCP_SOCKETS: usize = 262_144;

/// Error of reading a socket's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The process's network namespace cannot be identified.
    #[error("cannot enter the network namespace of process {0}: {1}; run as its owner or with CAP_SYS_PTRACE")]
    Namespace(u32, ReadError),
    /// The namespace's TCP sockets cannot be listed.
    #[error("cannot list the TCP sockets of process {0}: {1}")]
    List(u32, ReadError),
    /// The kernel cannot be asked about the sockets of the process.
    #[error("sockets of process {0}: {1}{remedy}", remedy = diag_error_remedy(*.1))]
    Diag(u32, DiagError),
    /// The process holds this socket, which the kernel does not report in its network namespace.
    #[error(
        "socket {1} of process {0} was not found in the process's network namespace; it belongs to another one or is disconnected"
    )]
    Elsewhere(u32, u64),
}

/// Remedy for an error, as the end of its message. Empty if there is none.
fn diag_error_remedy(error: DiagError) -> &'static str {
    match error {
        DiagError::Enter(ReadError::Denied) => "; run with CAP_SYS_ADMIN",
        _ => "",
    }
}

#[derive(Clone, Copy, Debug)]
enum SocketQuery {
    /// A Unix socket in this network namespace.
    Unix { namespace: u64, inode: u32 },
    /// A TCP socket in this network namespace.
    Tcp { namespace: u64, ends: TcpEnds },
    /// The socket is closed.
    Closed,
}

/// Reader of the queues of sockets in any number of processes.
#[derive(Debug, Default)]
pub struct Queues {
    /// By network namespace: the netlink socket, or why there is none.
    namespaces: HashMap<u64, Result<DiagSocket, DiagError>>,
    /// Result of finding each socket.
    sockets: HashMap<End, Result<SocketQuery, QueueError>>,
    /// Addresses of the TCP sockets of one network namespace by inode, as last listed. Listing takes milliseconds, and a process may have
    /// hundreds of sockets.
    listed: ListedSockets,
}

#[derive(Debug, Default)]
struct ListedSockets {
    namespace: u64,
    ends_by_inode: HashMap<u64, TcpEnds>,
}

impl Queues {
    /// Forgets the sockets that are no longer used, and those that could not be read, so that they are tried again.
    pub fn retain_sockets(&mut self, is_used: impl Fn(&End) -> bool) {
        self.sockets.retain(|socket, found| found.is_ok() && is_used(socket));
        // A netlink socket is closed once no socket of its namespace is used.
        let sockets = &self.sockets;
        self.namespaces.retain(|&namespace, opened| {
            opened.is_ok() && sockets.values().flatten().any(|query| query.namespace() == Some(namespace))
        });
    }

    /// Reads the number of queued bytes at `socket`. `None` if it is closed. The first call for a socket searches for it, which takes
    /// longer for TCP. Later calls use the result of that search, even if it was an error.
    pub fn read_queue_depth(&mut self, socket: End) -> Result<Option<QueueDepth>, QueueError> {
        // The namespace and the addresses by which the kernel is asked about this socket.
        let query = self.known_or_found_query(socket)?;
        // Only a closed socket has no namespace.
        let Some(namespace) = query.namespace() else { return Ok(None) };
        match self.ask_queue_depth(query, socket.inode) {
            Ok(Some(depth)) => Ok(Some(depth)),
            // The socket is closed. That is remembered, so that it is not searched for again.
            Ok(None) => {
                self.sockets.insert(socket, Ok(SocketQuery::Closed));
                Ok(None)
            }
            Err(error) => {
                // Closes the netlink socket, so that a late reply cannot be read as the reply to the next request.
                self.namespaces.remove(&namespace);
                let failed = QueueError::Diag(socket.pid, error);
                self.sockets.insert(socket, Err(failed));
                Err(failed)
            }
        }
    }

    /// How to ask for the queues of a socket. Searches for the socket at the first call, and remembers the result, even an error.
    fn known_or_found_query(&mut self, socket: End) -> Result<SocketQuery, QueueError> {
        if let Some(known) = self.sockets.get(&socket) {
            return *known;
        }
        let found = self.find_query_of_socket(socket);
        self.sockets.insert(socket, found);
        found
    }

    /// Asks the kernel for the queues of a socket. `None` if it is closed. Only a query for a TCP socket uses `tcp_inode`, its inode.
    fn ask_queue_depth(&self, query: SocketQuery, tcp_inode: u64) -> Result<Option<QueueDepth>, DiagError> {
        match query {
            SocketQuery::Unix { namespace, inode } => self.diag_socket(namespace)?.query_unix_depth(inode),
            SocketQuery::Tcp { namespace, ends } => self.diag_socket(namespace)?.query_tcp_depth(tcp_inode, ends),
            SocketQuery::Closed => Ok(None),
        }
    }

    /// The netlink socket of a network namespace, or why there is none.
    fn diag_socket(&self, namespace: u64) -> Result<&DiagSocket, DiagError> {
        match self.namespaces.get(&namespace) {
            Some(Ok(diag)) => Ok(diag),
            Some(Err(error)) => Err(*error),
            // It was closed after an error of another socket.
            None => Err(DiagError::Enter(ReadError::Gone)),
        }
    }

    /// Finds how to ask the kernel for the queues of a socket. Opens the netlink socket of its namespace if there is none yet.
    fn find_query_of_socket(&mut self, socket: End) -> Result<SocketQuery, QueueError> {
        let End { pid, inode, .. } = socket;
        // A process that has exited has no open socket.
        let Some(process) = none_if_exited(pid, ProcDir::open(pid))? else { return Ok(SocketQuery::Closed) };
        let Some(namespace) = none_if_exited(pid, process.network_namespace_inode())? else {
            return Ok(SocketQuery::Closed);
        };
        self.open_diag_socket_once(&process, namespace);
        if let Some(query) = self.find_unix_query(pid, namespace, inode)? {
            return Ok(query);
        }
        if let Some(query) = self.find_tcp_query(&process, namespace, inode)? {
            return Ok(query);
        }
        // A socket that is still open and not listed in the process's namespace was created in another one.
        if is_socket_still_open(socket) {
            return Err(QueueError::Elsewhere(pid, inode));
        }
        Ok(SocketQuery::Closed)
    }

    /// Opens the netlink socket of a network namespace if there is none yet. An error is kept as well, so that further sockets do not cause
    /// another try.
    fn open_diag_socket_once(&mut self, process: &ProcDir, namespace: u64) {
        if let Entry::Vacant(new) = self.namespaces.entry(namespace) {
            new.insert(
                DiagSocket::open_for_namespace_of(process).and_then(|diag| diag.check_unix_support().map(|()| diag)),
            );
        }
    }

    /// Finds how to ask for the queues of a Unix socket in the network namespace. `None` if the kernel reports no such socket there.
    fn find_unix_query(&self, pid: u32, namespace: u64, inode: u64) -> Result<Option<SocketQuery>, QueueError> {
        let refused = |error| QueueError::Diag(pid, error);
        let diag = self.diag_socket(namespace).map_err(refused)?;
        // Inodes of sockets have 32 bits.
        let Ok(unix_inode) = u32::try_from(inode) else { return Ok(None) };
        let has_queues = diag.query_unix_depth(unix_inode).map_err(refused)?.is_some();
        Ok(has_queues.then_some(SocketQuery::Unix { namespace, inode: unix_inode }))
    }

    /// Finds how to ask for the queues of a TCP socket in the process's network namespace. `None` if the kernel reports no such socket
    /// there.
    fn find_tcp_query(
        &mut self,
        process: &ProcDir,
        namespace: u64,
        inode: u64,
    ) -> Result<Option<SocketQuery>, QueueError> {
        let refused = |error| QueueError::Diag(process.pid, error);
        let Some(ends) = self.find_tcp_ends(process, namespace, inode)? else { return Ok(None) };
        let diag = self.diag_socket(namespace).map_err(refused)?;
        diag.check_tcp_support().map_err(refused)?;
        let has_queues = diag.query_tcp_depth(inode, ends).map_err(refused)?.is_some();
        Ok(has_queues.then_some(SocketQuery::Tcp { namespace, ends }))
    }

    /// Finds the addresses of a connected TCP socket in the process's network namespace. `None` if there is no such socket.
    fn find_tcp_ends(&mut self, process: &ProcDir, namespace: u64, inode: u64) -> Result<Option<TcpEnds>, QueueError> {
        // The list is long, so it is read again only for a socket that it lacks.
        let is_listed = self.listed.namespace == namespace && self.listed.ends_by_inode.contains_key(&inode);
        if !is_listed {
            let ends_by_inode = list_tcp_ends(process).map_err(|error| QueueError::List(process.pid, error))?;
            self.listed = ListedSockets { namespace, ends_by_inode };
        }
        Ok(self.listed.ends_by_inode.get(&inode).copied())
    }
}

impl SocketQuery {
    /// Network namespace of the socket; `None` if it is closed.
    fn namespace(&self) -> Option<u64> {
        match self {
            Self::Unix { namespace, .. } | Self::Tcp { namespace, .. } => Some(*namespace),
            Self::Closed => None,
        }
    }
}

/// The value that was read about a process. `None` if the process has exited. Any other error means that its network namespace cannot be
/// identified.
fn none_if_exited<T>(pid: u32, result: Result<T, ReadError>) -> Result<Option<T>, QueueError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(ReadError::Gone) => Ok(None),
        Err(error) => Err(QueueError::Namespace(pid, error)),
    }
}

/// Addresses of the connected TCP sockets in the process's network namespace, by inode.
fn list_tcp_ends(process: &ProcDir) -> Result<HashMap<u64, TcpEnds>, ReadError> {
    let mut listed = HashMap::new();
    for table in net::read_tcp_tables(process, MAX_TCP_SOCKETS) {
        let sockets = match table {
            Ok(listing) => listing.items,
            // Without IPv6 there is no such table.
            Err(ReadError::Gone) => continue,
            Err(error) => return Err(error),
        };
        let connected = sockets.iter().filter(|socket| socket.state != TcpState::Listening);
        listed.extend(connected.map(|socket| (socket.inode, TcpEnds { local: socket.local, remote: socket.remote })));
    }
    Ok(listed)
}

/// Whether the process still holds the socket. False if that cannot be read.
fn is_socket_still_open(socket: End) -> bool {
    let held = SocketDescriptor { fd: socket.fd, inode: socket.inode };
    let sockets = ProcDir::open(socket.pid).and_then(|process| process.list_sockets(MAX_DESCRIPTORS));
    sockets.is_ok_and(|sockets| sockets.items.contains(&held))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::toy::SOURCE;
    use std::io::{Read as _, Write as _};
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
    use std::os::fd::{AsFd, AsRawFd as _};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    fn of(socket: impl AsFd) -> End {
        let inode = rustix::fs::fstat(&socket).unwrap().st_ino;
        End { pid: std::process::id(), fd: socket.as_fd().as_raw_fd() as u32, inode, role: SOURCE }
    }

    fn received(queues: &mut Queues, socket: impl AsFd) -> Option<u64> {
        queues.read_queue_depth(of(socket)).unwrap().unwrap().receive_bytes
    }

    #[test]
    fn unread_bytes_of_a_unix_socket_are_measured() {
        let mut queues = Queues::default();
        let (mut from, mut to) = UnixStream::pair().unwrap();
        assert_eq!(received(&mut queues, &to), Some(0));
        from.write_all(&[7; 6000]).unwrap();
        assert_eq!(received(&mut queues, &to), Some(6000));
        assert!(queues.read_queue_depth(of(&from)).unwrap().unwrap().send_bytes >= Some(6000));
        to.read_exact(&mut [0; 1000]).unwrap();
        assert_eq!(received(&mut queues, &to), Some(5000));
    }

    #[test]
    fn tcp_queues_of_both_families_are_measured_until_close() {
        let mut queues = Queues::default();
        for (bound, connected) in [
            (IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv4Addr::LOCALHOST)),
            (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()),
            // Accepted by an IPv6 socket with mapped addresses.
            (Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into()),
        ] {
            let Ok(listener) = TcpListener::bind((bound, 0)) else {
                eprintln!("SKIPPED: no address {bound}");
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let mut from = TcpStream::connect((connected, port)).unwrap();
            let (to, _) = listener.accept().unwrap();
            from.write_all(&[7; 5000]).unwrap();
            // Loopback delivers the data and the acknowledgement within the call.
            assert_eq!(received(&mut queues, &to), Some(5000), "{bound}");
            assert_eq!(queues.read_queue_depth(of(&from)).unwrap().unwrap().send_bytes, Some(0));
            from.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(received(&mut queues, &to), Some(5000), "a FIN is not a byte");
            let closed = of(&to);
            drop((from, to));
            assert_eq!(queues.read_queue_depth(closed), Ok(None), "the listener is another socket");
        }
    }

    #[test]
    fn a_closed_socket_and_an_exited_process_have_no_queue() {
        let mut queues = Queues::default();
        let (from, _to) = UnixStream::pair().unwrap();
        let socket = of(&from);
        assert!(queues.read_queue_depth(socket).unwrap().is_some());
        drop(from);
        // A process that another test starts at this moment holds the socket until it executes its program.
        let deadline = Instant::now() + Duration::from_secs(5);
        while queues.read_queue_depth(socket) != Ok(None) {
            assert!(Instant::now() < deadline, "the socket is closed");
            std::thread::sleep(Duration::from_millis(1));
        }
        let ended = End { pid: u32::MAX, ..socket };
        assert_eq!(queues.read_queue_depth(ended), Ok(None));
    }

    #[test]
    fn a_socket_in_another_network_namespace_is_measured() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        // The thread creates its sockets in a new namespace. The process stays in the old one; `/proc/TID` shows the new one.
        let thread = std::thread::spawn(move || {
            #[expect(unsafe_code, reason = "only this short-lived thread enters the namespace")]
            // SAFETY: only the network namespace of this thread changes.
            let entered = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
            let tid = rustix::thread::gettid().as_raw_pid() as u32;
            sender.send(entered.map(|()| (tid, UnixStream::pair().unwrap()))).unwrap();
            let _ = ended.recv();
        });
        if let Ok((tid, (mut from, to))) = receiver.recv().unwrap() {
            let mut queues = Queues::default();
            from.write_all(&[7; 6000]).unwrap();
            let inside = End { pid: tid, ..of(&to) };
            assert_eq!(queues.read_queue_depth(inside).unwrap().unwrap().receive_bytes, Some(6000));
            let error = queues.read_queue_depth(of(&to)).unwrap_err();
            assert!(matches!(error, QueueError::Elsewhere { .. }), "{error}");
        } else {
            eprintln!("SKIPPED: a network namespace needs root");
        }
        drop(end);
        thread.join().unwrap();
    }
}
