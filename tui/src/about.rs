//! Information about a source in the report, in addition to its events.

use serde_json::Value;
use std::path::Path;
use trace::MonoNs;
use trace::report::SamplingCost;

use crate::own;
use crate::source::Source;

/// Information about a source that a report needs.
pub(crate) trait About {
    /// Name of the source in the report.
    fn kind(&self) -> &str;

    /// Missing observations, each with its fix.
    fn degraded(&self) -> Vec<String>;

    /// Description of work still in flight at the end.
    fn under_way(&self) -> Option<String>;

    /// Message formats that were observed.
    fn wire(&self) -> Option<Value>;

    /// Cost of stack sampling; `None` if there was none.
    fn sampling(&self) -> Option<SamplingCost>;

    /// Ground truth kept by the demo's own peers.
    fn truth(&self) -> Option<Value>;

    /// One instant on both clocks; `None` if the wall clock is unknown.
    fn wall(&self) -> Option<(MonoNs, u64)>;

    /// The recording being played, if any.
    fn file(&self) -> Option<&Path> {
        None
    }

    /// CPU time in nanoseconds and resident bytes used by tokengap.
    fn cost(&self) -> (Option<u64>, Option<u64>);
}

impl<S: Source> About for S {
    fn kind(&self) -> &str {
        Source::kind(self)
    }

    fn degraded(&self) -> Vec<String> {
        Source::degraded(self)
    }

    fn under_way(&self) -> Option<String> {
        Source::under_way(self)
    }

    fn wire(&self) -> Option<Value> {
        Source::wire(self)
    }

    fn sampling(&self) -> Option<SamplingCost> {
        Source::sampling(self)
    }

    fn truth(&self) -> Option<Value> {
        Source::truth(self)
    }

    fn wall(&self) -> Option<(MonoNs, u64)> {
        Some((MonoNs::now(), trace::clock::wall_ns()))
    }

    fn cost(&self) -> (Option<u64>, Option<u64>) {
        (Some(own::cpu_ns()), own::rss_bytes())
    }
}
