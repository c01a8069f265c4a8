//! Content and direction of each connection.

use std::collections::{BTreeMap, BTreeSet};

use adapter::discover::{EngineKind, Reading, RoleWithSource, Wire};

use super::links::Link;

/// The links without those of clients, of which there may be thousands. The processes of one engine reach each other by one transport. So
/// if a process with a stated role reaches an acceptor over a socket file, the processes that reach it over TCP are clients. `stated_roles`
/// has the role of each process that its title or command states.
pub(crate) fn remove_client_links(links: &[Link], stated_roles: &[Option<RoleWithSource>]) -> Vec<Link> {
    let engine_transports = engine_transports_by_acceptor(links, stated_roles);
    let mut engine_links = links.to_vec();
    // Where the engine's own transport is not known, links of clients cannot be distinguished, and all stay.
    engine_links.retain(|link| match engine_transports.get(&link.acceptor.candidate) {
        Some(transports) => transports.contains(&transport_of(&link.endpoint)),
        None => true,
    });
    engine_links
}

/// For each process that accepts links, the transports, such as `ipc` and `tcp`, by which processes with a stated role reach it. A link is
/// a connection between two processes, which are given by their indices. `stated_roles` is parallel to the processes.
fn engine_transports_by_acceptor<'l>(
    links: &'l [Link],
    stated_roles: &[Option<RoleWithSource>],
) -> BTreeMap<usize, BTreeSet<Option<&'l str>>> {
    let mut transports: BTreeMap<usize, BTreeSet<Option<&'l str>>> = BTreeMap::new();
    for link in links.iter().filter(|link| has_stated_connector(link, stated_roles)) {
        transports.entry(link.acceptor.candidate).or_default().insert(transport_of(&link.endpoint));
    }
    transports
}

/// Whether the process that connected has a role that the user, its title or its command states.
fn has_stated_connector(link: &Link, stated: &[Option<RoleWithSource>]) -> bool {
    link.connector.is_some_and(|connector| stated[connector.candidate].is_some())
}

/// Links between candidates, with what they carry.
pub(crate) struct InterpretedLinks {
    links: Vec<Link>,
    /// Parallel to the links. `None` for a connection that is not a hop of the output or request path.
    readings: Vec<Option<Reading>>,
}

impl InterpretedLinks {
    /// Interprets every link by the rules of the first engine that knows the roles at its ends. The reading of a link is what it carries,
    /// and in which direction. A wire is a link as the rules see it.
    pub(crate) fn interpret(engines: &[EngineKind], links: Vec<Link>, roles: &[Option<RoleWithSource>]) -> Self {
        let wires = links.iter().map(|link| Wire {
            connector: link.connector.map(|connector| connector.candidate),
            acceptor: link.acceptor.candidate,
            endpoint: link.endpoint.as_str(),
        });
        let wires: Vec<Wire<'_>> = wires.collect();
        // Parallel to the links. A link stays without a reading if no engine knows its roles.
        let mut readings = vec![None; links.len()];
        for engine in engines {
            for (reading, reading_of_engine) in readings.iter_mut().zip(engine.hops(&wires, roles)) {
                // A reading of an earlier engine stays.
                *reading = reading.or(reading_of_engine);
            }
        }
        Self { links, readings }
    }

    /// The links that are hops.
    pub(crate) fn hops(&self) -> impl Iterator<Item = (&Link, Reading)> {
        self.links.iter().zip(&self.readings).filter_map(|(link, reading)| Some((link, (*reading)?)))
    }

    /// All links except the `removed` ones.
    pub(crate) fn links_without(self, removed: &BTreeSet<Link>) -> Vec<Link> {
        let mut links = self.links;
        links.retain(|link| !removed.contains(link));
        links
    }
}

/// Transport of an endpoint: `ipc` or `tcp`.
fn transport_of(endpoint: &str) -> Option<&str> {
    endpoint.split(':').next()
}

#[cfg(test)]
mod tests {
    use super::super::links::OpenSocket;
    use super::*;
    use adapter::discover::{Function, Role, RoleSource};

    fn link(connector: usize, acceptor: usize, endpoint: &str) -> Link {
        let socket = |candidate| OpenSocket { candidate, fd: 9, inode: 9 };
        Link { acceptor: socket(acceptor), endpoint: endpoint.into(), connector: Some(socket(connector)) }
    }

    #[test]
    fn a_tcp_peer_of_an_engine_on_socket_files_is_a_client() {
        let stated = [("source", Function::Source), ("server", Function::Receiver)];
        let stated = stated.map(|(word, function)| Some((Role::new(0, word, function), RoleSource::Title)));
        let stated = [&stated[..], &[None]].concat();
        let unobserved = |endpoint: &str| Link { connector: None, ..link(0, 1, endpoint) };
        let output = link(0, 1, "ipc:tok");
        let clients = [unobserved("tcp:30000"), link(2, 1, "tcp:30000")];
        let others = [unobserved("ipc:tok"), link(2, 1, "ipc:tok")];
        let all = [&[output.clone()][..], &clients, &others].concat();
        assert_eq!(remove_client_links(&all, &stated), [&[output][..], &others].concat());
        // If no process has a known role, every peer may belong to the engine.
        assert_eq!(remove_client_links(&clients, &stated), clients);
    }
}
