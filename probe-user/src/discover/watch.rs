//! Continuous discovery: detects new workers, restarts and exits, and examines only new processes.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use adapter::discover::{RoleWithSource, role_words};

use super::DiscoverError;
use super::DiscoverOptions;
use super::assemble::{Assembly, assemble_engines};
use super::blind_spot::{BlindSpot, ProcPart, is_out_of_descriptors};
use super::candidate::{self, Candidate};
use super::links::{DiagSockets, FoundLinks, MAX_DESCRIPTORS, ProcessSockets, find_links};
use super::own_process::OwnProcess;
use super::process_cache::ProcessCache;
use super::topology::{ProcessId, Topology};
use crate::opener_client;
use crate::proc::{Listing, ProcDir, ReadError, list_pids, stat};

const MAX_PROCESSES: usize = 65_536;
/// How many times [`DiscoverOptions::socket_interval`] passes between scans of the kernel's tables while no candidate opens or closes a
/// socket. Only a connection that was being established at the last scan can then be new.
const UNCHANGED_INTERVALS: u32 = 6;

/// Whether less time than `interval` has passed since the time `since`. False without such a time.
fn has_been_less_than(interval: Duration, since: Option<Instant>) -> bool {
    since.is_some_and(|time| time.elapsed() < interval)
}

/// Pids of the candidates whose sockets could not be listed. `sockets` are parallel to `candidates`.
fn pids_with_unread_sockets(candidates: &[&Candidate], sockets: &[ProcessSockets]) -> Vec<u32> {
    let mut unread = Vec::new();
    for (candidate, listed) in candidates.iter().zip(sockets) {
        if listed.is_err() {
            unread.push(candidate.id.pid);
        }
    }
    unread
}

/// Keeps a [`Topology`] up to date.
#[derive(Debug)]
pub struct Watcher {
    options: DiscoverOptions,
    own: OwnProcess,
    cache: ProcessCache,
    diag_sockets: DiagSockets,
    topology: Topology,
    /// Sockets of the candidates at the last listing, and its time.
    sockets: Vec<ProcessSockets>,
    sockets_listed_at: Option<Instant>,
    /// Processes with these sockets.
    socket_owners: Vec<ProcessId>,
    has_opener_ended: bool,
    /// Time of the last scan of the kernel's tables.
    links_found_at: Option<Instant>,
}

impl Watcher {
    /// Scans once. [`Self::topology`] then has the result. Fails if a process that the user named does not exist.
    pub fn new(options: DiscoverOptions) -> Result<Self, DiscoverError> {
        let mut watcher = Self {
            own: OwnProcess::read(),
            cache: ProcessCache::new(options.engines),
            options,
            diag_sockets: DiagSockets::new(),
            topology: Topology::default(),
            sockets: Vec::new(),
            sockets_listed_at: None,
            socket_owners: Vec::new(),
            has_opener_ended: false,
            links_found_at: None,
        };
        watcher.poll()?;
        match watcher.options.named.iter().find(|spec| !watcher.cache.contains(spec.pid)) {
            Some(spec) => {
                // The user may have read the pid outside of this container.
                let outside = watcher.outside_pids_of(spec.pid)?;
                Err(DiscoverError::NoSuchProcess { pid: spec.pid, outside })
            }
            None => Ok(watcher),
        }
    }

    /// Result of the last scan.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Scans again, and returns whether the topology has changed. Always lists the processes and examines the new ones. Lists the sockets
    /// only if the processes have changed, or if [`DiscoverOptions::socket_interval`] has passed. Scans the kernel's tables only if the
    /// processes or sockets have changed, or after a longer interval.
    pub fn poll(&mut self) -> Result<bool, DiscoverError> {
        let pids = self.list_other_pids()?;
        let has_opener_just_ended = self.note_end_of_opener();
        let have_candidates_changed = self.cache.update_for_pids_and_report_change(&pids.items, &self.options.named);
        // Without the opener, more is unknown, so its end counts as a change.
        let processes_changed = have_candidates_changed || has_opener_just_ended;
        // Listing descriptors costs a system call for each of them.
        if !processes_changed && has_been_less_than(self.options.socket_interval, self.sockets_listed_at) {
            return Ok(false);
        }
        self.sockets_listed_at = Some(Instant::now());
        let are_sockets_same = self.update_and_compare_sockets();
        // With the same sockets, the kernel's tables are scanned rarely.
        let links_interval = self.options.socket_interval * UNCHANGED_INTERVALS;
        if !processes_changed && are_sockets_same && has_been_less_than(links_interval, self.links_found_at) {
            return Ok(false);
        }
        self.links_found_at = Some(Instant::now());
        let mut topology = self.infer_topology_and_keep_roles();
        if pids.is_truncated {
            topology.blind_spots.push(BlindSpot::Limit { what: "processes", limit: MAX_PROCESSES });
        }
        let topology_changed = topology != self.topology;
        self.topology = topology;
        Ok(topology_changed)
    }

