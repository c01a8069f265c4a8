//! Owners of processes: the main processes that started them. They tell engines apart that are connected to each other.

use std::collections::{BTreeMap, BTreeSet};

use adapter::discover::{Carries, Confidence, Function, Node, RoleSource, RoleWithSource};

use super::blind_spot::BlindSpot;
use super::candidate::Candidate;
use super::link_meaning::InterpretedLinks;
use super::links::Link;

/// The main process that started each process, directly or through others. A main process that no other one started owns itself.
pub(crate) struct Owners {
    by_process: Vec<Option<usize>>,
}

impl Owners {
    /// Finds the owner of each process.
    pub(crate) fn find(nodes: &[Node], roles: &[Option<RoleWithSource>]) -> Self {
        Self { by_process: (0..nodes.len()).map(|node| outermost_main_process(node, nodes, roles)).collect() }
    }

    /// Links between two engines that presumably carry no output. An example is the connection of a decode server's scheduler to the
    /// bootstrap port of a prefill server. In spite of such a link, its ends belong to different engines, because different main processes
    /// started them.
    pub(crate) fn links_between_engines(&self, links: &InterpretedLinks) -> BTreeSet<Link> {
        let engine_owners = self.owners_of_engines(links);
        let mut between_engines = BTreeSet::new();
        for (link, reading) in links.hops() {
            // A link with output, or one that stated roles prove, belongs to one engine.
            let is_within_engine = reading.carries == Carries::Output || reading.confidence != Confidence::Inferred;
            if !is_within_engine && self.connects_two_engines(&engine_owners, link) {
                between_engines.insert(link.clone());
            }
        }
        between_engines
    }

    /// Whether the ends of a link have different owners, both of which are among `engine_owners`.
    fn connects_two_engines(&self, engine_owners: &BTreeSet<usize>, link: &Link) -> bool {
        let Some(owners) = self.owners_of_ends(link) else { return false };
        let have_engines = engine_owners.contains(&owners.connecting) && engine_owners.contains(&owners.accepting);
        have_engines && owners.connecting != owners.accepting
    }

    /// Owners of both ends of a link, which are the main processes that started them. `None` if one is unknown.
    fn owners_of_ends(&self, link: &Link) -> Option<LinkOwners> {
        let connecting = self.by_process[link.connector?.candidate]?;
        let accepting = self.by_process[link.acceptor.candidate]?;
        Some(LinkOwners { connecting, accepting })
    }

    /// Reports the processes that have a link to another engine, which is one that another main process started. A process is reported once
    /// for each such engine.
    pub(crate) fn blind_spots_of_foreign_connections(
        &self,
        between_engines: &BTreeSet<Link>,
        candidates: &[&Candidate],
    ) -> Vec<BlindSpot> {
        let mut foreign = Vec::new();
        for link in between_engines {
            // Without a visible connecting process, there is none to report.
            let Some(connector) = link.connector else { continue };
            let Some(owners) = self.owners_of_ends(link) else { continue };
            let connection = BlindSpot::ForeignConnection {
                pid: candidates[connector.candidate].id.pid,
                main: candidates[owners.connecting].id.pid,
                other_main: candidates[owners.accepting].id.pid,
            };
            // A process may have several connections to one engine.
            if !foreign.contains(&connection) {
                foreign.push(connection);
            }
        }
        foreign
    }

    /// Reports the processes that exchange messages with several engines, and so join these engines to one group. Main processes and
    /// control processes, such as vLLM's coordinator, are not reported.
    pub(crate) fn blind_spots_of_shared_processes(
        &self,
        links: &InterpretedLinks,
        roles: &[Option<RoleWithSource>],
        candidates: &[&Candidate],
    ) -> impl Iterator<Item = BlindSpot> {
        // Processes that connect the same engines are reported together.
        let mut pids_by_mains: BTreeMap<Vec<u32>, Vec<u32>> = BTreeMap::new();
        for (process, engine_owners) in self.engines_by_process(links, roles) {
            let is_main = roles[process].is_some_and(|(role, _)| role.is_main());
            if engine_owners.len() > 1 && !is_main {
                let mains = engine_owners.into_iter().map(|owner| candidates[owner].id.pid).collect();
                pids_by_mains.entry(mains).or_default().push(candidates[process].id.pid);
            }
        }
        pids_by_mains.into_iter().map(|(mains, pids)| BlindSpot::SharedProcesses { pids, mains })
    }

    /// The engines with which each process exchanges messages. An engine is given by the index of its owner, which is the main process that
    /// started it. Messages of control processes do not count.
    fn engines_by_process(
        &self,
        links: &InterpretedLinks,
        roles: &[Option<RoleWithSource>],
    ) -> BTreeMap<usize, BTreeSet<usize>> {
        let engine_owners = self.owners_of_engines(links);
        let mut engines_by_process: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (link, _reading) in links.hops() {
            // An invisible connecting process shows no engine.
            let Some(connector) = link.connector else { continue };
            let ends = [connector.candidate, link.acceptor.candidate];
            if ends.iter().any(|&end| has_control_role(roles[end])) {
                continue;
            }
            // Not every main process has an engine.
            let end_owners = ends.iter().filter_map(|&end| self.by_process[end]);
            let engines_at_ends: Vec<usize> = end_owners.filter(|owner| engine_owners.contains(owner)).collect();
            // Each end exchanges messages with its own engine and with that of the other end.
            for end in ends {
                engines_by_process.entry(end).or_default().extend(&engines_at_ends);
            }
        }
        engines_by_process
    }

    /// Indexes of the owners that have an engine. Between two processes that such an owner started, output may flow.
    fn owners_of_engines(&self, links: &InterpretedLinks) -> BTreeSet<usize> {
        let mut engine_owners = BTreeSet::new();
        for (link, reading) in links.hops() {
            let may_carry_output = reading.carries != Carries::Requests;
            if may_carry_output
                && let Some(owners) = self.owners_of_ends(link)
                && owners.connecting == owners.accepting
            {
                engine_owners.insert(owners.accepting);
            }
        }
        engine_owners
    }
}

/// Owners of the processes at both ends of a link, as indexes of candidates.
struct LinkOwners {
    connecting: usize,
    accepting: usize,
}

/// Whether a process neither sends nor receives tokens.
fn has_control_role(role: Option<RoleWithSource>) -> bool {
    role.is_some_and(|(role, _)| role.function() == Function::Control)
}

/// Whether this is the role of an engine's main process, known by its command or by the processes that it started. Connections alone prove
/// no engine.
fn is_proven_main((role, source): RoleWithSource) -> bool {
    role.is_main() && matches!(source, RoleSource::CommandLine | RoleSource::Children)
}

/// The outermost main process among a process and those that started it. `None` if none of them is a main process.
fn outermost_main_process(process: usize, nodes: &[Node], roles: &[Option<RoleWithSource>]) -> Option<usize> {
    let mut outermost = None;
    let mut next_process = Some(process);
    // The number of steps is limited, because parents form a circle if a pid was reused while they were read.
    for _ in 0..nodes.len() {
        let Some(ancestor) = next_process else { break };
        if roles[ancestor].is_some_and(is_proven_main) {
            outermost = Some(ancestor);
        }
        next_process = nodes[ancestor].parent;
    }
    outermost
}
