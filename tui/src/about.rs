//! What a report says of a source beside its events.

use serde_json::Value;
use std::path::Path;
use trace::MonoNs;
use trace::report::SamplingCost;

use crate::own;
use crate::source::Source;

/// A source, as the report knows it.
pub(crate) trait About {
    /// What the report calls it.
    fn kind(&self) -> &str;

    /// What could not be watched, each with what to do about it.
    fn degraded(&self) -> Vec<String>;

    /// What is still under way at the end, in words.
    fn under_way(&self) -> Option<String>;

    /// The forms in which messages came.
    fn wire(&self) -> Option<Value>;

    /// What reading stacks has cost; `None` where none are read.
    fn sampling(&self) -> Option<SamplingCost>;

    /// The truth that the demo's own peers kept.
    fn truth(&self) -> Option<Value>;

    /// One instant on both clocks; `None` where the wall clock's is not known.
    fn wall(&self) -> Option<(MonoNs, u64)>;

    /// The recording that is played, where one is.
    fn file(&self) -> Option<&Path> {
        None
    }

    /// CPU time in nanoseconds and resident bytes that watching has cost.
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
