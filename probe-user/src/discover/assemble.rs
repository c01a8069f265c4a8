//! Assembly of candidates and links into engines.

use super::candidate::{Candidate, Played};
use super::degraded::Blind;
use super::hops::{self, Reading};
use super::infer::{self, Node};
use super::links::{Held, Link};
use super::release::Release;
use super::role::Role;
use super::setting::{Origin, Setting};
use super::streaming::Evidence;
use super::topology::{Carries, End, Engine, HopSeen, Process};

/// Returns the engines, and the role of each candidate (`None` if it belongs to no engine).
pub(crate) fn engines(
    candidates: &[&Candidate],
    links: &[Link],
    blind: &mut Vec<Blind>,
) -> (Vec<Engine>, Vec<Option<Played>>) {
    let place = |pid: u32| candidates.iter().position(|c| c.id.pid == pid);
    let nodes: Vec<Node> = candidates
        .iter()
        .map(|c| Node {
            stated: c.stated,
            parent: place(c.parent),
            zmq: c.libzmq.is_some() || !c.refused.is_empty(),
        })
        .collect();
    let stated: Vec<Option<Played>> = nodes.iter().map(|node| node.stated).collect();
    let links = &hops::without_clients(links, &stated);
    let mut edges: Vec<(usize, usize)> = links
        .iter()
        .filter_map(|l| Some((l.connector?.candidate, l.acceptor.candidate)))
        .collect();
    edges.sort_unstable();
    edges.dedup();
    let mut roles = infer::roles(&nodes, &edges);
    for (role, candidate) in roles.iter_mut().zip(candidates) {
        *role = role.or(candidate.last_role);
    }
    let readings = hops::read(links, &roles);

    let connected = links
        .iter()
        .zip(&readings)
        .filter(|(_, r)| r.is_some())
        .filter_map(|(l, _)| Some((l.connector?.candidate, l.acceptor.candidate)));
    let related = nodes.iter().enumerate().filter_map(|(child, node)| {
        let parent = node.parent?;
        roles[parent]?;
        roles[child]
            .is_some_and(|(r, _)| r.is_started_by_main())
            .then_some((child, parent))
    });
    let groups = super::group::connected(candidates.len(), connected.chain(related));
    let mut engines: Vec<Engine> = Vec::new();
    for group in &groups {
        let found = engine(group, candidates, &roles, links, &readings, blind);
        if found.processes.is_empty() {
            continue;
        }
        // Many programs use ZMQ. An unnamed group counts as an engine only with a hop that must be output, or while the peers of such a hop
        // are gone.
        let output = found.hops.iter().any(|hop| hop.carries == Carries::Output);
        let left_alone = found.hops.is_empty() && group.iter().any(|&i| candidates[i].last_role.is_some());
        if output || left_alone || found.is_named() {
            engines.push(found);
        } else {
            for &i in group {
                roles[i] = None;
            }
        }
    }
    let oldest = |e: &Engine| e.processes.iter().map(|p| p.id.start_time).min();
    engines.sort_by_key(|e| (!e.is_named(), oldest(e)));
    (engines, roles)
}

fn engine(
    group: &[usize],
    candidates: &[&Candidate],
    roles: &[Option<Played>],
    links: &[Link],
    readings: &[Option<Reading>],
    blind: &mut Vec<Blind>,
) -> Engine {
    let mut processes: Vec<Process> = group
        .iter()
        .filter_map(|&i| roles[i].map(|(role, source)| candidates[i].process(role, source)))
        .collect();
    processes.sort_by_key(|p| (p.role, p.rank, p.id));
    let end = |held: Held| {
        let role = roles[held.candidate]?.0;
        Some(End {
            pid: candidates[held.candidate].id.pid,
            fd: held.fd,
            inode: held.inode,
            role,
        })
    };
    let mut hops: Vec<HopSeen> = links
        .iter()
        .zip(readings)
        .filter(|(link, _)| group.contains(&link.acceptor.candidate))
        .filter_map(|(link, reading)| {
            let reading = (*reading)?;
            let (connector, acceptor) = (link.connector.and_then(end), end(link.acceptor));
            let (from, to) = if reading.reversed {
                (acceptor, connector)
            } else {
                (connector, acceptor)
            };
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

    let mut engine = Engine {
        processes,
        hops,
        ..Engine::default()
    };
    blind.extend(settle(&mut engine, group, candidates));
    engine
}

/// Determines the settings of the engine as a whole, from its main process where possible.
fn settle(engine: &mut Engine, group: &[usize], candidates: &[&Candidate]) -> Option<Blind> {
    let main = engine.main()?.id;
    let main = group.iter().map(|&i| candidates[i]).find(|c| c.id == main)?;
    let others = || group.iter().map(|&i| candidates[i]);
    engine.launcher = main.launcher;
    engine.sglang = main
        .installed
        .sglang
        .clone()
        .or_else(|| others().find_map(|c| c.installed.sglang.clone()));
    engine.dynamo.clone_from(&main.installed.dynamo);
    let release = |s: &Option<Setting<String>>| s.as_ref().and_then(|s| s.value.parse::<Release>().ok());
    let evidence = Evidence {
        pid: main.id.pid,
        launcher: main.launcher,
        flags: &main.flags,
        environment: main.environment.as_deref(),
        sglang: release(&engine.sglang),
        dynamo: release(&engine.dynamo),
    };
    engine.codec = evidence.codec();
    engine.waiter = evidence.waiter();
    engine.turnaround = main.python.as_ref().and_then(|python| evidence.turnaround(python));
    engine.skip_tokenizer_init = evidence.skip_tokenizer_init().or_else(|| skip_by_sockets(&engine.hops));
    engine.disaggregation = evidence.disaggregation();
    engine.mode = evidence.mode(engine.skip_tokenizer_init.as_ref().map(|s| s.value));
    evidence.output_avoids_zmq().map(|variable| Blind::NoZmqOutput {
        pid: main.id.pid,
        variable,
    })
}

/// A scheduler connects to the detokenizer or, when told to skip it, a second time to the tokenizer.
fn skip_by_sockets(hops: &[HopSeen]) -> Option<Setting<bool>> {
    let output: Vec<(End, End)> = hops
        .iter()
        .filter(|h| h.carries == Carries::Output)
        .filter_map(|h| Some((h.from?, h.to?)))
        .collect();
    let from_scheduler = || output.iter().filter(|(from, _)| from.role == Role::Scheduler);
    let to_detokenizer = from_scheduler().any(|(_, to)| matches!(to.role, Role::Detokenizer | Role::DetokenizerRouter));
    let twice = from_scheduler().any(|(a, to)| {
        !to_detokenizer
            && from_scheduler().any(|(b, other)| a.pid == b.pid && a.inode != b.inode && to.pid == other.pid)
    });
    (to_detokenizer || twice).then(|| Setting::new(twice, Origin::Sockets))
}
