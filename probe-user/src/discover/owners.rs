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
    pub(crate) fn find(nodes: &[Node], roles: &[Option<RoleWithSource>]) -> Self {
        Self { by_process: (0..nodes.len()).map(|node| outermost_main_process(node, nodes, roles)).collect() }
    }

    /// Links between two engines that presumably carry no output, such as the connection of a decode server's scheduler to the bootstrap
    /// port of a prefill server. Who started the processes is better evidence of their engine.
    pub(crate) fn links_between_engines(&self, links: &InterpretedLinks) -> BTreeSet<Link> {
        let owners = self.owners_of_engines(links);
        let presumed_without_output = links
            .hops()
            .filter(|(_, reading)| reading.carries != Carries::Output && reading.confidence == Confidence::Inferred);
        let between = presumed_without_output.filter(|(link, _)| {
            let ends = [link.connector.map(|end| end.candidate), Some(link.acceptor.candidate)];
            let owners_of_ends: BTreeSet<usize> =
                ends.into_iter().flatten().filter_map(|end| self.by_process[end]).collect();
            owners_of_ends.len() > 1 && owners_of_ends.is_subset(&owners)
        });
        between.map(|(link, _)| link.clone()).collect()
    }

    /// Reports the processes that have connected to another engine than that of their owner, each once for an engine.
    pub(crate) fn report_foreign_connections(
        &self,
        between_engines: &BTreeSet<Link>,
        candidates: &[&Candidate],
    ) -> Vec<BlindSpot> {
        let pid_of = |process: usize| candidates[process].id.pid;
        let mut foreign = Vec::new();
        for link in between_engines {
            if let Some(connector) = link.connector
                && let Some(main) = self.by_process[connector.candidate]
                && let Some(other_main) = self.by_process[link.acceptor.candidate]
            {
                let pid = pid_of(connector.candidate);
                let connection =
                    BlindSpot::ForeignConnection { pid, main: pid_of(main), other_main: pid_of(other_main) };
                if !foreign.contains(&connection) {
                    foreign.push(connection);
                }
            }
        }
        foreign
    }

    /// Reports the processes that exchange messages with several engines, which therefore form one group. A process that sends and receives
    /// no tokens may serve several, as vLLM's coordinator does.
    pub(crate) fn report_shared_processes(
        &self,
        links: &InterpretedLinks,
        roles: &[Option<RoleWithSource>],
        candidates: &[&Candidate],
    ) -> impl Iterator<Item = BlindSpot> {
        let is_control = |end: usize| roles[end].is_some_and(|(role, _)| role.function() == Function::Control);
        let is_main = |end: usize| roles[end].is_some_and(|(role, _)| role.is_main());
        let owners = self.owners_of_engines(links);
        let mut engines_by_process: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (link, _) in links.hops() {
            let Some(connector) = link.connector else { continue };
            let ends = [connector.candidate, link.acceptor.candidate];
            if ends.into_iter().any(is_control) {
                continue;
            }
            for end in ends {
                let engines = engines_by_process.entry(end).or_default();
                engines
                    .extend(ends.iter().filter_map(|end| self.by_process[*end]).filter(|owner| owners.contains(owner)));
            }
        }
        // Processes that connect the same engines are one line.
        let mut pids_by_mains: BTreeMap<Vec<u32>, Vec<u32>> = BTreeMap::new();
        for (process, engines) in engines_by_process {
            if engines.len() > 1 && !is_main(process) {
                let mains = engines.into_iter().map(|main| candidates[main].id.pid).collect();
                pids_by_mains.entry(mains).or_default().push(candidates[process].id.pid);
            }
        }
        pids_by_mains.into_iter().map(|(mains, pids)| BlindSpot::SharedProcesses { pids, mains })
    }

    /// Owners that are main processes of an engine: output flows between two processes of theirs.
    fn owners_of_engines(&self, links: &InterpretedLinks) -> BTreeSet<usize> {
        let with_output = links.hops().filter(|(_, reading)| reading.carries != Carries::Requests);
        let owners = with_output.filter_map(|(link, _)| {
            let owner = self.by_process[link.acceptor.candidate]?;
            (self.by_process[link.connector?.candidate] == Some(owner)).then_some(owner)
        });
        owners.collect()
    }
}

/// The outermost main process among a process and those that started it.
fn outermost_main_process(process: usize, nodes: &[Node], roles: &[Option<RoleWithSource>]) -> Option<usize> {
    let mut outermost = None;
    let mut next = Some(process);
    // Parents would form a circle if pids were reused while they are read.
    for _ in 0..nodes.len() {
        let Some(ancestor) = next else { break };
        // A role that connections show is no evidence of an engine of its own.
        let is_main = roles[ancestor].is_some_and(|(role, source)| {
            role.is_main() && matches!(source, RoleSource::CommandLine | RoleSource::Children)
        });
        if is_main {
            outermost = Some(ancestor);
        }
        next = nodes[ancestor].parent;
    }
    outermost
}
