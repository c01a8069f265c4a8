//! Writes of serving processes to their clients' sockets. [`find_egress_offsets`] finds the kernel offsets for
//! observing them. [`ConnectionTracker`] orders the writes of one connection, and detects missed ones and its end.

mod connection_tracker;
mod offsets;

use std::collections::{HashMap, HashSet};

pub(crate) use offsets::find_egress_offsets;

pub use connection_tracker::{ConnectionStep, ConnectionTracker};
pub use offsets::MissingField;
pub use probe_ebpf::egress::{Head, Kind, Record, RequestTimes, Serves};
pub use probe_ebpf::traceparent::{CallerSpan, MAX_HEAD, UnknownSpan};

use crate::discover::ReadError;
use crate::discover::diag_socket::{DiagSocket, TcpListenerSocket};
use crate::proc::ProcDir;
use crate::proc::net::{TcpState, read_tcp_tables};

/// Default capture limit of one write in bytes. A server normally writes one event at a time; a backlog may be written in one call.
pub const CAPTURE: u32 = 4 << 20;

/// Capture limit of one read of a worker in bytes: the most that the known runtimes request (`Recognise::connects_to_clients`).
pub const CAPTURE_READ: u32 = 256 << 10;

/// Maximum number of descriptors of a process, and of sockets of its network namespace.
const MAX_SOCKETS: usize = 65_536;

/// TCP ports that a process listens on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListeningPorts {
    /// Local ports, sorted.
    pub ports: Vec<u16>,
    /// Inode of the process's network namespace.
    pub network_namespace: u64,
}

/// Listening TCP sockets of network namespaces, each read once.
#[derive(Debug, Default)]
pub struct ListeningSockets {
    /// By inode of the namespace.
    by_namespace: HashMap<u64, Vec<TcpListenerSocket>>,
}

impl ListeningSockets {
    /// Finds the TCP ports that `pid` listens on. The listening sockets of its network namespace are listed only once, and then remembered.
    pub fn listening_ports_of_process(&mut self, pid: u32) -> Result<ListeningPorts, ReadError> {
        let process = ProcDir::open(pid)?;
        let own_sockets = process.list_sockets(MAX_SOCKETS)?.items;
        let own_inodes: HashSet<u64> = own_sockets.into_iter().map(|socket| socket.inode).collect();
        let network_namespace = process.network_namespace_inode()?;
        let listening = self.by_namespace.entry(network_namespace).or_insert_with(|| list_listening_sockets(&process));
        let own = listening.iter().filter(|socket| own_inodes.contains(&socket.inode));
        let mut ports: Vec<u16> = own.map(|socket| socket.port).collect();
        ports.sort_unstable();
        // A server may listen on one port with several sockets or in both families.
        ports.dedup();
        Ok(ListeningPorts { ports, network_namespace })
    }
}

/// The listening sockets in the process's network namespace.
fn list_listening_sockets(process: &ProcDir) -> Vec<TcpListenerSocket> {
    let listed = DiagSocket::open_for_namespace_of(process).and_then(|diag| diag.list_tcp_listeners(MAX_SOCKETS));
    // Without `tcp_diag`, the tables in `/proc` are read. They list all connections, which takes a millisecond on a machine with much
    // memory.
    listed.unwrap_or_else(|_| {
        // Kernels without IPv6 lack the second table.
        let sockets = read_tcp_tables(process, MAX_SOCKETS).flatten().flat_map(|table| table.items);
        let listening = sockets.filter(|socket| socket.state == TcpState::Listening);
        listening.map(|socket| TcpListenerSocket { port: socket.local.port(), inode: socket.inode }).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn our_own_listener_is_found_until_it_is_closed() {
        let me = std::process::id();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(ListeningSockets::default().listening_ports_of_process(me).unwrap().ports.contains(&port));
        drop(listener);
        assert!(!ListeningSockets::default().listening_ports_of_process(me).unwrap().ports.contains(&port));
    }
}
