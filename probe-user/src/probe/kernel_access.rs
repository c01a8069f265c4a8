//! The kernel side of a probe, in this process or in the helper.

use std::num::NonZeroU32;
use std::os::fd::AsFd as _;

use aya::maps::{MapData, RingBuf};
use foreign::RegularFile;

use crate::attach::AttachError;
use crate::helper::{self, Helper, LoadedRing};
use crate::kernel_side::KernelSide;
use crate::probe_options::ProbeOptions;
use crate::probe_points::{ProbePointCache, Sought};
use crate::programs::{Group, LoadedFacts, LossCounts, PointSet, Refusal, TableChange, ThreadEntry, open_ring};

use super::batches;

pub(super) enum KernelAccess {
    Here(Box<KernelSide>, ProbePointCache),
    Helper(&'static Helper),
}

/// A process that uprobes are attached to.
#[derive(Clone, Copy)]
pub(super) struct UprobeTarget {
    /// Index among the targets.
    pub(super) index: u32,
    pub(super) pid: NonZeroU32,
}

pub(super) struct LoadedKernelSide {
    pub(super) kernel: KernelAccess,
    pub(super) records: RingBuf<MapData>,
    pub(super) facts: LoadedFacts,
}

impl KernelAccess {
    /// Uses the programs of this process's helper if there is one, otherwise loads the programs here. With a helper, `options` has no
    /// effect, because the helper was started with its own.
    pub(super) fn load(options: ProbeOptions) -> Result<LoadedKernelSide, Refusal> {
        if let Some(helper) = helper::connected_helper() {
            let LoadedRing { records, facts } = helper.take_ring()?;
            return Ok(LoadedKernelSide { kernel: Self::Helper(helper), records, facts });
        }
        let kernel = KernelSide::load(options)?;
        let ring = kernel.ring_descriptor()?.try_clone_to_owned().map_err(|error| Refusal::from_error(&error))?;
        let records = open_ring(ring)?;
        let facts = kernel.loaded_facts();
        Ok(LoadedKernelSide { kernel: Self::Here(Box::new(kernel), ProbePointCache::default()), records, facts })
    }

    /// Changes a table of the kernel's programs.
    pub(super) fn change_table(&mut self, change: TableChange) -> Result<(), Refusal> {
        match self {
            Self::Here(kernel, _) => kernel.change_table(change),
            Self::Helper(helper) => helper.change_table(change),
        }
    }

    /// Reads the counters of lost records.
    pub(super) fn read_losses(&mut self) -> Result<LossCounts, Refusal> {
        match self {
            Self::Here(kernel, _) => kernel.read_losses(),
            Self::Helper(helper) => helper.read_losses(),
        }
    }

    /// Reads the states, CPU times and poll counts of all observed threads.
    pub(super) fn read_threads(&self) -> Result<Vec<ThreadEntry>, Refusal> {
        match self {
            Self::Here(kernel, _) => kernel.read_threads(),
            Self::Helper(helper) => helper.read_threads(),
        }
    }

    /// Attaches a group of programs, unless it is attached.
    pub(super) fn attach_group(&mut self, group: Group) -> Result<(), Refusal> {
        match self {
            Self::Here(kernel, _) => kernel.attach_group(group),
            Self::Helper(helper) => helper.attach_group(group),
        }
    }

    /// Attaches a set of probe points to a target that has `library` mapped. Finds the points in the library here, or lets the helper find
    /// them.
    pub(super) fn attach_probe_points(
        &mut self,
        target: UprobeTarget,
        set: PointSet,
        sought: Sought,
        library: &RegularFile,
    ) -> Result<(), AttachError> {
        match self {
            Self::Here(kernel, cache) => {
                let found = cache.find_in_library(sought, library)?;
                for batch in batches::batches_of_set(set, &found, target.index)? {
                    kernel.attach_uprobes(target.index, target.pid, &batch, library.as_fd())?;
                }
                Ok(())
            }
            Self::Helper(helper) => {
                Ok(helper.attach_probe_points(target.index, target.pid.get(), set, library.as_fd())?)
            }
        }
    }

    /// Detaches a target's uprobes without waiting for it.
    pub(super) fn detach_target(&mut self, target_index: u32) {
        match self {
            Self::Here(kernel, _) => kernel.detach_target(target_index),
            Self::Helper(helper) => helper.detach_target(target_index),
        }
    }

    /// Detaches the uprobes of all targets.
    pub(super) fn detach_targets(&mut self) {
        match self {
            Self::Here(kernel, _) => kernel.detach_targets(),
            Self::Helper(helper) => helper.detach_targets(),
        }
    }

    /// Shows new lines of the kernel's log. A helper does so itself.
    pub(super) fn flush_log(&mut self) {
        if let Self::Here(kernel, _) = self {
            kernel.flush_log();
        }
    }
}
