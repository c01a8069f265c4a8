//! What a report says that the ledger cannot know.

use serde_json::Value;

use super::SamplingCost;
use crate::clock::MonoNs;

/// What the application adds to a report.
#[derive(Clone, Debug)]
pub struct ReportInput {
    /// The source: `demo`, `tap`, `attach`, ...
    pub kind: String,
    /// The engine: `sglang`.
    pub engine: String,
    /// Begin and end of the capture; `None` is from the first event to the last.
    pub window: Option<(MonoNs, MonoNs)>,
    /// What the wall clock showed at an instant, in nanoseconds since the Unix epoch; `None` when that is not known.
    pub wall: Option<(MonoNs, u64)>,
    /// Most requests to list as the slowest.
    pub slowest: usize,
    /// CPU time this process has used, in nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Its resident memory.
    pub rss_bytes: Option<u64>,
    /// What could not be attached, each as an object or a sentence.
    pub degraded: Vec<Value>,
    /// What reading Python stacks cost; `None` when none were read.
    pub sampling: Option<SamplingCost>,
    /// Codecs and schemas seen on the wire.
    pub wire: Option<Value>,
    /// The demo's `{"scenario", "seed", "truth": {..}}`.
    pub demo: Option<Value>,
}

impl ReportInput {
    /// Of a source about which no more is known.
    pub fn of(kind: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            engine: String::from("sglang"),
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
