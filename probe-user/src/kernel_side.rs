//! The part of the probe that needs capabilities: its programs, maps and links. It reads no byte that another process wrote.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::path::PathBuf;

use aya::Ebpf;
use aya_log::EbpfLogger;
use probe_ebpf::Offsets;
use probe_ebpf::egress::Places;

use crate::attach::{self, AttachError, AttachMethod, Link};
use crate::btf::{Btf, VMLINUX};
use crate::egress::find_egress_offsets;
use crate::load::{self, KernelLog, LoadSettings};
use crate::loss_counters::LossCounters;
use crate::probe_options::ProbeOptions;
use crate::programs::{
    Batch, Group, LoadedFacts, LossCounts, Refusal, TableChange, ThreadEntry, UPROBES, UPROBES_WITH_TLS,
};
use crate::tables;

/// Limits of the size of the ring.
const MIN_RING_BYTES: u32 = 64 << 10;
const MAX_RING_BYTES: u32 = 1 << 30;

pub(crate) struct KernelSide {
    ebpf: Ebpf,
    attach_method: AttachMethod,
    options: ProbeOptions,
    types: KernelTypes,
    /// Links of the attached groups.
    group_links: HashMap<Group, Vec<Link>>,
    /// Links of the uprobes by target.
    target_links: HashMap<u32, Vec<Link>>,
    kernel_log: Option<EbpfLogger<KernelLog>>,
    loss_counters: LossCounters,
}

/// What the running kernel's description of its types says to the programs.
struct KernelTypes {
    offsets: Offsets,
    /// Why the kernel describes no types.
    missing_btf: Option<String>,
    /// Fields that the egress programs read, or why they are unknown.
    egress_offsets: Result<Places, String>,
    /// The kernel's poll functions have the parameters that the programs read.
    has_poll_timeouts: bool,
}

impl KernelTypes {
    /// Reads the running kernel's description of its types (BTF). If there is none, keeps the reason for the features that need it.
    fn read() -> Self {
        match Btf::read_running_kernel() {
            Ok(btf) => Self {
                offsets: btf.probe_offsets(),
                missing_btf: None,
                egress_offsets: find_egress_offsets(&btf).map_err(|error| error.to_string()),
                has_poll_timeouts: attach::KERNEL_POLLS
                    .iter()
                    .all(|poll| btf.takes_pointer_to(poll.function, poll.timeout_index, "timespec64")),
            },
            Err(error) => Self {
                offsets: Offsets::NONE,
                missing_btf: Some(error.to_string()),
                egress_offsets: Err(error.to_string()),
                has_poll_timeouts: false,
            },
        }
    }
}

/// Settings for the object of eBPF programs. They follow from the options and from what the kernel says about its types.
fn settings_for_load(options: ProbeOptions, types: &KernelTypes) -> LoadSettings {
    LoadSettings {
        // The kernel accepts powers of two only.
        ring_bytes: options.ring_bytes.clamp(MIN_RING_BYTES, MAX_RING_BYTES).next_power_of_two(),
        offsets: types.offsets,
        // The programs of both options add to the times that the kernel side keeps for each thread.
        accounting: options.scheduler || options.polls,
        // If the offsets are unknown, zeros take their place. They are never used, because the programs that need them are not attached.
        places: types.egress_offsets.clone().unwrap_or_default(),
    }
}

/// Method to attach the uprobe programs: perf events if the options request them, otherwise the best one that the kernel supports.
fn choose_attach_method(ebpf: &Ebpf, options: ProbeOptions) -> AttachMethod {
    let programs: &'static [&'static str] = if options.tls { &UPROBES_WITH_TLS } else { &UPROBES };
    if options.perf_events { AttachMethod::PerfEvents(programs) } else { AttachMethod::choose(ebpf, programs) }
}

/// Opens the log of the programs. `None` if it is not to be shown, or if the object was built without one.
fn open_kernel_log(ebpf: &mut Ebpf) -> Option<EbpfLogger<KernelLog>> {
    if !load::shows_kernel_log() {
        return None;
    }
    EbpfLogger::init_with_logger(ebpf, KernelLog).ok()
}

