//! The kernel side of a probe, in this process or in the helper.

use std::num::NonZeroU32;
use std::os::fd::{AsFd as _, BorrowedFd};

use foreign::RegularFile;

use crate::attach::AttachError;
use crate::helper::{self, Helper};
use crate::kernel_side::{KernelSide, Maps, open_maps};
use crate::options::Options;
use crate::probe_points::{Known, Sought};
use crate::programs::{Group, LoadedFacts, PointSet, Refusal};

use super::batches;

pub(super) enum Kernel {
    Here(Box<KernelSide>, Known),
    Helper(&'static Helper),
}

/// A process that uprobes are attached to.
#[derive(Clone, Copy)]
pub(super) struct UprobeTarget {
    /// Index among the targets.
    pub(super) index: u32,
    pub(super) pid: NonZeroU32,
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
        Ok(LoadedKernel { kernel: Self::Here(Box::new(kernel), Known::default()), maps, facts })
    }

    pub(super) fn attach_group(&mut self, group: Group) -> Result<(), Refusal> {
        match self {
            Self::Here(kernel, _) => kernel.attach_group(group),
            Self::Helper(helper) => helper.attach_group(group),
        }
    }

    /// Attaches a set of probe points to a target that has `library` mapped. A helper finds them in the file itself.
    pub(super) fn attach_set(
        &mut self,
        target: UprobeTarget,
        set: PointSet,
        sought: Sought,
        library: &RegularFile,
    ) -> Result<(), AttachError> {
        match self {
            Self::Here(kernel, known) => {
                let found = known.find(sought, library)?;
                for batch in batches::of_set(set, &found, target.index)? {
                    kernel.attach_uprobes(target.index, target.pid, &batch, library.as_fd())?;
                }
                Ok(())
            }
            Self::Helper(helper) => Ok(helper.attach_set(target.index, target.pid.get(), set, library.as_fd())?),
        }
    }

    /// Detaches a target's uprobes without waiting for it.
    pub(super) fn detach(&mut self, target: u32) {
        match self {
            Self::Here(kernel, _) => kernel.detach(target),
            Self::Helper(helper) => helper.detach(target),
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
