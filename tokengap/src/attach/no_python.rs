//! Stands in for the sampler of Python stacks in a build without it.

use anyhow::bail;
use probe_user::Degraded;
use probe_user::discover::Process;
use trace::report::SamplingCost;

use super::lanes::Sink;
use crate::advice::missing;

#[derive(Clone, Copy, Debug)]
pub(crate) enum PythonOptions {}

impl PythonOptions {
    pub(crate) fn new(_: u32, _: bool) -> anyhow::Result<Self> {
        bail!("--python-stacks: {}", missing("python-stacks"))
    }
}

pub(super) enum PythonWatch {}

impl PythonWatch {
    pub(super) fn start(options: PythonOptions) -> anyhow::Result<Self> {
        match options {}
    }

    pub(super) fn add(&mut self, _: &Process) {
        match *self {}
    }

    pub(super) fn poll(&self, _: Sink<'_>) {
        match *self {}
    }

    pub(super) fn cost(&self) -> SamplingCost {
        match *self {}
    }

    pub(super) fn refused(&self) -> Vec<Degraded> {
        match *self {}
    }

    pub(super) fn degraded(&self) -> Vec<String> {
        match *self {}
    }
}
