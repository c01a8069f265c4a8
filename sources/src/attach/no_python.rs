//! Stands in for the sampler of Python stacks in a build without it.

use anyhow::bail;
use probe_user::Degraded;
use probe_user::discover::Process;
use trace::SamplingCost;
use trace::words::missing_feature_error;

use super::inbox::RunId;
use super::lanes::Sink;

/// Options of the sampler, which this build cannot have.
#[derive(Clone, Debug)]
pub enum PythonOptions {}

impl PythonOptions {
    /// Fails with the name of the missing cargo feature.
    pub fn start(_: u32, _: bool) -> anyhow::Result<Self> {
        bail!("--python-stacks: {}", missing_feature_error("python-stacks"))
    }

    /// Resident memory of the process that reads stacks; `None` if it is unknown.
    pub fn rss_bytes(&self) -> Option<u64> {
        match *self {}
    }

    /// CPU time of the process that reads stacks.
    pub fn cpu_ns(&self) -> u64 {
        match *self {}
    }
}

pub(super) enum PythonWatch {}

impl PythonWatch {
    #[expect(clippy::needless_pass_by_value, reason = "the signature of the real one")]
    pub(super) fn start(options: PythonOptions) -> Self {
        match options {}
    }

    pub(super) fn add_process(&mut self, _: RunId, _: &Process) {
        match *self {}
    }

    pub(super) fn remove_run(&mut self, _: RunId) {
        match *self {}
    }

    pub(super) fn emit_samples_of_run(&mut self, _: RunId, _: Sink<'_>) {
        match *self {}
    }

    pub(super) fn cost(&self) -> SamplingCost {
        match *self {}
    }

    pub(super) fn has_ended(&self) -> bool {
        match *self {}
    }

    pub(super) fn refusals_of_run(&self, _: RunId) -> Vec<Degraded> {
        match *self {}
    }

    pub(super) fn degraded_lines(&self, _: RunId) -> Vec<String> {
        match *self {}
    }
}
