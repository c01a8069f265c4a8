//! Combination of socket tables into connections.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use crate::proc::net::{TcpSocket, TcpState, UnixSocket};

/// A connection between a side that bound a name and a side that connected to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketConnection {
    /// Socket inode of the connecting side; `None` if only the other side is visible.
    pub(crate) connector: Option<u64>,
    /// Socket inode of the accepted side.
    pub(crate) acceptor: u64,
    /// Endpoint in ZMQ's notation.
    pub(crate) endpoint: String,
}

/// Whether a socket is the accepted side of a connection. Usually only that side has a name. If the connecting socket has been bound, it
/// has a name, too. Then the accepted side is the one with a listener's name.
fn is_accepted_side(socket: &UnixSocket, peer_name: &[u8], listener_names: &HashSet<&[u8]>) -> bool {
    if socket.is_listening || socket.name.is_empty() {
        return false;
    }
    peer_name.is_empty() || listener_names.contains(socket.name.as_slice())
}

/// Finds the connections between these Unix sockets. A socket that was accepted has the name of its listener, and the connecting one
/// usually has no name.
pub(crate) fn pair_unix_sockets(sockets: &[UnixSocket]) -> Vec<SocketConnection> {
    let listening = sockets.iter().filter(|socket| socket.is_listening);
    let listener_names: HashSet<&[u8]> = listening.map(|socket| socket.name.as_slice()).collect();
    let name_by_inode: HashMap<u32, &[u8]> =
        sockets.iter().map(|socket| (socket.inode, socket.name.as_slice())).collect();
    let mut connections = Vec::new();
    for socket in sockets {
        let Some(peer) = socket.peer else { continue };
        let peer_name = name_by_inode.get(&peer).copied().unwrap_or_default();
        if is_accepted_side(socket, peer_name, &listener_names) {
            connections.push(SocketConnection {
                connector: Some(peer.into()),
                acceptor: socket.inode.into(),
                endpoint: ipc_endpoint(&socket.name),
            });
        }
    }
    connections
}

/// Connections from `/proc/net/unix` alone, which shows only the accepted sides and their names.
pub(crate) fn accepted_unix_sockets(sockets: &[UnixSocket]) -> Vec<SocketConnection> {
    let mut connections = Vec::new();
    for socket in sockets {
        if !socket.is_listening {
            let endpoint = ipc_endpoint(&socket.name);
            connections.push(SocketConnection { connector: None, acceptor: socket.inode.into(), endpoint });
        }
    }
    connections
}

/// Addresses on which processes listen.
#[derive(Default)]
struct TcpListeners {
    addresses: HashSet<SocketAddr>,
    /// Ports of listeners on any address.
    ports_on_any_address: HashSet<u16>,
}

impl TcpListeners {
    /// Adds the address of a listener. An unspecified one, such as 0.0.0.0, stands for every address of the machine.
    fn add_listener(&mut self, address: SocketAddr) {
        self.addresses.insert(address);
        if address.ip().is_unspecified() {
            self.ports_on_any_address.insert(address.port());
        }
    }

    /// Whether a connection to this address reaches a listener.
    fn contains(&self, address: &SocketAddr) -> bool {
        self.addresses.contains(address) || self.ports_on_any_address.contains(&address.port())
    }
}

/// Finds the connections between these TCP sockets of one network namespace. Both ends must be listed, and one must have the port of a
/// listener.
pub(crate) fn pair_tcp_sockets(sockets: &[TcpSocket]) -> Vec<SocketConnection> {
    let mut inode_by_ends: HashMap<(SocketAddr, SocketAddr), u64> = HashMap::new();
    let mut listeners = TcpListeners::default();
    for socket in sockets {
        match socket.state {
            TcpState::Established => {
                inode_by_ends.insert((socket.local, socket.remote), socket.inode);
            }
            TcpState::Listening => listeners.add_listener(socket.local),
            TcpState::Other => {}
        }
    }
    let mut connections = Vec::new();
    for ((local, remote), &acceptor) in &inode_by_ends {
        // If a listener has the ports of both ends, it is unknown which one accepted.
        let is_accepted_end = listeners.contains(local) && !listeners.contains(remote);
        // The connecting end has the same addresses in reverse.
        if is_accepted_end && let Some(&connector) = inode_by_ends.get(&(*remote, *local)) {
            let endpoint = format!("tcp://{local}");
            connections.push(SocketConnection { connector: Some(connector), acceptor, endpoint });
        }
    }
    connections
}

/// Endpoint of a Unix socket's name, in ZMQ's notation.
fn ipc_endpoint(name: &[u8]) -> String {
    format!("ipc://{}", String::from_utf8_lossy(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unix_socket(inode: u32, name: &str, peer: Option<u32>, is_listening: bool) -> UnixSocket {
        UnixSocket { inode, is_listening, name: name.into(), peer }
    }

    #[test]
    fn the_named_socket_is_the_acceptor() {
        let table = [
            unix_socket(1, "/tmp/tok", None, true),
            unix_socket(2, "/tmp/tok", Some(3), false),
            unix_socket(3, "", Some(2), false),
            unix_socket(4, "", Some(5), false),
            unix_socket(5, "", Some(4), false),
        ];
        let expected = SocketConnection { connector: Some(3), acceptor: 2, endpoint: "ipc:///tmp/tok".into() };
        assert_eq!(pair_unix_sockets(&table), [expected]);
    }

    #[test]
    fn a_named_connector_is_not_the_acceptor() {
        let table = [
            unix_socket(1, "@tok", None, true),
            unix_socket(2, "@tok", Some(3), false),
            unix_socket(3, "/tmp/mine", Some(2), false),
        ];
        let found = pair_unix_sockets(&table);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].acceptor, found[0].endpoint.as_str()), (2, "ipc://@tok"));
    }

    #[test]
    fn tcp_ends_are_paired() {
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let socket = |local, remote, state, inode| TcpSocket { local, remote, state, inode };
        let table = [
            socket("0.0.0.0:30233".parse().unwrap(), "0.0.0.0:0".parse().unwrap(), TcpState::Listening, 1),
            socket(at(30233), at(50000), TcpState::Established, 2),
            socket(at(50000), at(30233), TcpState::Established, 3),
            socket(at(50001), "10.0.0.9:2379".parse().unwrap(), TcpState::Established, 4),
        ];
        let expected = SocketConnection { connector: Some(3), acceptor: 2, endpoint: "tcp://127.0.0.1:30233".into() };
        assert_eq!(pair_tcp_sockets(&table), [expected]);
    }
}
