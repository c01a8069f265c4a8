//! Processes that start after the attach.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use probe_user::Probe;
use probe_user::discover::{Engine, Process};
use trace::MonoNs;

use super::discovery_thread::DiscoveryThread;
use super::egress::Egress;
use super::found_engine::Ports;
use super::inbox::RunId;
use super::lanes::{Lanes, Sink};
use super::socket_reads::SocketReads;

/// Time during which a tokenizer without a listening port is checked again; it opens the port once the model is loaded.
const SERVES_WITHIN: Duration = Duration::from_mins(5);
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of pids named in a line of `degraded`.
const MAX_NAMED_PIDS: usize = 8;

/// New processes, until all observations from before they were watched have been read.
#[derive(Debug, Default)]
pub(super) struct LateProcesses {
    /// Connections have changed, and the hops are not updated yet.
    is_rewired: bool,
    /// Processes watched from the end of this poll on.
    watched: BTreeSet<u32>,
    /// Processes whose writes to clients are observed from the end of this poll on.
    served: BTreeSet<u32>,
    /// Tokenizers that served no clients when checked.
    unserved: Vec<UnservedTokenizer>,
    last_check: Option<Instant>,
    /// All processes watched only since some time after the attach.
    watched_late: BTreeSet<u32>,
}

#[derive(Debug)]
struct UnservedTokenizer {
    process: Process,
    first_check: Instant,
}

impl LateProcesses {
    pub(super) fn record_rewiring(&mut self) {
        self.is_rewired = true;
    }

    pub(super) fn add_watched(&mut self, pid: u32) {
        self.watched.insert(pid);
        self.watched_late.insert(pid);
    }

    /// Observes the writes of a process to clients, if it serves any on these ports. `ports` is `None` while they are not known. A process
    /// that answers clients but serves none yet is checked again later. An error says why its writes cannot be observed.
    pub(super) fn observe_writes_if_serving(
        &mut self,
        process: &Process,
        ports: Option<Ports>,
        egress: &mut Egress,
        probe: &mut Probe,
        engine: &Engine,
    ) -> Result<(), String> {
        let is_served = match ports {
            Some(ports) => {
                // An error says why the ports cannot be read.
                let listening_ports = ports?;
                egress.observe_serving(probe, process, &listening_ports, engine)?
            }
            None => false,
        };
        if is_served {
            self.served.insert(process.id.pid);
        } else if process.answers_clients() {
            self.unserved.push(UnservedTokenizer { process: process.clone(), first_check: Instant::now() });
        }
        Ok(())
    }

    /// Takes the processes whose writes have become observed since the last call.
    pub(super) fn take_served(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.served)
    }

    /// Observes the tokenizers that served no clients before and now do. Checks this at most once per [`RETRY_INTERVAL`]. Forgets the
    /// tokenizers that have served none for [`SERVES_WITHIN`].
    pub(super) fn retry_unserved_tokenizers(
        &mut self,
        run: RunId,
        discovery: &DiscoveryThread,
        egress: &mut Egress,
        probe: &mut Probe,
        engine: &Engine,
    ) {
        if self.last_check.is_some_and(|at| at.elapsed() < RETRY_INTERVAL) {
            return;
        }
        self.last_check = Some(Instant::now());
        self.unserved.retain(|tokenizer| tokenizer.first_check.elapsed() < SERVES_WITHIN);
        // Those that still serve no clients are put back.
        for tokenizer in std::mem::take(&mut self.unserved) {
            let pid = tokenizer.process.id.pid;
            let Some(ports) = discovery.ports(pid) else {
                // Not looked up yet.
                self.unserved.push(tokenizer);
                continue;
            };
            let observed = ports.and_then(|ports| egress.observe_serving(probe, &tokenizer.process, &ports, engine));
            match observed {
                Ok(true) => {
                    self.served.insert(pid);
                }
                Ok(false) => self.unserved.push(tokenizer),
                // The process has exited, or its sockets are no longer readable.
                Err(_) => {}
            }
        }
        discovery.look_up_ports(run, self.unserved.iter().map(|tokenizer| tokenizer.process.id.pid));
    }

    /// Counts the receives and deliveries of new processes as observed from now on, and reports the hops for which this changes something.
    /// Call this once all observations from before they were watched have been read: otherwise frames of that time would be judged, too.
    pub(super) fn count_new_processes_as_observed(
        &mut self,
        lanes: &mut Lanes,
        reads: &mut SocketReads,
        sink: Sink<'_>,
    ) {
        let paths = &mut lanes.paths;
        let now = MonoNs::now();
        let have_reads_changed = reads.apply_connection_changes(&mut paths.observability, now);
        let have_connections_changed = self.is_rewired;
        self.is_rewired = false;
        let has_new_processes = !self.watched.is_empty() || !self.served.is_empty();
        // The usual case: this is called at each turn, and changes are rare.
        if !have_reads_changed && !have_connections_changed && !has_new_processes {
            return;
        }
        for pid in std::mem::take(&mut self.watched) {
            paths.observability.mark_watched(pid, now);
        }
        for pid in self.take_served() {
            paths.observability.mark_served(pid, now);
        }
        paths.update_and_announce_receivers(now, sink);
    }

    /// Line for the report that names processes which were not watched from the start; `None` without any.
    pub(super) fn describe_late_processes(&self) -> Option<String> {
        if self.watched_late.is_empty() {
            return None;
        }
        let named_pids: Vec<String> = self.watched_late.iter().take(MAX_NAMED_PIDS).map(u32::to_string).collect();
        Some(format!(
            "{} processes started while attached and are now watched (pid {}{}): chunks sent to them earlier are not judged",
            self.watched_late.len(),
            named_pids.join(", "),
            if self.watched_late.len() > MAX_NAMED_PIDS { ", ..." } else { "" }
        ))
    }
}
