//! Data needed before the first event is exported: the time origin, and the role of each process.
//!
//! Sources announce processes shortly after the first frames. Reading ahead a few seconds of a recording lets an export put the first
//! frames on the same tracks as later ones. Without it, the first frames may be on synthetic tracks.

use std::collections::BTreeMap;

use trace::clock::{Anchor, MonoNs};
use trace::event::{Event, ThreadPart, What};
use trace::id::ThreadId;

/// Time to read ahead, in nanoseconds.
const AHEAD_NS: u64 = 3_000_000_000;
/// Maximum number of distinct processes per role.
const MAX_PROCESSES: usize = 1_024;

/// Data from the start of a capture.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Source: `demo`, `tap`, `attach`, ...
    pub(super) source: String,
    /// Version of tokengap that recorded it.
    pub(super) tokengap: String,
    anchor: Anchor,
    start: Option<MonoNs>,
    /// Main threads by role.
    main_threads: BTreeMap<Box<str>, Vec<ThreadId>>,
}

impl Opening {
    /// Opening of a recording of `source` (`demo`, `attach`, ...) by version `tokengap_version`, of which no event was read yet. `anchor`:
    /// both clocks, read at its start.
    pub fn new(source: &str, tokengap_version: &str, anchor: Anchor) -> Self {
        Self {
            source: source.to_owned(),
            tokengap: tokengap_version.to_owned(),
            anchor,
            start: None,
            main_threads: BTreeMap::new(),
        }
    }

    /// Reads an event ahead of the export: notes its time if it is the earliest, and the main thread that it samples. Keeps a limited
    /// number of threads of each role. Returns `false`, and ignores the event, when enough was read.
    pub fn read_if_in_opening(&mut self, event: &Event<'_>) -> bool {
        let start = *self.start.get_or_insert(event.at);
        // By then, a source has announced the processes that it observes.
        if event.at.since(start) > AHEAD_NS {
            return false;
        }
        // Events may be out of order.
        self.start = Some(start.min(event.at));
        if let What::Cpu(sample) = &event.what
            && sample.part == ThreadPart::Main
        {
            let threads = self.main_threads.entry(sample.role.into()).or_default();
            if !threads.contains(&sample.thread) && threads.len() < MAX_PROCESSES {
                threads.push(sample.thread);
            }
        }
        true
    }

    /// Clock with its origin at the earliest event, as in the report.
    pub(super) fn clock(&self) -> CaptureClock {
        CaptureClock { start: self.start.unwrap_or(self.anchor.mono), anchor: self.anchor }
    }

    /// Main thread of the only process with a role; `None` if there are several or none.
    pub(super) fn main_thread_of_only_process(&self, role: &str) -> Option<ThreadId> {
        match self.main_threads.get(role)?.as_slice() {
            [thread] => Some(*thread),
            _ => None,
        }
    }
}

/// Converts the engine's clock to time since the capture's start and to wall time.
#[derive(Clone, Copy, Debug)]
pub(super) struct CaptureClock {
    pub(super) start: MonoNs,
    /// Relation of both clocks, updated during the capture because wall time may be adjusted.
    pub(super) anchor: Anchor,
}

impl CaptureClock {
    /// Nanoseconds since the start of the capture.
    pub(super) fn since_start_ns(&self, at: MonoNs) -> u64 {
        at.since(self.start)
    }

    /// Nanoseconds since the Unix epoch.
    pub(super) fn wall_ns(&self, at: MonoNs) -> u64 {
        self.anchor.wall_ns_at(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_the_anchor_are_converted() {
        let clock = CaptureClock { start: MonoNs(100), anchor: Anchor { mono: MonoNs(150), wall_ns: 1_000_000 } };
        assert_eq!((clock.since_start_ns(MonoNs(130)), clock.since_start_ns(MonoNs(90))), (30, 0));
        assert_eq!((clock.wall_ns(MonoNs(130)), clock.wall_ns(MonoNs(170))), (999_980, 1_000_020));
    }
}