    /// Notes whether the opener has ended, the helper process that opens files of other processes. Returns whether that is new.
    fn note_end_of_opener(&mut self) -> bool {
        let has_ended = opener_client::has_ended();
        let is_new = has_ended != self.has_opener_ended;
        self.has_opener_ended = has_ended;
        is_new
    }

    /// Sockets of a candidate at the last listing. `None` if it was not listed then.
    fn last_sockets_of(&self, candidate: ProcessId) -> Option<&ProcessSockets> {
        // `socket_owners` is parallel to `sockets`.
        let index = self.socket_owners.iter().position(|owner| *owner == candidate)?;
        self.sockets.get(index)
    }

    /// Lists the sockets of the candidates again, which are the processes that may belong to an engine. Returns whether they are the same
    /// as before.
    fn update_and_compare_sockets(&mut self) -> bool {
        let mut sockets = Vec::new();
        let mut owners = Vec::new();
        for (candidate, process) in self.cache.candidates() {
            let mut found = process.list_sockets(MAX_DESCRIPTORS);
            // The opener is a helper process that opens files for this one. Once it has ended, the last known sockets are kept, so that an
            // engine does not seem to lose its connections.
            if found == Err(ReadError::OpenerEnded)
                && let Some(last) = self.last_sockets_of(candidate.id)
            {
                found.clone_from(last);
            }
            sockets.push(found);
            owners.push(candidate.id);
        }
        self.socket_owners = owners;
        let are_same = sockets == self.sockets;
        self.sockets = sockets;
        are_same
    }

    /// Pids of all processes except this one.
    fn list_other_pids(&self) -> Result<Listing<u32>, DiscoverError> {
        let mut pids = list_pids(MAX_PROCESSES).map_err(DiscoverError::Proc)?;
        pids.items.retain(|&pid| Some(pid) != self.own.pid);
        if pids.is_truncated {
            // Those that the user named are examined whatever the limit.
            let listed: HashSet<u32> = pids.items.iter().copied().collect();
            let named = self.options.named.iter().map(|spec| spec.pid);
            pids.items.extend(named.filter(|pid| !listed.contains(pid)));
        }
        Ok(pids)
    }

    /// Infers the topology from the links between the candidates. A candidate is a process that may belong to an engine, and a link is a
    /// connection between two of them. Keeps the roles for the next scan.
    fn infer_topology_and_keep_roles(&mut self) -> Topology {
        let mut found = self.find_links_of_candidates();
        // libzmq starts its I/O threads before it connects. So after the search for links, every connected process has these threads.
        self.cache.find_missing_io_threads();
        let candidates: Vec<&Candidate> = self.cache.candidates().into_iter().map(|(candidate, _)| candidate).collect();
        let unread = pids_with_unread_sockets(&candidates, &self.sockets);
        let Assembly { engines, roles } =
            assemble_engines(self.options.engines, &candidates, &found.links, &unread, &mut found.blind_spots);
        let role_names = role_words(self.options.engines);
        self.add_unknowns_of_candidates(&candidates, &roles, &role_names, &mut found);
        let has_engine = !engines.is_empty();
        let blind_spots = self.all_blind_spots(found, has_engine);
        // At the next scan, the peers that show these roles may be gone.
        let roles_to_keep: Vec<_> = candidates.iter().map(|candidate| candidate.id).zip(roles).collect();
        self.cache.keep_roles_of_scan(&roles_to_keep);
        Topology { engines, frontends: self.cache.frontends(), blind_spots, roles: role_names }
    }

    /// Finds the links between the candidates.
    fn find_links_of_candidates(&mut self) -> FoundLinks {
        let (candidates, processes): (Vec<&Candidate>, Vec<&ProcDir>) = self.cache.candidates().into_iter().unzip();
        find_links(&candidates, &processes, &self.sockets, &mut self.diag_sockets)
    }

