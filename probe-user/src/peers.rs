//! Peers connected to a socket file, as reported by the kernel for all processes.

use std::collections::HashMap;
use std::path::Path;

use crate::cpu;
use crate::discover::DiagError;
use crate::discover::ReadError;
use crate::discover::connection;
use crate::discover::diag_socket::DiagSocket;
use crate::opener_client::request::ThreadFile;
use crate::proc::{ProcDir, SocketDescriptor, list_pids};

/// Maximum number of sockets, of processes and of descriptors listed.
const MAX_ENTRIES: usize = 262_144;

/// A connection to a socket file with both ends in one network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerConnection {
    /// Inode of the socket that connected.
    pub connector: u64,
    /// Inode of the socket that was accepted.
    pub acceptor: u64,
}

/// A descriptor of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// Number of the descriptor.
    pub fd: u32,
}

/// Queries the Unix sockets of one network namespace.
#[derive(Debug)]
pub struct Peers {
    diag_socket: DiagSocket,
}

impl Peers {
    /// Queries the current network namespace. Needs no privilege.
    pub fn in_own_namespace() -> Result<Self, DiagError> {
        Ok(Self { diag_socket: DiagSocket::open_here()? })
    }

    /// Queries the network namespace of process `pid`. Needs `CAP_SYS_ADMIN` if it differs from the current one.
    pub fn in_namespace_of(pid: u32) -> Result<Self, DiagError> {
        let process = ProcDir::open(pid).map_err(DiagError::Enter)?;
        Ok(Self { diag_socket: DiagSocket::open_for_namespace_of(&process)? })
    }

    /// Connections to the listener that was bound to `listener_path`, even if its file has been moved.
    pub fn connections_to_listener(&self, listener_path: &Path) -> Result<Vec<PeerConnection>, DiagError> {
        let sockets = self.diag_socket.list_unix_sockets(MAX_ENTRIES)?.items;
        let endpoint = format!("ipc://{}", listener_path.display());
        let mut connections = Vec::new();
        for pair in connection::pair_unix_sockets(&sockets) {
            // Without its other end, the sender cannot be found.
            if pair.endpoint == endpoint
                && let Some(connector) = pair.connector
            {
                connections.push(PeerConnection { connector, acceptor: pair.acceptor });
            }
        }
        // The kernel lists the sockets in no order, and a connection at each of its ends.
        connections.sort_unstable();
        connections.dedup();
        Ok(connections)
    }
}

/// Finds the processes that hold these sockets, by the inode of the socket. After a fork, several may hold one. Omits processes that may
/// not be inspected. Empty if `/proc` cannot be listed.
pub fn find_socket_holders(socket_inodes: &[u64]) -> HashMap<u64, Vec<Holder>> {
    let mut holders: HashMap<u64, Vec<Holder>> = HashMap::new();
    let Ok(pids) = list_pids(MAX_ENTRIES) else { return holders };
    for pid in pids.items {
        let Ok(sockets) = ProcDir::open(pid).and_then(|process| process.list_sockets(MAX_ENTRIES)) else {
            continue;
        };
        for SocketDescriptor { fd, inode } in sockets.items {
            if socket_inodes.contains(&inode) {
                holders.entry(inode).or_default().push(Holder { pid, fd });
            }
        }
    }
    holders
}

/// Whether thread `tid` of process `pid` sleeps in a poll. An event loop with messages in its inbox never does. Needs the permission to
/// trace the process, and a kernel with `/proc/PID/task/TID/syscall`.
pub fn sleeps_in_poll(pid: u32, tid: u32) -> Result<bool, ReadError> {
    let text = ProcDir::open(pid)?.read_thread_file(tid, ThreadFile::SystemCall)?;
    Ok(cpu::is_poll_line(&String::from_utf8_lossy(&text)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_connection_is_found_by_the_name_of_its_listener() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer");
        let listener = UnixListener::bind(&path).unwrap();
        std::fs::rename(&path, folder.path().join("moved")).unwrap();
        let peers = Peers::in_namespace_of(std::process::id()).unwrap();
        assert_eq!(peers.connections_to_listener(&path).unwrap(), []);
        let _connector = UnixStream::connect(folder.path().join("moved")).unwrap();
        let accepted = listener.accept().unwrap();
        let found = peers.connections_to_listener(&path).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        let found_holders = find_socket_holders(&[found[0].connector, found[0].acceptor]);
        let us = std::process::id();
        assert!(
            found_holders.len() == 2 && found_holders.values().flatten().all(|holder| holder.pid == us),
            "{found_holders:?}"
        );
        drop(accepted);
    }

    #[test]
    fn sleep_in_a_poll_is_distinguished_from_other_sleep() {
        let us = std::process::id();
        let (_open, end) = UnixStream::pair().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            sender.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            let mut polled = [rustix::event::PollFd::new(&end, rustix::event::PollFlags::IN)];
            let patience = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
            let _ = rustix::event::poll(&mut polled, Some(&patience));
        });
        let tid = receiver.recv().unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !sleeps_in_poll(us, tid).unwrap() {
            assert!(std::time::Instant::now() < until);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert_eq!(sleeps_in_poll(us, own), Ok(false), "we run");
        assert_eq!(sleeps_in_poll(us, 1_000_000_000), Err(ReadError::Gone));
    }
}