impl KernelSide {
    /// Creates the maps and prepares the programs.
    pub(crate) fn load(options: ProbeOptions) -> Result<Self, Refusal> {
        let types = KernelTypes::read();
        let mut ebpf =
            load::load_object(settings_for_load(options, &types)).map_err(|error| Refusal::from_error(&error))?;
        let attach_method = choose_attach_method(&ebpf, options);
        let kernel_log = open_kernel_log(&mut ebpf);
        Ok(Self {
            ebpf,
            attach_method,
            options,
            types,
            group_links: HashMap::new(),
            target_links: HashMap::new(),
            kernel_log,
            loss_counters: LossCounters::new(),
        })
    }

    /// Loads the programs that further targets may need, so that this process can then give up the right to load programs. Programs
    /// that cannot be loaded are reported when a target needs them.
    pub(crate) fn preload_programs_and_attach_groups(&mut self) {
        if let Err(error) = self.attach_method.load_all_programs(&mut self.ebpf) {
            tracing::debug!("cannot preload a uprobe program: {error}");
        }
        if self.options.scheduler {
            self.try_attach_scheduler_groups();
        }
        // Attached and not only loaded, because only an attach shows which programs for writes the kernel supports.
        if let Err(error) = self.attach_group(Group::Writes) {
            tracing::debug!("cannot observe responses to clients: {error}");
        }
        let can_read_sockets = self.types.egress_offsets.is_ok();
        if can_read_sockets {
            self.load_socket_read_programs();
        }
    }

    /// Attaches the programs that observe threads and their polls. Errors are dropped, because the probe attaches the programs again later
    /// and learns the errors then.
    fn try_attach_scheduler_groups(&mut self) {
        let _ = self.attach_group(Group::Scheduler);
        // Polls are counted in the kernel only if the scheduler's programs show which threads sleep in one.
        if self.options.polls && self.loaded_facts().observes_sleep {
            let _ = self.attach_group(Group::KernelPolls);
        }
    }

    /// Loads the programs that observe reads from sockets and the arrival of requests.
    fn load_socket_read_programs(&mut self) {
        for program in [attach::CLIENT_READS, attach::ZMTP_READS].into_iter().chain(attach::ARRIVALS) {
            if let Err(error) = attach::load_tracepoint_program(&mut self.ebpf, program) {
                tracing::debug!("cannot observe reads from sockets: {error}");
            }
        }
    }

    /// Facts about the loaded programs that the reader of their records needs.
    pub(crate) fn loaded_facts(&self) -> LoadedFacts {
        LoadedFacts {
            // A sleep in a poll is recognised by the number of the system call.
            observes_sleep: self.types.offsets.call != Offsets::ABSENT,
            uses_perf_events: matches!(self.attach_method, AttachMethod::PerfEvents(_)),
        }
    }

    /// Whether the kernel's log is shown and must be flushed regularly.
    pub(crate) fn has_log(&self) -> bool {
        self.kernel_log.is_some()
    }

    /// Passes the log of the kernel's programs to that of tokengap.
    pub(crate) fn flush_log(&mut self) {
        if let Some(log) = &mut self.kernel_log {
            log.flush();
        }
    }

