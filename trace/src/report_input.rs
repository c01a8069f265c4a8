//! Data about a run that its events do not contain.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::{Anchor, MonoNs};

/// Number of requests listed as the slowest unless the application sets another one.
const DEFAULT_SLOWEST: usize = 10;

/// Data that the application adds to a report. A recording ends with it, without its source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportInput {
    /// The source: `demo`, `tap`, `attach`, ...
    #[serde(skip)]
    pub kind: String,
    /// Start and end of the capture; `None` means from the first event to the last.
    #[serde(skip)]
    pub window: Option<(MonoNs, MonoNs)>,
    /// Both clocks at the time of the report; `None` if unknown.
    pub wall: Option<Anchor>,
    /// Maximum number of requests listed as the slowest.
    pub slowest: usize,
    /// CPU time used by tokengap, in nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Resident memory of tokengap.
    pub rss_bytes: Option<u64>,
    /// Targets that could not be attached, each as an object or a sentence.
    pub degraded: Vec<Value>,
    /// Cost of reading Python stacks; `None` when none were read.
    pub sampling: Option<SamplingCost>,
    /// Codecs and schemas seen on the wire.
    pub wire: Option<Value>,
    /// The demo's `{"scenario", "seed", "truth": {..}}`.
    pub demo: Option<Value>,
}

impl Default for ReportInput {
    fn default() -> Self {
        Self::for_source("")
    }
}

impl ReportInput {
    /// Input for a source without further data.
    pub fn for_source(kind: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            window: None,
            wall: None,
            slowest: DEFAULT_SLOWEST,
            cpu_ns: None,
            rss_bytes: None,
            degraded: Vec::new(),
            sampling: None,
            wire: None,
            demo: None,
        }
    }
}

/// Cost and failures of stack sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplingCost {
    /// Requested samples per second.
    pub hertz: u32,
    /// Number of processes sampled.
    pub processes: u32,
    /// Number of samples, each of all stacks of a process.
    pub readings: u64,
    /// Samples that failed because a stack changed while it was read. Some always fail, since the target is never stopped.
    pub failed: u64,
    /// Samples skipped because earlier ones took too long.
    pub late: u64,
    /// Intervals discarded because they were not fetched.
    pub dropped: u64,
    /// CPU time of the process that reads stacks, part of `cpu_ns`.
    pub cpu_ns: u64,
}
