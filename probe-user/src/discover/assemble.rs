//! Assembly of candidates and links into engines.

use adapter::discover::{
    Carries, End, EngineKind, Evidence, HopSeen, Node, PackageRelease, Role, RoleWithSource, connected_groups,
};

use super::blind_spot::BlindSpot;
use super::candidate::Candidate;
use super::link_meaning::{self, InterpretedLinks};
use super::links::{Link, OpenSocket};
use super::owners::Owners;
use super::topology::{Engine, Process};

/// Result of the assembly.
pub(crate) struct Assembly {
    pub(crate) engines: Vec<Engine>,
    /// Role of each candidate; `None` if it belongs to no engine.
    pub(crate) roles: Vec<Option<RoleWithSource>>,
}

/// Assembles engines from candidates, which are processes that may belong to one, and from the links between them. Adds to
/// `blind_spots_to_report` what cannot be observed.
pub(crate) fn assemble_engines(
    engine_kinds: &[EngineKind],
    candidates: &[&Candidate],
    links: &[Link],
    pids_with_unread_sockets: &[u32],
    blind_spots_to_report: &mut Vec<BlindSpot>,
) -> Assembly {
    // Nodes and roles are parallel to the candidates.
    let nodes = nodes_of_candidates(candidates);
    let stated: Vec<Option<RoleWithSource>> = nodes.iter().map(|node| node.stated).collect();
    let engine_links = link_meaning::remove_client_links(links, &stated);
    let mut roles = infer_roles(engine_kinds, candidates, &nodes, &engine_links);
    let links =
        interpret_and_separate_links(engine_kinds, candidates, &nodes, &roles, engine_links, blind_spots_to_report);

    let mut engines: Vec<Engine> = Vec::new();
    // A group consists of indexes of candidates.
    for group in &group_processes_by_engine(&nodes, &roles, &links) {
        let mut engine = assemble_engine(engine_kinds, group, candidates, &roles, &links, blind_spots_to_report);
        // No process of the group has a role.
        if engine.processes.is_empty() {
            continue;
        }
        let had_role_at_last_scan = group.iter().any(|&index| candidates[index].last_role.is_some());
        if is_engine(&engine, had_role_at_last_scan) {
            engine.is_confirmed = is_confirmed(&engine, pids_with_unread_sockets);
            engines.push(engine);
        } else {
            // Another program that uses ZMQ. The roles that its links suggest are wrong.
            for &index in group {
                roles[index] = None;
            }
        }
    }
    sort_by_certainty(&mut engines);
    Assembly { engines, roles }
}

/// Sorts confirmed engines first, then named ones, and older ones before younger ones.
fn sort_by_certainty(engines: &mut [Engine]) {
    engines.sort_by_key(|engine| {
        let oldest_start = engine.processes.iter().map(|process| process.id.start_time).min();
        // `false` sorts first.
        (!engine.is_confirmed, !engine.is_named(), oldest_start)
    });
}

/// The candidates as the engines' rules see them: the role that is stated, the index of the parent, and whether ZMQ is used.
fn nodes_of_candidates(candidates: &[&Candidate]) -> Vec<Node> {
    let nodes = candidates.iter().map(|candidate| Node {
        stated: candidate.stated,
        parent: candidates.iter().position(|other| other.id.pid == candidate.parent),
        // A process that cannot be examined may use ZMQ.
        zmq: candidate.libzmq.is_some() || !candidate.refused.is_empty(),
    });
    nodes.collect()
}

/// Interprets the links between processes: what each carries, and in which direction. Leaves out the links between two engines, unless they
/// carry output. Reports the omitted links, and the processes that several engines share, in `blind_spots_to_report`. `nodes` and `roles`
/// are parallel to `candidates`.
fn interpret_and_separate_links(
    engine_kinds: &[EngineKind],
    candidates: &[&Candidate],
    nodes: &[Node],
    roles: &[Option<RoleWithSource>],
    links: Vec<Link>,
    blind_spots_to_report: &mut Vec<BlindSpot>,
) -> InterpretedLinks {
    // The owner of a process is the main process that started it. Processes with different owners belong to different engines.
    let owners = Owners::find(nodes, roles);
    let mut interpreted = InterpretedLinks::interpret(engine_kinds, links, roles);
    let between_engines = owners.links_between_engines(&interpreted);
    if !between_engines.is_empty() {
        blind_spots_to_report.extend(owners.blind_spots_of_foreign_connections(&between_engines, candidates));
        // Interpreted again, because the meaning of a link depends on the other links of its acceptor.
        interpreted = InterpretedLinks::interpret(engine_kinds, interpreted.links_without(&between_engines), roles);
    }
    blind_spots_to_report.extend(owners.blind_spots_of_shared_processes(&interpreted, roles, candidates));
    interpreted
}

