//! Time inside tokengap: nanoseconds of `CLOCK_MONOTONIC`, the clock of the kernel's probe timestamps.

use serde::{Deserialize, Serialize};

/// An instant on `CLOCK_MONOTONIC`, in nanoseconds. Comparable between processes of one machine, never between machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MonoNs(pub u64);

impl MonoNs {
    /// Current reading of the clock.
    pub fn now() -> Self {
        Self(reading(rustix::time::ClockId::Monotonic))
    }

    /// Nanoseconds from `earlier` to `self`; 0 if `earlier` is later, since two observers of one clock may differ slightly.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Nanoseconds since the Unix epoch. Anchors a capture to the timestamps of log lines.
pub fn wall_ns() -> u64 {
    crate::fault::wall(reading(rustix::time::ClockId::Realtime))
}

fn reading(clock: rustix::time::ClockId) -> u64 {
    let t = rustix::time::clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
