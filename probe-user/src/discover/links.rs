//! Connections between candidates: sockets combined with the descriptors that refer to them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use super::blind_spot::{BlindSpot, ProcPart};
use super::candidate::Candidate;
use super::connection::{self, SocketConnection};
use super::diag_socket::{DiagError, DiagSocket};
use crate::proc::net::{self, TcpSocket};
use crate::proc::{Listing, ProcDir, ReadError, SocketDescriptor};

/// Maximum number of descriptors read in one process.
pub(crate) const MAX_DESCRIPTORS: usize = 65_536;
/// Maximum number of sockets listed per network namespace and family.
const MAX_SOCKETS: usize = 262_144;

/// One end of a connection. `candidate` is an index into the list of candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OpenSocket {
    pub(crate) candidate: usize,
    pub(crate) fd: u32,
    pub(crate) inode: u64,
}

impl OpenSocket {
    /// Sorts sockets by the start of their process, and those of one process by descriptor.
    fn age_order(&self, candidates: &[&Candidate]) -> impl Ord + use<> {
        (candidates[self.candidate].id.start_time, self.fd)
    }
}

/// A connection whose accepted side, at least, belongs to a candidate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Link {
    pub(crate) acceptor: OpenSocket,
    pub(crate) endpoint: String,
    pub(crate) connector: Option<OpenSocket>,
}

/// Result of one scan of the sockets.
#[derive(Debug, Default)]
pub(crate) struct FoundLinks {
    /// Links in a stable order.
    pub(crate) links: Vec<Link>,
    pub(crate) blind_spots: Vec<BlindSpot>,
    /// Processes with unreadable parts.
    pub(crate) refused: BTreeMap<ProcPart, Vec<u32>>,
}

impl FoundLinks {
    /// Records that a limit was reached. It is recorded once, however often it is reached.
    fn record_limit_once(&mut self, limited_items: &'static str, limit: usize) {
        let reached = BlindSpot::Limit { what: limited_items, limit };
        if !self.blind_spots.contains(&reached) {
            self.blind_spots.push(reached);
        }
    }
}

/// Netlink sockets by network namespace, kept so that each namespace is entered only once.
pub(crate) type DiagSockets = HashMap<u64, DiagSocket>;

pub(crate) type ProcessSockets = Result<Listing<SocketDescriptor>, ReadError>;

/// Finds the links, which are the connections between candidates. A candidate is a process that may belong to an engine. `processes` and
/// `sockets` are parallel to `candidates`. The result also says which links may be missing.
pub(crate) fn find_links(
    candidates: &[&Candidate],
    processes: &[&ProcDir],
    sockets: &[ProcessSockets],
    diag_sockets: &mut DiagSockets,
) -> FoundLinks {
    let mut found = FoundLinks::default();
    // The candidate that holds each socket, and the candidates in each network namespace, whose sockets the kernel lists together.
    let HeldSockets { holders, namespaces } = collect_held_sockets(candidates, sockets, &mut found);
    let has_hidden_sockets = found.refused.contains_key(&ProcPart::Descriptors);
    // Closes the netlink sockets of namespaces in which there is no candidate any more.
    diag_sockets.retain(|namespace, _| namespaces.contains_key(namespace));
    for (&namespace, members) in &namespaces {
        let process = first_running_process(members, processes);
        let mut connections = find_tcp_connections(process, &mut found);
        match find_unix_connections(namespace, process, diag_sockets, &mut found) {
            Ok(unix_connections) => connections.extend(unix_connections),
            Err(error) => {
                let pids = members.iter().map(|&member| candidates[member].id.pid).collect();
                found.blind_spots.push(BlindSpot::Peers { pids, error });
                // Without their connecting ends, which only the failed query shows.
                connections.extend(find_accepted_unix_connections(process));
            }
        }
        for connection in connections {
            // Connections of other programs are left out.
            found.links.extend(link_from_connection(connection, &holders, has_hidden_sockets));
        }
    }
    found.links.sort_unstable();
    // A connection may be listed at both of its ends.
    found.links.dedup();
    found
}

/// The first of a namespace's members that still runs. Every process of the namespace shows the same tables, but one that has exited shows
/// none. If all have exited, the first member. `members` are indices of `processes`, at least one.
fn first_running_process<'p>(members: &[usize], processes: &[&'p ProcDir]) -> &'p ProcDir {
    let mut all = members.iter().map(|&member| processes[member]);
    let running = all.find(|process| process.network_namespace_inode() != Err(ReadError::Gone));
    running.unwrap_or(processes[members[0]])
}

/// Where the sockets of all candidates are.
#[derive(Default)]
struct HeldSockets {
    /// By inode: the descriptor in the process that created the socket.
    holders: HashMap<u64, OpenSocket>,
    /// By network namespace, whose sockets are listed once: its members, one of which gives access.
    namespaces: BTreeMap<u64, Vec<usize>>,
}

impl HeldSockets {
    /// Adds a socket, unless an older process holds it. A socket inherited over a fork has two holders, and the older process created it.
    fn keep_socket_of_older_holder(&mut self, socket: OpenSocket, candidates: &[&Candidate]) {
        let holder = self.holders.entry(socket.inode).or_insert(socket);
        if socket.age_order(candidates) < holder.age_order(candidates) {
            *holder = socket;
        }
    }
}

