//! Information about a run in its report, in addition to its events.

use std::path::Path;

use serde_json::Value;
use trace::clock::Anchor;
use trace::{MonoNs, ReportInput, SamplingCost};

use crate::own;
use crate::playback::Position;

/// The engine of a run, among those that one process watches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineIdentity {
    /// Name that it has again after a restart. Empty until an engine was found.
    pub name: String,
    /// Port of its HTTP server, if known.
    pub port: Option<u16>,
    /// Last part of the name of its model, if known.
    pub model: Option<String>,
    /// Side of a pair of servers: `prefill` or `decode`.
    pub side: Option<&'static str>,
    /// Whether it is observed: `live`, `waiting` or `ended`.
    pub state: &'static str,
}

/// CPU time and memory that tokengap has used; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnUsage {
    /// CPU time in nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Resident memory in bytes.
    pub rss_bytes: Option<u64>,
}

/// Information about a run that a report needs. The defaults are those of a live source.
pub trait About {
    /// Name of the source in the report.
    fn kind(&self) -> &str;

    /// Attachments and observations that failed, each with its fix. None by default.
    fn degraded_lines(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether the source is connected to an engine. One that follows engines may wait for the next.
    fn is_attached(&self) -> bool {
        true
    }

    /// The engine of the run, if the source watches engines of this machine.
    fn engine(&self) -> Option<EngineIdentity> {
        None
    }

    /// Time up to which the source has delivered its events, which is the time of the next tick. It is before now while the source reads
    /// more slowly than it observes.
    fn observed_until(&self) -> MonoNs {
        MonoNs::now()
    }

    /// Description of the work that remains after the source was asked to end, if draining can take a while.
    fn pending(&self) -> Option<String> {
        None
    }

    /// Statement of the process that observed the run, if it was another one.
    fn observer_statement(&self) -> Option<&ReportInput> {
        None
    }

    /// Content of `source.wire` in the report: the observed message formats.
    fn wire_json(&self) -> Option<Value> {
        self.observer_statement()?.wire.clone()
    }

    /// Cost of sampling the engine's Python stacks, if enabled.
    fn stack_sampling_cost(&self) -> Option<SamplingCost> {
        self.observer_statement()?.sampling
    }

    /// Content of `demo` in the report: the ground truth kept by the demo's own peers.
    fn demo_truth_json(&self) -> Option<Value> {
        self.observer_statement()?.demo.clone()
    }

    /// One instant on both clocks; `None` if the wall clock is unknown.
    fn wall(&self) -> Option<Anchor> {
        Some(Anchor::now())
    }

    /// Playback position of a recording.
    fn position(&self) -> Option<Position> {
        None
    }

    /// The recording being played, if any.
    fn file(&self) -> Option<&Path> {
        None
    }

    /// CPU time and memory of the tokengap process that observed the engine. If another process observed it, that process has stated them.
    /// Otherwise these are the values of this process.
    fn own_usage(&self) -> OwnUsage {
        match self.observer_statement() {
            Some(statement) => OwnUsage { cpu_ns: statement.cpu_ns, rss_bytes: statement.rss_bytes },
            None => OwnUsage { cpu_ns: Some(own::cpu_ns()), rss_bytes: own::rss_bytes() },
        }
    }
}
