//! Observation of the processes that serve clients, and exclusion of irrelevant connections.

use std::collections::HashMap;

use probe_ebpf::Capture;
use probe_ebpf::egress::{MAX_LISTENERS, Serves};

use super::{ALL_PROCESSES, Probe, ProbeError, Target};
use crate::capability::Feature;
use crate::degraded::{Degraded, Missing};
use crate::egress::{CAPTURE, ListeningPorts};
use crate::library;
use crate::load;
use crate::probe_points::Sought;
use crate::programs::{Group, PointSet, TableChange};

#[derive(Default)]
pub(super) struct ServingProcesses {
    /// Capture limits by process.
    pub(super) capture_limits: HashMap<u32, Serves>,
    /// Ports on which requests arrive, by process.
    listeners: HashMap<u32, ListeningPorts>,
    observes_writes: bool,
    observes_arrivals: bool,
    /// Reads are observed, once any process needs it.
    observes_reads: bool,
}

impl Probe {
    /// Starts to observe the writes of `pid` to TCP sockets, and its reads if `limits` requests them. The limits are the numbers of bytes
    /// that are captured of a write and of a read. Call this before the process is added. Then the deliveries of every received frame are
    /// observed. Returns whether writes are observable. If they are not, [`Probe::degraded`] has the reason.
    pub fn observe_serving(&mut self, pid: u32, limits: Serves) -> Result<bool, ProbeError> {
        if !self.attach_writes() {
            return Ok(false);
        }
        if limits.read > 0 {
            self.attach_client_reads();
        }
        self.serving.capture_limits.insert(pid, limits);
        if let Some(index) = self.target_index(pid) {
            self.enter_capture_limits(pid, index as u32)?;
            // A process that is no target yet gets these probes when it is added.
            self.attach_tls_uprobes(index);
        }
        Ok(true)
    }

    /// Attaches the programs that observe writes, once for all processes. Returns whether they are attached; if not, records the reason.
    fn attach_writes(&mut self) -> bool {
        if !self.serving.observes_writes {
            self.serving.observes_writes = self.attach_group_or_record_refusal(Group::Writes, Feature::Egress);
        }
        self.serving.observes_writes
    }

    /// Attaches a group of programs for all processes. Returns whether they are attached; if not, records the reason for the feature.
    pub(super) fn attach_group_or_record_refusal(&mut self, group: Group, feature: Feature) -> bool {
        let attached = self.kernel.attach_group(group);
        let is_attached = attached.is_ok();
        if let Err(refusal) = attached {
            self.record_refusal(feature, ALL_PROCESSES, refusal);
        }
        is_attached
    }

    /// Attaches the program that observes reads, once for all processes. A failure is only logged, because the writes are observed without
    /// it.
    fn attach_client_reads(&mut self) {
        if !self.serving.observes_reads {
            match self.kernel.attach_group(Group::ClientReads) {
                Ok(()) => self.serving.observes_reads = true,
                Err(error) => tracing::debug!("requests from clients are not observed: {error}"),
            }
        }
    }

    /// Attaches the programs that observe arrivals, once for all processes. Returns whether they are attached; if not, records the reason.
    fn attach_arrivals(&mut self) -> bool {
        if !self.serving.observes_arrivals {
            self.serving.observes_arrivals = self.attach_group_or_record_refusal(Group::Arrivals, Feature::Arrivals);
        }
        self.serving.observes_arrivals
    }

    /// Starts to observe when requests reach `pid` on `listening`, a part of the ports that it listens on. Returns whether that is
    /// observable; if not, [`Probe::degraded`] has the reason.
    pub fn observe_arrivals(&mut self, pid: u32, listening: ListeningPorts) -> Result<bool, ProbeError> {
        if !self.attach_arrivals() {
            return Ok(false);
        }
        // `accept` is probed only once, however often the ports change.
        let is_new = !self.serving.listeners.contains_key(&pid);
        // The ports of an earlier call are replaced.
        self.forget_listening_ports(pid);
        self.serving.listeners.insert(pid, listening);
        if let Some(index) = self.target_index(pid) {
            self.enter_listening_ports(pid, index as u32)?;
            if is_new {
                self.attach_accept_uprobes(index);
            }
        }
        Ok(true)
    }