/// Groups the processes of each engine. Processes that exchange messages are in one group, and so is a child with its parent. A group
/// consists of the indexes of its processes.
fn group_processes_by_engine(
    nodes: &[Node],
    roles: &[Option<RoleWithSource>],
    links: &InterpretedLinks,
) -> Vec<Vec<usize>> {
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    // Hops are the links that carry requests or output.
    for (link, _reading) in links.hops() {
        if let Some(connector) = link.connector {
            pairs.push((connector.candidate, link.acceptor.candidate));
        }
    }
    for (child, node) in nodes.iter().enumerate() {
        if let Some(parent) = node.parent
            && is_of_same_engine(roles[child], roles[parent])
        {
            pairs.push((child, parent));
        }
    }
    connected_groups(nodes.len(), pairs)
}

/// Whether a process with the first role belongs to the engine of its parent. A parent without a role is no part of an engine, and the main
/// process of an engine may be the child of another program.
fn is_of_same_engine(child: Option<RoleWithSource>, parent: Option<RoleWithSource>) -> bool {
    let is_started_by_engine = child.is_some_and(|(role, _)| !role.is_main());
    parent.is_some() && is_started_by_engine
}

/// Whether a group is an engine. Many programs use ZMQ, so an unnamed group needs a hop that must be output. It stays an engine while the
/// peers of such a hop are gone. `had_role_at_last_scan`: a process of the group had one.
fn is_engine(engine: &Engine, had_role_at_last_scan: bool) -> bool {
    let has_output = engine.hops.iter().any(|hop| hop.carries == Carries::Output);
    let has_lost_peers = engine.hops.is_empty() && had_role_at_last_scan;
    has_output || has_lost_peers || engine.is_named()
}

/// The pairs of connected processes, each once: the connecting process, and then the accepting one.
fn connected_candidate_pairs(links: &[Link]) -> Vec<(usize, usize)> {
    let ends = links.iter().filter_map(|link| Some((link.connector?.candidate, link.acceptor.candidate)));
    let mut edges: Vec<(usize, usize)> = ends.collect();
    edges.sort_unstable();
    // Several sockets may connect the same two processes.
    edges.dedup();
    edges
}

/// Determines the role of each candidate. A role that the user, the title or the command states comes first. Next comes one that an engine
/// infers from the links, and last that of the last scan. `None` if there is none of them.
fn infer_roles(
    engines: &[EngineKind],
    candidates: &[&Candidate],
    nodes: &[Node],
    links: &[Link],
) -> Vec<Option<RoleWithSource>> {
    let edges = connected_candidate_pairs(links);
    let mut roles: Vec<Option<RoleWithSource>> = nodes.iter().map(|node| node.stated).collect();
    // Each engine fills in the missing roles that its rules infer.
    for engine in engines {
        engine.infer_roles(nodes, &edges, &mut roles);
    }
    for (role, candidate) in roles.iter_mut().zip(candidates) {
        // While its peers are gone, a process keeps its role.
        *role = role.or(candidate.last_role);
    }
    roles
}

/// Whether more than titles and commands shows that this is an engine, see [`Engine::is_confirmed`]. A process with unknown sockets counts
/// as such evidence.
fn is_confirmed(engine: &Engine, pids_with_unread_sockets: &[u32]) -> bool {
    // A process may run the engine's server inside itself.
    let has_inner_server = engine.processes.iter().any(|process| process.inner_server.is_some());
    // Output that avoids ZMQ takes no hop.
    let needs_no_hop = has_inner_server || engine.settings.avoids_zmq.is_some();
    let may_have_unknown_hop =
        engine.processes.iter().any(|process| pids_with_unread_sockets.contains(&process.id.pid));
    !engine.hops.is_empty() || needs_no_hop || may_have_unknown_hop
}

/// End of a hop at this socket; `None` if its process has no role.
fn end_of_socket(socket: OpenSocket, candidates: &[&Candidate], roles: &[Option<RoleWithSource>]) -> Option<End> {
    let (role, _) = roles[socket.candidate]?;
    Some(End { pid: candidates[socket.candidate].id.pid, fd: socket.fd, inode: socket.inode, role })
}

/// Assembles the engine of a group, which has indexes of connected or related candidates. Candidates without a role are left out. Adds to
/// `blind_spots_to_report` what cannot be observed.
fn assemble_engine(
    engine_kinds: &[EngineKind],
    group: &[usize],
    candidates: &[&Candidate],
    roles: &[Option<RoleWithSource>],
    links: &InterpretedLinks,
    blind_spots_to_report: &mut Vec<BlindSpot>,
) -> Engine {
    let processes = group.iter().filter_map(|&index| {
        let (role, source) = roles[index]?;
        Some(candidates[index].to_process(role, source))
    });
    let mut processes: Vec<Process> = processes.collect();
    // In a fixed order, because the topology of two searches is compared.
    processes.sort_by_key(|process| (process.role, process.rank, process.id));
    let hops = hops_of_group(group, candidates, roles, links);
    // The first process with a role that an engine knows decides the kind.
    let kind = processes.iter().find_map(|process| engine_with_role(engine_kinds, process.role));
    let mut engine = Engine { processes, hops, kind, ..Engine::default() };
    blind_spots_to_report.extend(set_launcher_releases_and_settings(&mut engine, group, candidates));
    engine
}

