//! The kernel side of a probe, in this process or in the helper.

use std::num::NonZeroU32;
use std::os::fd::{AsFd as _, BorrowedFd};

use crate::helper::{self, Helper};
use crate::kernel_side::{KernelSide, Maps, open_maps};
use crate::options::Options;
use crate::programs::{Batch, Group, LoadedFacts, Refusal};

pub(super) enum Kernel {
    Here(Box<KernelSide>),
    Helper(&'static Helper),
}

/// A loaded kernel side.
pub(super) struct LoadedKernel {
    pub(super) kernel: Kernel,
    pub(super) maps: Maps,
    pub(super) facts: LoadedFacts,
}

impl Kernel {
    /// Uses the helper of this process, or loads the programs here. A helper has its own `options`.
    pub(super) fn load(options: Options) -> Result<LoadedKernel, Refusal> {
        if let Some(helper) = helper::connected() {
            let answer = helper.map_descriptors()?;
            let maps = open_maps(answer.descriptors).map_err(|error| Refusal::of(&error))?;
            return Ok(LoadedKernel { kernel: Self::Helper(helper), maps, facts: answer.facts });
        }
        let kernel = KernelSide::load(options)?;
        let maps = kernel.map_descriptors().map_err(|error| Refusal::of(&error))?;
        let maps = maps.iter().map(BorrowedFd::try_clone_to_owned).collect::<Result<_, _>>();
        let maps = open_maps(maps.map_err(|error| Refusal::of(&error))?).map_err(|error| Refusal::of(&error))?;
        let facts = kernel.facts();
        Ok(LoadedKernel { kernel: Self::Here(Box::new(kernel)), maps, facts })
    }

    pub(super) fn attach_group(&mut self, group: Group) -> Result<(), Refusal> {
        match self {
            Self::Here(kernel) => kernel.attach_group(group),
            Self::Helper(helper) => helper.attach_group(group),
        }
    }

    /// Attaches a batch to process `pid`, which is the target with this index and has `library` mapped.
    pub(super) fn attach_uprobes(
        &mut self,
        target: u32,
        pid: NonZeroU32,
        batch: Batch,
        library: &std::fs::File,
    ) -> Result<(), Refusal> {
        match self {
            Self::Here(kernel) => kernel.attach_uprobes(target, pid, &batch, library.as_fd()),
            Self::Helper(helper) => helper.attach_uprobes(target, pid.get(), batch, library.as_fd()),
        }
    }

    /// Detaches a target's uprobes without waiting for it.
    pub(super) fn detach(&mut self, target: u32) {
        match self {
            Self::Here(kernel) => kernel.detach(target),
            Self::Helper(helper) => helper.detach(target),
        }
    }

    /// Detaches the uprobes of all targets.
    pub(super) fn detach_targets(&mut self) {
        match self {
            Self::Here(kernel) => kernel.detach_targets(),
            Self::Helper(helper) => helper.detach_targets(),
        }
    }

    /// Shows new lines of the kernel's log. A helper does so itself.
    pub(super) fn flush_log(&mut self) {
        if let Self::Here(kernel) = self {
            kernel.flush_log();
        }
    }
}
