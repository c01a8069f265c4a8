//! Continuous discovery: detects new workers, restarts and exits, and examines only new processes.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use adapter::discover::role_words;

use super::DiscoverError;
use super::Options;
use super::assemble;
use super::candidate::{self, Candidate};
use super::degraded::{Blind, Part, is_out_of_descriptors};
use super::known::Known;
use super::links::{self, Diags, MAX_DESCRIPTORS, Sockets};
use super::own::Own;
use super::topology::{ProcessId, Topology};
use crate::opener_client;
use crate::proc::{ProcDir, ReadError, pids, stat};

const MAX_PROCESSES: usize = 65_536;
/// How many times [`Options::rewire`] passes between scans of the kernel's tables while no candidate opens or closes a socket.
/// Only a connection that was being established at the last scan can then be new.
const UNCHANGED: u32 = 6;

/// Keeps a [`Topology`] up to date.
#[derive(Debug)]
pub struct Watcher {
    options: Options,
    own: Own,
    known: Known,
    diags: Diags,
    topology: Topology,
    /// Sockets of the candidates at the last listing, and its time.
    sockets: Vec<Sockets>,
    listed_at: Option<Instant>,
    /// Processes with these sockets.
    listed: Vec<ProcessId>,
    has_opener_ended: bool,
    /// Time of the last scan of the kernel's tables.
    wired_at: Option<Instant>,
}

impl Watcher {
    /// Scans once; [`Self::topology`] then has the result.
    pub fn new(options: Options) -> Result<Self, DiscoverError> {
        let mut watcher = Self {
            own: Own::read(),
            known: Known::new(options.engines),
            options,
            diags: Diags::new(),
            topology: Topology::default(),
            sockets: Vec::new(),
            listed_at: None,
            listed: Vec::new(),
            has_opener_ended: false,
            wired_at: None,
        };
        watcher.poll()?;
        match watcher.options.named.iter().find(|spec| !watcher.known.has(spec.pid)) {
            Some(spec) => {
                let outside = watcher.pids_outside(spec.pid)?;
                Err(DiscoverError::NoSuchProcess { pid: spec.pid, outside })
            }
            None => Ok(watcher),
        }
    }

    /// Result of the last scan.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Scans again. Costs a directory listing and a short read per engine process. Examines new processes, and lists the processes'
    /// sockets when the processes have changed or [`Options::rewire`] has passed. Scans the kernel's tables when the sockets differ. Returns
    /// whether the topology has changed.
    pub fn poll(&mut self) -> Result<bool, DiscoverError> {
        let (pids, more) = self.pids()?;
        let has_opener_ended = opener_client::has_ended();
        let has_just_ended = has_opener_ended != self.has_opener_ended;
        self.has_opener_ended = has_opener_ended;
        let changed = self.known.update(&pids, &self.options.named) || has_just_ended;
        let is_recent = |at: Option<Instant>, time| at.is_some_and(|at| at.elapsed() < time);
        if !changed && is_recent(self.listed_at, self.options.rewire) {
            return Ok(false);
        }
        self.listed_at = Some(Instant::now());
        let is_same = self.list_sockets();
        if !changed && is_same && is_recent(self.wired_at, self.options.rewire * UNCHANGED) {
            return Ok(false);
        }
        self.wired_at = Some(Instant::now());
        let mut topology = self.scan_sockets();
        if more {
            topology.blind.push(Blind::Limit { what: "processes", limit: MAX_PROCESSES });
        }
        let before = std::mem::replace(&mut self.topology, topology);
        Ok(before != self.topology)
    }

    /// Lists the sockets of the candidates. Returns whether they are the same as before.
    fn list_sockets(&mut self) -> bool {
        let mut sockets = Vec::new();
        let mut listed = Vec::new();
        for (candidate, process) in self.known.candidates() {
            let mut found = process.sockets(MAX_DESCRIPTORS);
            // The last known ones, so that an engine does not seem to lose its connections.
            if found == Err(ReadError::OpenerEnded)
                && let Some(index) = self.listed.iter().position(|id| *id == candidate.id)
            {
                found.clone_from(&self.sockets[index]);
            }
            sockets.push(found);
            listed.push(candidate.id);
        }
        self.listed = listed;
        std::mem::replace(&mut self.sockets, sockets) == self.sockets
    }

