//! What a recording says of the run it was made of.

use serde_json::Value;
use trace::MonoNs;
use trace::record::{Closing, Recording};
use trace::report::SamplingCost;

use crate::about::About;

/// The run that was recorded.
pub(crate) struct Recorded {
    kind: String,
    closing: Closing,
    missing: Option<String>,
    anchors: Vec<(MonoNs, u64)>,
}

impl Recorded {
    pub(crate) fn of(recording: &Recording) -> Self {
        Self {
            kind: recording.header().source.clone(),
            closing: recording.closing().cloned().unwrap_or_default(),
            missing: recording.missing().map(|missing| format!("recording: {missing}")),
            anchors: recording.anchors().iter().map(|a| (a.mono, a.wall_ns)).collect(),
        }
    }

    /// What the wall clock said at `at`, by the anchor before it.
    pub(crate) fn wall_ns(&self, at: MonoNs) -> Option<u64> {
        let before = self.anchors.iter().rev().find(|(mono, _)| *mono <= at);
        let &(mono, wall) = before.or(self.anchors.first())?;
        Some((wall + at.since(mono)).saturating_sub(mono.since(at)))
    }
}

impl About for Recorded {
    fn kind(&self) -> &str {
        &self.kind
    }

    fn degraded(&self) -> Vec<String> {
        let words = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.closing
            .degraded
            .iter()
            .map(words)
            .chain(self.missing.clone())
            .collect()
    }

    fn under_way(&self) -> Option<String> {
        None
    }

    fn wire(&self) -> Option<Value> {
        self.closing.wire.clone()
    }

    fn sampling(&self) -> Option<SamplingCost> {
        self.closing.sampling
    }

    fn truth(&self) -> Option<Value> {
        self.closing.demo.clone()
    }

    fn cost(&self) -> (Option<u64>, Option<u64>) {
        (self.closing.cpu_ns, self.closing.rss_bytes)
    }
}