    /// Descriptor of the ring with the observations.
    pub(crate) fn ring_descriptor(&self) -> Result<BorrowedFd<'_>, Refusal> {
        let ring =
            tables::find_map(&self.ebpf, "RECORDS").map_err(|error| Refusal::from_table_error("RECORDS", &error))?;
        let data = attach::map_data(ring).ok_or_else(|| Refusal::Kernel(String::from("RECORDS is not a ring")))?;
        Ok(data.fd().as_fd())
    }

    /// Changes a table of the programs.
    pub(crate) fn change_table(&mut self, change: TableChange) -> Result<(), Refusal> {
        tables::apply_change(&mut self.ebpf, change).map_err(|error| Refusal::Kernel(format!("{change:?}: {error}")))
    }

    /// Reads the counters of lost records.
    pub(crate) fn read_losses(&mut self) -> Result<LossCounts, Refusal> {
        let map =
            tables::find_map(&self.ebpf, "LOSSES").map_err(|error| Refusal::from_table_error("LOSSES", &error))?;
        let data = attach::map_data(map).ok_or_else(|| Refusal::Kernel(String::from("LOSSES is no array")))?;
        self.loss_counters.read_all(data).map_err(|error| Refusal::from_table_error("LOSSES", &error))
    }

    pub(crate) fn read_threads(&self) -> Result<Vec<ThreadEntry>, Refusal> {
        tables::read_threads(&self.ebpf).map_err(|error| Refusal::from_table_error("THREADS", &error))
    }

    /// Attaches a group of programs, unless it is attached.
    pub(crate) fn attach_group(&mut self, group: Group) -> Result<(), Refusal> {
        // One attachment serves all targets.
        if self.group_links.contains_key(&group) {
            return Ok(());
        }
        if let Some(types) = self.reason_of_missing_types(group) {
            return Err(Refusal::Types(types));
        }
        let links = self.attach_programs_of_group(group).map_err(|error| Refusal::from_error(&error))?;
        self.group_links.insert(group, links);
        Ok(())
    }

    /// Attaches the programs of a group and returns their links.
    fn attach_programs_of_group(&mut self, group: Group) -> Result<Vec<Link>, AttachError> {
        let ebpf = &mut self.ebpf;
        let links = match group {
            Group::KernelPolls => attach::attach_kernel_poll_counters(ebpf)?,
            Group::Scheduler => attach::attach_tracepoints(ebpf, &attach::SCHEDULER)?,
            Group::Writes => attach::attach_client_writes(ebpf, self.options.every_call)?,
            Group::ClientReads => attach::attach_tracepoints(ebpf, &[attach::CLIENT_READS])?,
            Group::ZmtpReads => attach::attach_tracepoints(ebpf, &[attach::ZMTP_READS])?,
            Group::Arrivals => attach::attach_tracepoints(ebpf, &attach::ARRIVALS)?,
        };
        Ok(links)
    }

    /// Says what the programs of a group read, but the kernel's description of its types lacks. `None` if it lacks nothing.
    fn reason_of_missing_types(&self, group: Group) -> Option<String> {
        match group {
            Group::Scheduler => {
                let are_fields_known = self.types.offsets.sched();
                if are_fields_known {
                    return None;
                }
                let missing_btf = self.types.missing_btf.clone();
                Some(missing_btf.unwrap_or_else(|| format!("{VMLINUX} lacks a field of task_struct")))
            }
            Group::KernelPolls => {
                let has_parameters = self.types.has_poll_timeouts;
                (!has_parameters).then(|| String::from("the kernel's poll functions have other parameters"))
            }
            Group::Writes | Group::ClientReads | Group::ZmtpReads | Group::Arrivals => {
                self.types.egress_offsets.as_ref().err().cloned()
            }
        }
    }

    /// Attaches a batch, which is a program with its probe points, to process `pid`. The process is the target with this index, and has
    /// `library` mapped.
    pub(crate) fn attach_uprobes(
        &mut self,
        target_index: u32,
        pid: NonZeroU32,
        batch: &Batch,
        library: BorrowedFd<'_>,
    ) -> Result<(), Refusal> {
        // The kernel takes a path. This one leads to the examined file, even if another file has its name by now.
        let path = PathBuf::from(format!("/proc/self/fd/{}", library.as_raw_fd()));
        let links = self
            .attach_method
            .attach_batch(&mut self.ebpf, batch, &path, pid)
            .map_err(|error| Refusal::from_error(&error))?;
        self.target_links.entry(target_index).or_default().extend(links);
        Ok(())
    }

    /// Detaches a target's links on another thread, because the kernel takes a while until no CPU runs their programs. Does nothing for an
    /// unknown target.
    pub(crate) fn detach_target(&mut self, target_index: u32) {
        let links = self.target_links.remove(&target_index).unwrap_or_default();
        // If no thread can be started, the closure drops its links here.
        let _ = std::thread::Builder::new().spawn(move || attach::detach_links(links));
    }

    /// Detaches the links of all targets.
    pub(crate) fn detach_targets(&mut self) {
        let links = std::mem::take(&mut self.target_links).into_values().flatten();
        attach::detach_links(links.collect());
    }
}

impl Drop for KernelSide {
    /// Detaches all programs.
    fn drop(&mut self) {
        // All together, so that the kernel's waits for them end together.
        let group_links = std::mem::take(&mut self.group_links).into_values().flatten();
        let target_links = std::mem::take(&mut self.target_links).into_values().flatten();
        attach::detach_links(group_links.chain(target_links).collect());
    }
}