/// The hops whose accepting process is in the group, each with the direction of its messages. A hop is a link that carries requests or
/// output between two processes. They are sorted, because the topology of two searches is compared.
fn hops_of_group(
    group: &[usize],
    candidates: &[&Candidate],
    roles: &[Option<RoleWithSource>],
    links: &InterpretedLinks,
) -> Vec<HopSeen> {
    let mut hops: Vec<HopSeen> = Vec::new();
    // The reading of a link is its meaning: what it carries, and in which direction.
    for (link, reading) in links.hops() {
        let is_of_group = group.contains(&link.acceptor.candidate);
        if !is_of_group {
            continue;
        }
        // An end stays unknown if its process is not visible or has no role.
        let connector = link.connector.and_then(|socket| end_of_socket(socket, candidates, roles));
        let acceptor = end_of_socket(link.acceptor, candidates, roles);
        // On a reversed hop, the end that accepted the connection sends the messages.
        let (from, to) = if reading.reversed { (acceptor, connector) } else { (connector, acceptor) };
        let endpoint = link.endpoint.clone();
        hops.push(HopSeen { from, to, endpoint, carries: reading.carries, confidence: reading.confidence });
    }
    hops.sort_by_key(|hop| (hop.carries, hop.from.map(|end| end.role), hop.to.map(|end| end.role), hop.from, hop.to));
    hops
}

/// The engine that has this role.
fn engine_with_role(engines: &[EngineKind], role: Role) -> Option<EngineKind> {
    engines.iter().copied().find(|engine| engine.roles().contains(&role))
}

/// Sets the launcher, the releases and the settings of the engine, as its main process shows them. Without a main process, nothing is set.
/// Returns a blind spot if the engine's output does not cross ZMQ.
fn set_launcher_releases_and_settings(
    engine: &mut Engine,
    group: &[usize],
    candidates: &[&Candidate],
) -> Option<BlindSpot> {
    let main_id = engine.main_process()?.id;
    let main = group.iter().map(|&index| candidates[index]).find(|candidate| candidate.id == main_id)?;
    engine.launcher = main.launcher;
    engine.releases = releases_of_engine(engine.kind, main, group.iter().map(|&index| candidates[index]));
    // A program that runs the engine inside decides some of its settings. If neither is known, no setting is.
    let deciding_kind = main.launcher.map(|launcher| launcher.engine).or(engine.kind)?;
    engine.settings = deciding_kind.settings(&Evidence {
        pid: main.id.pid,
        launcher: main.launcher,
        flags: &main.flags,
        environment: main.environment.as_deref(),
        releases: &engine.releases,
        python: main.python.as_ref(),
        hops: &engine.hops,
    });
    blind_spot_of_output_beside_zmq(engine, main.id.pid)
}

/// Blind spot of an engine whose main process has a variable that makes the output avoid ZMQ. `None` without such a variable.
fn blind_spot_of_output_beside_zmq(engine: &Engine, main_pid: u32) -> Option<BlindSpot> {
    // Output of a server inside the process is observed by other means than ZMQ.
    let has_inner_server = engine.processes.iter().any(|process| process.inner_server.is_some());
    if has_inner_server {
        return None;
    }
    let variable = engine.settings.avoids_zmq.clone()?;
    Some(BlindSpot::NoZmqOutput { pid: main_pid, variable })
}

/// Releases of the engine's package, and of the packages of programs that run engines inside. Other engines may be installed there, too,
/// and are left out. `main` is the main process, and `candidates` are all processes of the engine.
fn releases_of_engine<'a>(
    kind: Option<EngineKind>,
    main: &Candidate,
    mut candidates: impl Iterator<Item = &'a Candidate>,
) -> Vec<PackageRelease> {
    // A program without roles of its own runs engines inside.
    let hosts = main.installed.releases.iter().filter(|installed| installed.engine.roles().is_empty());
    let mut releases: Vec<PackageRelease> = hosts.cloned().collect();
    if let Some(kind) = kind {
        // If the main process has no release of it, another process may import it from other folders.
        let main_release = main.installed.release(kind);
        let own_release = main_release.or_else(|| candidates.find_map(|candidate| candidate.installed.release(kind)));
        releases.extend(own_release.cloned());
    }
    releases
}
