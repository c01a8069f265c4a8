//! The part of the probe that needs capabilities: its programs, maps and links. It reads no byte that another process wrote.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::path::PathBuf;

use aya::Ebpf;
use aya_log::EbpfLogger;
use probe_ebpf::Offsets;

use crate::attach::{self, AttachMethod, Link};
use crate::btf::{Btf, VMLINUX};
use crate::egress::places;
use crate::load::{self, KernelLog, Settings};
use crate::loss_counters::LossCounters;
use crate::options::Options;
use crate::programs::{Batch, Group, LoadedFacts, LossCounts, Refusal, TableChange, ThreadEntry, UPROBES, WITH_TLS};
use crate::tables;

pub(crate) struct KernelSide {
    ebpf: Ebpf,
    way: AttachMethod,
    options: Options,
    offsets: Offsets,
    /// Why the kernel describes no types.
    no_types: Option<String>,
    /// Why the fields that the egress programs read are unknown.
    no_places: Option<String>,
    /// The kernel's poll functions have the parameters that the programs read.
    has_timeouts: bool,
    groups: HashMap<Group, Vec<Link>>,
    targets: HashMap<u32, Vec<Link>>,
    kernel_log: Option<EbpfLogger<KernelLog>>,
    loss_counters: LossCounters,
}