    /// Makes the kernel side observe arrivals on the ports of `pid`, which is the target `target_index`. Does nothing if its arrivals are
    /// not to be observed.
    pub(super) fn enter_listening_ports(&mut self, pid: u32, target_index: u32) -> Result<(), ProbeError> {
        let ListeningPorts { ports, network_namespace } = self.serving.listeners.get(&pid).cloned().unwrap_or_default();
        // Inodes of namespaces have 32 bits.
        let namespace = network_namespace as u32;
        // The kernel side's table has no room for more.
        for port in ports.into_iter().take(MAX_LISTENERS as usize) {
            self.change_table(TableChange::EnterListener { target: target_index, namespace, port })?;
        }
        Ok(())
    }

    /// Observes when a target accepts connections, if its arrivals are observed. A failure is only logged, because then only the time of
    /// the accept is unknown.
    pub(super) fn attach_accept_uprobes(&mut self, target_index: usize) {
        let pid = self.targets[target_index].pid;
        if !self.serving.listeners.contains_key(&pid) {
            return;
        }
        for library in library::open_libc(pid).unwrap_or_default() {
            if let Err(error) = self.attach_probe_points(target_index, PointSet::Accepts, Sought::Functions, &library) {
                tracing::debug!("accepts of pid {pid} are not observed: {error}");
            }
        }
    }

    /// Stops observing arrivals on the ports of a process.
    pub(super) fn forget_listening_ports(&mut self, pid: u32) {
        let ListeningPorts { ports, network_namespace } = self.serving.listeners.remove(&pid).unwrap_or_default();
        // Inodes of namespaces have 32 bits.
        let namespace = network_namespace as u32;
        for port in ports {
            // An error means that the port was not in the table: it did not fit, or a process that shared it has removed it.
            let _ = self.change_table(TableChange::RemoveListener { namespace, port });
        }
    }

    /// Adds `pid` as a target of which only writes to TCP sockets are observed, without uprobes. Returns whether the writes are observed.
    /// In a separate pid namespace they are not, because there the kernel side recognises a process only by its uprobes.
    pub fn observe_writes(&mut self, pid: u32) -> Result<bool, ProbeError> {
        if !load::is_in_initial_pid_namespace() {
            return Ok(false);
        }
        // Captures the written bytes, and ignores reads.
        let limits = Serves { written: CAPTURE, ..Serves::default() };
        let are_writes_observable = self.observe_serving(pid, limits)?;
        if !are_writes_observable {
            return Ok(false);
        }
        self.check_room_for_targets(1)?;
        // After `observe_serving`, which has stored the limits that are entered here.
        self.register_target(Target { pid, capture: Capture::default() })?;
        Ok(true)
    }

    /// Observes the plain bytes of the TLS connections of a target that serves clients, if
    /// [`ProbeOptions::tls`](crate::ProbeOptions::tls) requests it. Does nothing if they are observed already.
    pub(super) fn attach_tls_uprobes(&mut self, target_index: usize) {
        let slot = &self.targets[target_index];
        let pid = slot.pid;
        if !self.options.tls || slot.observes_tls || !self.serving.capture_limits.contains_key(&pid) {
            return;
        }
        let libraries = library::open_libssl(pid);
        let lacks_libssl = libraries.as_ref().is_ok_and(Vec::is_empty);
        if lacks_libssl {
            self.degraded.push(Degraded { feature: Feature::Tls, pid: Some(pid), missing: Missing::Libssl });
        } else {
            self.targets[target_index].observes_tls =
                self.attach_feature_uprobes(Feature::Tls, target_index, libraries);
        }
    }

    /// Returns whether the plain bytes of any target's TLS connections are observed.
    pub fn observes_tls(&self) -> bool {
        self.targets.iter().any(|slot| !slot.is_free && slot.observes_tls)
    }

    /// Stops observing the connection whose kernel socket has this address.
    pub fn ignore_connection(&mut self, socket_address: u64) -> Result<(), ProbeError> {
        self.change_table(TableChange::IgnoreStream { socket: socket_address })
    }

    /// Stops observing the TLS connection whose `SSL` object has this address.
    pub fn ignore_tls_connection(&mut self, ssl_address: u64) -> Result<(), ProbeError> {
        self.change_table(TableChange::IgnoreTls { connection: ssl_address })
    }

    /// Passes the capture limits of a process that is the target `index` to the kernel side. They are zero if the process does not serve
    /// clients.
    pub(super) fn enter_capture_limits(&mut self, pid: u32, index: u32) -> Result<(), ProbeError> {
        let serves = self.serving.capture_limits.get(&pid).copied().unwrap_or_default();
        self.change_table(TableChange::Serve { target: index, serves })
    }
}