/// Collects the sockets of the candidates. Records in `found` the processes whose sockets could not be read.
fn collect_held_sockets(
    candidates: &[&Candidate],
    sockets_by_candidate: &[ProcessSockets],
    found: &mut FoundLinks,
) -> HeldSockets {
    let mut held = HeldSockets::default();
    for (index, (candidate, sockets)) in candidates.iter().zip(sockets_by_candidate).enumerate() {
        match sockets {
            Ok(sockets) => {
                if sockets.is_truncated {
                    found.record_limit_once("descriptors in one process", MAX_DESCRIPTORS);
                }
                for &SocketDescriptor { fd, inode } in &sockets.items {
                    held.keep_socket_of_older_holder(OpenSocket { candidate: index, fd, inode }, candidates);
                }
            }
            // The candidate may hold the unknown end of a connection, so it counts as a member of its namespace below.
            Err(ReadError::Denied) => {
                found.refused.entry(ProcPart::Descriptors).or_default().push(candidate.id.pid);
            }
            // A process that has exited, for example. It does not count as a member.
            Err(_) => continue,
        }
        if let Some(namespace) = candidate.net_ns {
            held.namespaces.entry(namespace).or_default().push(index);
        }
    }
    held
}

/// Finds the candidates at the ends of a connection, by the `holders` of their sockets. `None` if the connection does not belong to an
/// engine. `has_hidden_sockets`: the descriptors of some candidate are unreadable, so it may be the unknown holder of an end.
fn link_from_connection(
    connection: SocketConnection,
    holders: &HashMap<u64, OpenSocket>,
    has_hidden_sockets: bool,
) -> Option<Link> {
    // Python's multiprocessing has its own Unix sockets.
    if connection.endpoint.contains("/pymp-") {
        return None;
    }
    let acceptor = *holders.get(&connection.acceptor)?;
    let connector = connection.connector.and_then(|inode| holders.get(&inode).copied());
    // No candidate is known to hold the connecting end, so it presumably belongs to another program.
    if connector.is_none() && !may_connector_be_hidden(&connection, has_hidden_sockets) {
        return None;
    }
    let is_within_process = connector.is_some_and(|connector| connector.candidate == acceptor.candidate);
    if is_within_process {
        return None;
    }
    Some(Link { acceptor, endpoint: connection.endpoint, connector })
}

/// Whether the connecting end of this connection may belong to a candidate although no holder is known. That is so if it is not visible, or
/// if some descriptors are unreadable. Over TCP, clients connect as well, so a visible end without a known holder counts as a client's.
fn may_connector_be_hidden(connection: &SocketConnection, has_hidden_sockets: bool) -> bool {
    let is_invisible = connection.connector.is_none();
    let is_over_unix_socket = connection.endpoint.starts_with("ipc://");
    is_invisible || (has_hidden_sockets && is_over_unix_socket)
}

/// Finds the Unix connections of a network namespace. Keeps the netlink socket of the namespace in `diag_sockets` for the next search.
fn find_unix_connections(
    namespace: u64,
    process: &ProcDir,
    diag_sockets: &mut DiagSockets,
    found: &mut FoundLinks,
) -> Result<Vec<SocketConnection>, DiagError> {
    let diag_socket = match diag_sockets.entry(namespace) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => new.insert(DiagSocket::open_for_namespace_of(process)?),
    };
    let sockets = match diag_socket.list_unix_sockets(MAX_SOCKETS) {
        Ok(sockets) => sockets,
        Err(error) => {
            // The remainder of an incomplete answer must not be read as the next one.
            diag_sockets.remove(&namespace);
            return Err(error);
        }
    };
    if sockets.is_truncated {
        found.record_limit_once("Unix sockets in one network namespace", MAX_SOCKETS);
    }
    Ok(connection::pair_unix_sockets(&sockets.items))
}

/// The Unix connections of a network namespace without their connecting ends, for a kernel that does not list the peers.
fn find_accepted_unix_connections(process: &ProcDir) -> Vec<SocketConnection> {
    const MAX_LINE_BYTES: usize = 128;
    let text = process.read("net/unix", MAX_SOCKETS.saturating_mul(MAX_LINE_BYTES)).unwrap_or_default();
    connection::accepted_unix_sockets(&net::parse_unix_table(&text, MAX_SOCKETS).items)
}

/// Finds the TCP connections of the process's network namespace. Records in `found` if there are more than can be read.
fn find_tcp_connections(process: &ProcDir, found: &mut FoundLinks) -> Vec<SocketConnection> {
    let mut sockets: Vec<TcpSocket> = Vec::new();
    for table in net::read_tcp_tables(process, MAX_SOCKETS) {
        let is_truncated = match table {
            Ok(listing) => {
                sockets.extend(listing.items);
                listing.is_truncated
            }
            Err(ReadError::TooLong(_)) => true,
            // Without IPv6, or without a network, there are no such sockets.
            Err(_) => false,
        };
        if is_truncated {
            found.record_limit_once("TCP sockets in one network namespace", MAX_SOCKETS);
        }
    }
    connection::pair_tcp_sockets(&sockets)
}
