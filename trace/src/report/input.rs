//! Data that a report needs in addition to the ledger.

use serde_json::Value;

use super::SamplingCost;
use crate::clock::MonoNs;

/// Data that the application adds to a report.
#[derive(Clone, Debug)]
pub struct ReportInput {
    /// The source: `demo`, `tap`, `attach`, ...
    pub kind: String,
    /// Start and end of the capture; `None` means from the first event to the last.
    pub window: Option<(MonoNs, MonoNs)>,
    /// An instant with its wall-clock time in nanoseconds since the Unix epoch; `None` if unknown.
    pub wall: Option<(MonoNs, u64)>,
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

impl ReportInput {
    /// Input for a source without further data.
    pub fn of(kind: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            window: None,
            wall: None,
            slowest: 10,
            cpu_ns: None,
            rss_bytes: None,
            degraded: Vec::new(),
            sampling: None,
            wire: None,
            demo: None,
        }
    }
}