impl KernelSide {
    /// Creates the maps and prepares the programs.
    pub(crate) fn load(options: Options) -> Result<Self, Refusal> {
        let (mut no_types, mut no_places, mut has_timeouts) = (None, None, false);
        let (mut offsets, mut known_places) = (Offsets::NONE, None);
        match Btf::running() {
            Ok(btf) => {
                let timeouts = attach::KERNEL_POLLS.map(|(_, function, at)| btf.takes(function, at, "timespec64"));
                has_timeouts = timeouts == [true; 2];
                offsets = btf.offsets();
                match places(&btf) {
                    Ok(found) => known_places = Some(found),
                    Err(error) => no_places = Some(error.to_string()),
                }
            }
            Err(error) => {
                no_types = Some(error.to_string());
                no_places.clone_from(&no_types);
            }
        }
        let settings = Settings {
            ring_bytes: options.ring_bytes.clamp(64 << 10, 1 << 30).next_power_of_two(),
            offsets,
            accounting: options.scheduler || options.polls,
            places: known_places.unwrap_or_default(),
        };
        let mut ebpf = load::load(settings).map_err(|error| Refusal::of(&error))?;
        let programs: &'static [&'static str] = if options.tls { &WITH_TLS } else { &UPROBES };
        let way = if options.perf_events { AttachMethod::Perf(programs) } else { AttachMethod::of(&ebpf, programs) };
        // An object may be built without a log.
        let kernel_log =
            load::shows_kernel_log().then(|| EbpfLogger::init_with_logger(&mut ebpf, KernelLog).ok()).flatten();
        let (groups, targets) = (HashMap::new(), HashMap::new());
        let loss_counters = LossCounters::new();
        Ok(Self {
            ebpf,
            way,
            options,
            offsets,
            no_types,
            no_places,
            has_timeouts,
            groups,
            targets,
            kernel_log,
            loss_counters,
        })
    }

    /// Loads the programs that further targets may need, so that this process can then give up the right to load programs. Programs
    /// that cannot be loaded are reported when a target needs them.
    pub(crate) fn load_programs(&mut self) {
        if let Err(error) = self.way.load_all(&mut self.ebpf) {
            tracing::debug!("cannot preload a uprobe program: {error}");
        }
        if self.options.scheduler {
            // The reader of the observations asks for it too, and reports the error.
            let _ = self.attach_group(Group::Scheduler);
            if self.options.polls && self.facts().observes_sleep {
                let _ = self.attach_group(Group::KernelPolls);
            }
        }
        // Only an attach shows which programs for writes the kernel supports.
        if let Err(error) = self.attach_group(Group::Writes) {
            tracing::debug!("cannot observe responses to clients: {error}");
        }
        if self.no_places.is_none() {
            for program in [attach::EGRESS_READS, attach::ZMTP_READS] {
                if let Err(error) = attach::load(&mut self.ebpf, program) {
                    tracing::debug!("cannot observe reads from sockets: {error}");
                }
            }
        }
    }

    pub(crate) fn facts(&self) -> LoadedFacts {
        LoadedFacts {
            observes_sleep: self.offsets.call != Offsets::ABSENT,
            uses_perf_events: matches!(self.way, AttachMethod::Perf(_)),
        }
    }

    /// Whether the kernel's log is shown and must be flushed regularly.
    pub(crate) fn has_log(&self) -> bool {
        self.kernel_log.is_some()
    }

    pub(crate) fn flush_log(&mut self) {
        if let Some(log) = &mut self.kernel_log {
            log.flush();
        }
    }

    /// Descriptor of the ring with the observations.
    pub(crate) fn ring_descriptor(&self) -> Result<BorrowedFd<'_>, Refusal> {
        let ring = tables::map(&self.ebpf, "RECORDS").map_err(|error| Refusal::of_table("RECORDS", &error))?;
        let data = attach::map_data(ring).ok_or_else(|| Refusal::Kernel(String::from("RECORDS is not a ring")))?;
        Ok(data.fd().as_fd())
    }

    /// Changes a table of the programs.
    pub(crate) fn change_table(&mut self, change: TableChange) -> Result<(), Refusal> {
        tables::change(&mut self.ebpf, change).map_err(|error| Refusal::Kernel(format!("{change:?}: {error}")))
    }

    pub(crate) fn read_losses(&mut self) -> Result<LossCounts, Refusal> {
        let map = tables::map(&self.ebpf, "LOSSES").map_err(|error| Refusal::of_table("LOSSES", &error))?;
        let data = attach::map_data(map).ok_or_else(|| Refusal::Kernel(String::from("LOSSES is no array")))?;
        self.loss_counters.read(data).map_err(|error| Refusal::of_table("LOSSES", &error))
    }

    pub(crate) fn read_threads(&self) -> Result<Vec<ThreadEntry>, Refusal> {
        tables::read_threads(&self.ebpf).map_err(|error| Refusal::of_table("THREADS", &error))
    }

    /// Attaches a group of programs, unless it is attached.
    pub(crate) fn attach_group(&mut self, group: Group) -> Result<(), Refusal> {
        if self.groups.contains_key(&group) {
            return Ok(());
        }
        let unknown_types = match group {
            Group::Scheduler if !self.offsets.sched() => {
                Some(self.no_types.clone().unwrap_or_else(|| format!("{VMLINUX} lacks a field of task_struct")))
            }
            Group::KernelPolls if !self.has_timeouts => {
                Some(String::from("the kernel's poll functions have other parameters"))
            }
            Group::Writes | Group::ClientReads | Group::ZmtpReads => self.no_places.clone(),
            _ => None,
        };
        if let Some(what) = unknown_types {
            return Err(Refusal::Types(what));
        }
        let ebpf = &mut self.ebpf;
        let attached = match group {
            Group::KernelPolls => attach::kernel_polls(ebpf).map_err(|error| Refusal::of(&error)),
            Group::Scheduler => attach::tracepoints(ebpf, &attach::SCHEDULER).map_err(|error| Refusal::of(&error)),
            Group::Writes => attach::egress(ebpf, self.options.every_call).map_err(|error| Refusal::of(&error)),
            Group::ClientReads => {
                attach::tracepoints(ebpf, &[attach::EGRESS_READS]).map_err(|error| Refusal::of(&error))
            }
            Group::ZmtpReads => attach::tracepoints(ebpf, &[attach::ZMTP_READS]).map_err(|error| Refusal::of(&error)),
        };
        self.groups.insert(group, attached?);
        Ok(())
    }

    /// Attaches a batch to process `pid`, which is the target with this index and has `library` mapped.
    pub(crate) fn attach_uprobes(
        &mut self,
        target: u32,
        pid: NonZeroU32,
        batch: &Batch,
        library: BorrowedFd<'_>,
    ) -> Result<(), Refusal> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", library.as_raw_fd()));
        let links = self.way.attach(&mut self.ebpf, batch, &path, pid).map_err(|error| Refusal::of(&error))?;
        self.targets.entry(target).or_default().extend(links);
        Ok(())
    }

    /// Detaches a target's links on another thread, because it takes a grace period of the kernel.
    pub(crate) fn detach(&mut self, target: u32) {
        let links = self.targets.remove(&target).unwrap_or_default();
        // If no thread can be started, the closure drops its links here.
        let _ = std::thread::Builder::new().spawn(move || attach::detach(links));
    }

    /// Detaches the links of all targets.
    pub(crate) fn detach_targets(&mut self) {
        attach::detach(std::mem::take(&mut self.targets).into_values().flatten().collect());
    }
}

impl Drop for KernelSide {
    fn drop(&mut self) {
        let groups = std::mem::take(&mut self.groups).into_values().flatten();
        attach::detach(groups.chain(std::mem::take(&mut self.targets).into_values().flatten()).collect());
    }
}
