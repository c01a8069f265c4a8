//! Connections between candidates: sockets combined with the descriptors that refer to them.

use std::collections::{BTreeMap, HashMap};

use super::candidate::Candidate;
use super::connection::{self, Connection};
use super::degraded::{Blind, Part};
use super::diag::{Diag, DiagError};
use crate::proc::net::{self, TcpSocket};
use crate::proc::{ProcDir, ReadError};

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

/// A connection whose accepted side, at least, belongs to a candidate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Link {
    pub(crate) acceptor: OpenSocket,
    pub(crate) endpoint: String,
    pub(crate) connector: Option<OpenSocket>,
}

/// Result of one scan of the sockets.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Links in a stable order.
    pub(crate) links: Vec<Link>,
    pub(crate) blind: Vec<Blind>,
    /// Processes with unreadable parts.
    pub(crate) refused: BTreeMap<Part, Vec<u32>>,
}

/// Netlink sockets by network namespace, kept so that each namespace is entered only once.
pub(crate) type Diags = HashMap<u64, Diag>;

/// Sockets of one process as descriptor and inode, and whether it has more than the limit.
pub(crate) type Sockets = Result<(Vec<(u32, u64)>, bool), ReadError>;

/// Finds all connections between candidates. `processes` and `sockets` are parallel to `candidates`.
pub(crate) fn find(candidates: &[&Candidate], processes: &[&ProcDir], sockets: &[Sockets], diags: &mut Diags) -> Found {
    let Found { mut links, mut blind, mut refused } = Found::default();
    let mut holders: HashMap<u64, OpenSocket> = HashMap::new();
    // By network namespace, whose sockets are listed once: its members, the first of which gives access.
    let mut networks: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (candidate, (about, sockets)) in candidates.iter().zip(sockets).enumerate() {
        match sockets {
            Ok((sockets, more)) => {
                if *more {
                    limit(&mut blind, "descriptors in one process", MAX_DESCRIPTORS);
                }
                for &(fd, inode) in sockets {
                    let socket = OpenSocket { candidate, fd, inode };
                    // A socket inherited over a fork has two holders; the older process created it.
                    let older = |h: &OpenSocket| (candidates[h.candidate].id.start_time, h.fd);
                    let known = holders.entry(inode).or_insert(socket);
                    if older(&socket) < older(known) {
                        *known = socket;
                    }
                }
            }
            Err(ReadError::Denied) => refused.entry(Part::Descriptors).or_default().push(about.id.pid),
            Err(_) => continue,
        }
        if let Some(net) = about.net_ns {
            networks.entry(net).or_default().push(candidate);
        }
    }
    let hidden = refused.contains_key(&Part::Descriptors);
    diags.retain(|net, _| networks.contains_key(net));
    for (net, members) in &networks {
        let through = processes[members[0]];
        let mut connections = tcp(through, &mut blind);
        match unix(*net, through, diags, &mut blind) {
            Ok(found) => connections.extend(found),
            Err(error) => {
                // The remainder of an incomplete answer must not be read as the next one.
                diags.remove(net);
                let pids = members.iter().map(|&m| candidates[m].id.pid).collect();
                blind.push(Blind::Peers { pids, error });
                connections.extend(accepted_only(through));
            }
        }
        links.extend(connections.into_iter().filter_map(|c| link(c, &holders, hidden)));
    }
    links.sort_unstable();
    links.dedup();
    Found { links, blind, refused }
}

/// Resolves the ends of a connection. `hidden`: the descriptors of some candidate are unreadable, so an end without a known holder may
/// belong to it.
fn link(connection: Connection, holders: &HashMap<u64, OpenSocket>, hidden: bool) -> Option<Link> {
    // Python's multiprocessing has its own Unix sockets.
    if connection.endpoint.contains("/pymp-") {
        return None;
    }
    let acceptor = *holders.get(&connection.acceptor)?;
    let connector = connection.connector.and_then(|inode| holders.get(&inode).copied());
    let one_sided = connection.connector.is_none() || (hidden && connection.endpoint.starts_with("ipc://"));
    if connector.is_none() && !one_sided || connector.is_some_and(|c| c.candidate == acceptor.candidate) {
        return None;
    }
    Some(Link { acceptor, endpoint: connection.endpoint, connector })
}

fn unix(net: u64, through: &ProcDir, diags: &mut Diags, blind: &mut Vec<Blind>) -> Result<Vec<Connection>, DiagError> {
    let diag = match diags.entry(net) {
        std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
        std::collections::hash_map::Entry::Vacant(new) => new.insert(Diag::of(through)?),
    };
    let (sockets, more) = diag.unix_sockets(MAX_SOCKETS)?;
    if more {
        limit(blind, "Unix sockets in one network namespace", MAX_SOCKETS);
    }
    Ok(connection::unix(&sockets))
}

fn accepted_only(through: &ProcDir) -> Vec<Connection> {
    let text = through.read("net/unix", MAX_SOCKETS.saturating_mul(128)).unwrap_or_default();
    connection::unix_one_sided(&net::unix(&text, MAX_SOCKETS).0)
}

fn tcp(through: &ProcDir, blind: &mut Vec<Blind>) -> Vec<Connection> {
    let mut sockets: Vec<TcpSocket> = Vec::new();
    for table in net::tcp_tables(through, MAX_SOCKETS) {
        let (found, more) = match table {
            Err(ReadError::TooLong(_)) => (Vec::new(), true),
            // Without IPv6, or without a network, there are no such sockets.
            table => table.unwrap_or_default(),
        };
        if more {
            limit(blind, "TCP sockets in one network namespace", MAX_SOCKETS);
        }
        sockets.extend(found);
    }
    connection::tcp(&sockets)
}

fn limit(blind: &mut Vec<Blind>, what: &'static str, limit: usize) {
    let reached = Blind::Limit { what, limit };
    if !blind.contains(&reached) {
        blind.push(reached);
    }
}
