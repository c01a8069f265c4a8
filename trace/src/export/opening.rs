//! Data needed before the first event is exported: the time origin, and the role of each process.
//!
//! Sources announce processes shortly after the first frames. Reading ahead a few seconds of a recording lets an export put the first
//! frames on the same tracks as later ones. Without it the export is correct but less tidy.

use std::collections::BTreeMap;

use super::clock::Clock;
use crate::clock::MonoNs;
use crate::event::{Event, ThreadPart, What};
use crate::id::ThreadId;

/// How far to look ahead.
const AHEAD_NS: u64 = 3_000_000_000;
/// Maximum number of distinct processes per role.
const PROCESSES: usize = 1_024;

/// The beginning of a capture.
#[derive(Clone, Debug)]
pub struct Opening {
    source: String,
    tokengap: String,
    anchor: (MonoNs, u64),
    start: Option<MonoNs>,
    /// Main threads by role.
    cast: BTreeMap<Box<str>, Vec<ThreadId>>,
}

impl Opening {
    /// Of a recording of `source` (`demo`, `attach`, ...) by tokengap of the version `tokengap`, where `mono` was `wall_ns` since the
    /// Unix epoch.
    pub fn new(source: &str, tokengap: &str, mono: MonoNs, wall_ns: u64) -> Self {
        Self {
            source: source.to_owned(),
            tokengap: tokengap.to_owned(),
            anchor: (mono, wall_ns),
            start: None,
            cast: BTreeMap::new(),
        }
    }

    /// Looks at an event ahead of time; `false` when enough was seen.
    pub fn learn(&mut self, event: &Event<'_>) -> bool {
        let start = *self.start.get_or_insert(event.at);
        if event.at.since(start) > AHEAD_NS {
            return false;
        }
        self.start = Some(start.min(event.at));
        if let What::Cpu(sample) = &event.what
            && sample.part == ThreadPart::Main
        {
            let threads = self.cast.entry(sample.role.into()).or_default();
            if !threads.contains(&sample.thread) && threads.len() < PROCESSES {
                threads.push(sample.thread);
            }
        }
        true
    }

    /// `demo`, `tap`, `attach`, ...
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// The version that recorded it.
    pub(super) fn tokengap(&self) -> &str {
        &self.tokengap
    }

    /// Times count from the earliest event, as the report's do.
    pub(super) fn clock(&self) -> Clock {
        let (mono, wall_ns) = self.anchor;
        Clock::new(self.start.unwrap_or(mono), mono, wall_ns)
    }

    /// The main thread of the one process that plays a role; `None` when there are several, or none was seen.
    pub(super) fn only(&self, role: &str) -> Option<ThreadId> {
        match self.cast.get(role)?.as_slice() {
            [one] => Some(*one),
            _ => None,
        }
    }
}