    /// Adds to `found` what is unknown about each candidate. `roles` are parallel to `candidates`.
    fn add_unknowns_of_candidates(
        &self,
        candidates: &[&Candidate],
        roles: &[Option<RoleWithSource>],
        role_names: &str,
        found: &mut FoundLinks,
    ) {
        for (candidate, role) in candidates.iter().zip(roles) {
            for part in &candidate.refused {
                found.refused.entry(*part).or_default().push(candidate.id.pid);
            }
            found.blind_spots.extend(self.blind_spot_of_candidate(candidate, role.is_some(), role_names));
        }
    }

    /// All blind spots of this scan: those found on the way, refused files, reached limits, and the limits of this process itself.
    /// `has_engine`: the scan has found an engine.
    fn all_blind_spots(&self, found: FoundLinks, has_engine: bool) -> Vec<BlindSpot> {
        let mut blind_spots = found.blind_spots;
        blind_spots.extend(self.blind_spots_of_refused_parts(found.refused));
        blind_spots.extend(self.blind_spots_of_reached_limits());
        if self.has_opener_ended {
            blind_spots.push(BlindSpot::OpenerEnded);
        }
        blind_spots.extend(self.own.blind_spots(self.cache.refused_count(), has_engine));
        blind_spots
    }

    /// Limits of this search that were reached, as blind spots.
    fn blind_spots_of_reached_limits(&self) -> Vec<BlindSpot> {
        let lacks_descriptors =
            self.sockets.iter().any(|sockets| sockets.as_ref().is_err_and(|error| is_out_of_descriptors(*error)));
        let mut reached = self.cache.reached_limit_reports(lacks_descriptors);
        if self.cache.has_too_large() {
            reached
                .push(BlindSpot::Limit { what: "bytes of mappings in one process", limit: candidate::MAX_MAPS_BYTES });
        }
        reached
    }

    /// What is unknown about a candidate. If it has a role, that is a libzmq that could not be read. If it has none, that is its role, but
    /// only for a process that the user named. `None` if nothing is to be reported.
    fn blind_spot_of_candidate(&self, candidate: &Candidate, has_role: bool, role_names: &str) -> Option<BlindSpot> {
        let pid = candidate.id.pid;
        if has_role {
            let (path, error) = candidate.libzmq_error.clone()?;
            return Some(BlindSpot::LibZmq { pid, path, error });
        }
        let is_named = self.options.named.iter().any(|spec| spec.pid == pid);
        is_named.then(|| BlindSpot::NoRole { pid, roles: role_names.to_owned() })
    }

    /// Reports the `refused` parts of `/proc/PID`, each with the pids for which it is refused. Parts with the same pids share a report.
    fn blind_spots_of_refused_parts(&self, refused: BTreeMap<ProcPart, Vec<u32>>) -> impl Iterator<Item = BlindSpot> {
        let mut by_pids: BTreeMap<Vec<u32>, Vec<ProcPart>> = BTreeMap::new();
        for (part, mut pids) in refused {
            // Sorted and without repetition, so that the same pids are the same key.
            pids.sort_unstable();
            pids.dedup();
            by_pids.entry(pids).or_default().push(part);
        }
        by_pids.into_iter().map(|(pids, parts)| {
            let mut missing: Vec<_> =
                parts.iter().flat_map(|part| part.missing_capabilities(self.own.permissions)).collect();
            // Several parts may need the same capability.
            missing.sort_unstable();
            missing.dedup();
            BlindSpot::Unreadable { parts, pids, missing }
        })
    }

    /// Local pids of processes that have the id `inner_pid` inside their containers. Omits processes whose status cannot be read.
    fn outside_pids_of(&self, inner_pid: u32) -> Result<Vec<u32>, DiscoverError> {
        let mut pids = self.list_other_pids()?.items;
        pids.retain(|&outside| {
            let status =
                ProcDir::open(outside).and_then(|process| process.read("status", foreign::kernel::MAX_STATUS_BYTES));
            let ns_pids = stat::parse_ns_pids(&status.unwrap_or_default());
            // A process in a container has several pids, the last of which is the one inside.
            ns_pids.len() > 1 && ns_pids.last() == Some(&inner_pid)
        });
        pids.sort_unstable();
        Ok(pids)
    }
}