    fn pids(&self) -> Result<(Vec<u32>, bool), DiscoverError> {
        let (mut pids, more) = pids(MAX_PROCESSES).map_err(DiscoverError::Proc)?;
        pids.retain(|&pid| Some(pid) != self.own.pid);
        if more {
            // Those that the user named are examined whatever the limit.
            let listed: HashSet<u32> = pids.iter().copied().collect();
            pids.extend(self.options.named.iter().map(|spec| spec.pid).filter(|pid| !listed.contains(pid)));
        }
        Ok((pids, more))
    }

    /// Scans sockets, and infers roles and engines.
    fn scan_sockets(&mut self) -> Topology {
        let (candidates, processes): (Vec<&Candidate>, Vec<&ProcDir>) = self.known.candidates().into_iter().unzip();
        let mut found = links::find(&candidates, &processes, &self.sockets, &mut self.diags);
        // After the socket scan, so that every connected process has its I/O threads as well.
        self.known.find_io_threads();
        let candidates: Vec<&Candidate> = self.known.candidates().into_iter().map(|(candidate, _)| candidate).collect();
        let with_sockets = candidates.iter().zip(&self.sockets);
        let unread: Vec<u32> =
            with_sockets.filter(|(_, found)| found.is_err()).map(|(about, _)| about.id.pid).collect();
        let (engines, roles) =
            assemble::engines(self.options.engines, &candidates, &found.links, &unread, &mut found.blind);
        let roles_known = role_words(self.options.engines);
        for (candidate, role) in candidates.iter().zip(&roles) {
            let pid = candidate.id.pid;
            for part in &candidate.refused {
                found.refused.entry(*part).or_default().push(pid);
            }
            match (role, candidate.libzmq_error.clone()) {
                (Some(_), Some((path, error))) => found.blind.push(Blind::LibZmq { pid, path, error }),
                (None, _) if self.options.named.iter().any(|spec| spec.pid == pid) => {
                    found.blind.push(Blind::NoRole { pid, roles: roles_known.clone() });
                }
                _ => {}
            }
        }
        let mut blind = found.blind;
        blind.extend(self.unreadable(found.refused));
        let lacks_descriptors = |sockets: &Sockets| sockets.as_ref().is_err_and(|error| is_out_of_descriptors(*error));
        blind.extend(self.known.limits(self.sockets.iter().any(lacks_descriptors)));
        if self.known.has_too_large() {
            blind.push(Blind::Limit { what: "bytes of mappings in one process", limit: candidate::MAPS });
        }
        blind.extend(self.has_opener_ended.then_some(Blind::OpenerEnded));
        blind.extend(self.own.blind_spots(self.known.refused(), !engines.is_empty()));
        let roles: Vec<_> = candidates.iter().map(|c| c.id).zip(roles).collect();
        self.known.keep_roles(&roles);
        Topology { engines, frontends: self.known.frontends(), blind, roles: roles_known }
    }

    /// Groups refused parts by processes, so that each group is reported once.
    fn unreadable(&self, refused: BTreeMap<Part, Vec<u32>>) -> impl Iterator<Item = Blind> {
        let mut by_pids: BTreeMap<Vec<u32>, Vec<Part>> = BTreeMap::new();
        for (part, mut pids) in refused {
            pids.sort_unstable();
            pids.dedup();
            by_pids.entry(pids).or_default().push(part);
        }
        by_pids.into_iter().map(|(pids, parts)| {
            let mut missing: Vec<_> = parts.iter().flat_map(|part| part.lacks(self.own.permissions)).collect();
            missing.sort_unstable();
            missing.dedup();
            Blind::Unreadable { parts, pids, missing }
        })
    }

    /// Local pids of processes that have the id `pid` inside their containers.
    fn pids_outside(&self, pid: u32) -> Result<Vec<u32>, DiscoverError> {
        let (mut pids, _) = self.pids()?;
        pids.retain(|&outside| {
            let status = ProcDir::of(outside).and_then(|process| process.read("status", 64 << 10));
            let ns_pids = stat::ns_pids(&status.unwrap_or_default());
            ns_pids.len() > 1 && ns_pids.last() == Some(&pid)
        });
        pids.sort_unstable();
        Ok(pids)
    }
}
