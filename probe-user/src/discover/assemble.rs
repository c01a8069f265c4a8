//! Assembly of candidates and links into engines.

use adapter::discover::{
    Carries, End, EngineKind, Evidence, HopSeen, Node, PackageRelease, Reading, RoleWithSource, connected,
};

use super::candidate::Candidate;
use super::degraded::Blind;
use super::links::{Link, OpenSocket};
use super::topology::{Engine, Process};
use super::wires;

/// Returns the engines, and the role of each candidate (`None` if it belongs to no engine). `unread` are pids whose sockets are unknown.
pub(crate) fn engines(
    known: &[EngineKind],
    candidates: &[&Candidate],
    links: &[Link],
    unread: &[u32],
    blind: &mut Vec<Blind>,
) -> (Vec<Engine>, Vec<Option<RoleWithSource>>) {
    let index = |pid: u32| candidates.iter().position(|c| c.id.pid == pid);
    let nodes: Vec<Node> = candidates
        .iter()
        .map(|c| Node { stated: c.stated, parent: index(c.parent), zmq: c.libzmq.is_some() || !c.refused.is_empty() })
        .collect();
    let stated: Vec<Option<RoleWithSource>> = nodes.iter().map(|node| node.stated).collect();
    let links = &wires::without_clients(links, &stated);
    let mut edges: Vec<(usize, usize)> =
        links.iter().filter_map(|l| Some((l.connector?.candidate, l.acceptor.candidate))).collect();
    edges.sort_unstable();
    edges.dedup();
    let mut roles = stated.clone();
    for engine in known {
        engine.infer(&nodes, &edges, &mut roles);
    }
    for (role, candidate) in roles.iter_mut().zip(candidates) {
        *role = role.or(candidate.last_role);
    }
    let readings = wires::read(known, links, &roles);

    let exchanging = links
        .iter()
        .zip(&readings)
        .filter(|(_, r)| r.is_some())
        .filter_map(|(l, _)| Some((l.connector?.candidate, l.acceptor.candidate)));
    let related = nodes.iter().enumerate().filter_map(|(child, node)| {
        let parent = node.parent?;
        roles[parent]?;
        roles[child].is_some_and(|(role, _)| !role.is_main()).then_some((child, parent))
    });
    let groups = connected(candidates.len(), exchanging.chain(related));
    let mut engines: Vec<Engine> = Vec::new();
    for group in &groups {
        let mut found = engine(known, group, candidates, &roles, links, &readings, blind);
        if found.processes.is_empty() {
            continue;
        }
        // Many programs use ZMQ. An unnamed group counts as an engine only with a hop that must be output, or while the peers of such a hop
        // are gone.
        let output = found.hops.iter().any(|hop| hop.carries == Carries::Output);
        let left_alone = found.hops.is_empty() && group.iter().any(|&i| candidates[i].last_role.is_some());
        found.is_confirmed = is_confirmed(&found, unread);
        if output || left_alone || found.is_named() {
            engines.push(found);
        } else {
            for &i in group {
                roles[i] = None;
            }
        }
    }
    let oldest = |e: &Engine| e.processes.iter().map(|p| p.id.start_time).min();
    engines.sort_by_key(|e| (!e.is_confirmed, !e.is_named(), oldest(e)));
    (engines, roles)
}

/// See [`Engine::is_confirmed`].
fn is_confirmed(engine: &Engine, unread: &[u32]) -> bool {
    let has_inner_server = engine.processes.iter().any(|process| process.inner_server.is_some());
    let is_unread = engine.processes.iter().any(|process| unread.contains(&process.id.pid));
    !engine.hops.is_empty() || has_inner_server || engine.settings.avoids_zmq.is_some() || is_unread
}

fn engine(
    known: &[EngineKind],
    group: &[usize],
    candidates: &[&Candidate],
    roles: &[Option<RoleWithSource>],
    links: &[Link],
    readings: &[Option<Reading>],
    blind: &mut Vec<Blind>,
) -> Engine {
    let mut processes: Vec<Process> =
        group.iter().filter_map(|&i| roles[i].map(|(role, source)| candidates[i].process(role, source))).collect();
    processes.sort_by_key(|p| (p.role, p.rank, p.id));
    let end = |socket: OpenSocket| {
        let role = roles[socket.candidate]?.0;
        Some(End { pid: candidates[socket.candidate].id.pid, fd: socket.fd, inode: socket.inode, role })
    };
    let mut hops: Vec<HopSeen> = links
        .iter()
        .zip(readings)
        .filter(|(link, _)| group.contains(&link.acceptor.candidate))
        .filter_map(|(link, reading)| {
            let reading = (*reading)?;
            let (connector, acceptor) = (link.connector.and_then(end), end(link.acceptor));
            let (from, to) = if reading.reversed { (acceptor, connector) } else { (connector, acceptor) };
            Some(HopSeen {
                from,
                to,
                endpoint: link.endpoint.clone(),
                carries: reading.carries,
                confidence: reading.confidence,
            })
        })
        .collect();
    let role = |end: Option<End>| end.map(|e| e.role);
    hops.sort_by_key(|hop| (hop.carries, role(hop.from), role(hop.to), hop.from, hop.to));

    let of = |role| known.iter().copied().find(|kind| kind.roles().contains(&role));
    let mut engine = Engine { kind: processes.iter().find_map(|p| of(p.role)), processes, hops, ..Engine::default() };
    blind.extend(determine_settings(&mut engine, group, candidates));
    engine
}

/// Determines the settings of the engine as a whole, from its main process where possible.
fn determine_settings(engine: &mut Engine, group: &[usize], candidates: &[&Candidate]) -> Option<Blind> {
    let main = engine.main()?.id;
    let main = group.iter().map(|&i| candidates[i]).find(|c| c.id == main)?;
    engine.launcher = main.launcher;
    engine.releases = releases(engine.kind, main, group.iter().map(|&i| candidates[i]));
    let evidence = Evidence {
        pid: main.id.pid,
        launcher: main.launcher,
        flags: &main.flags,
        environment: main.environment.as_deref(),
        releases: &engine.releases,
        python: main.python.as_ref(),
        hops: &engine.hops,
    };
    let decides = main.launcher.map(|launcher| launcher.engine).or(engine.kind)?;
    let settings = decides.settings(&evidence);
    let observable = engine.processes.iter().any(|process| process.inner_server.is_some());
    let blind = settings
        .avoids_zmq
        .clone()
        .filter(|_| !observable)
        .map(|variable| Blind::NoZmqOutput { pid: main.id.pid, variable });
    engine.settings = settings;
    blind
}

/// Releases of the engine, and of programs that run engines inside. Other engines may be installed next to them.
fn releases<'a>(
    kind: Option<EngineKind>,
    main: &Candidate,
    mut all: impl Iterator<Item = &'a Candidate>,
) -> Vec<PackageRelease> {
    let hosts_engines = |known: &&PackageRelease| known.engine.roles().is_empty();
    let mut found: Vec<PackageRelease> = main.installed.0.iter().filter(hosts_engines).cloned().collect();
    let own_release = kind.and_then(|kind| {
        let of = |c: &Candidate| c.installed.release(kind).cloned();
        of(main).or_else(|| all.find_map(of))
    });
    found.extend(own_release);
    found
}
