//! Time inside tokengap: nanoseconds of `CLOCK_MONOTONIC`, the clock of the kernel's probe timestamps.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

const NS_PER_SECOND: u64 = 1_000_000_000;
/// A longer time since the boot is implausible: 31 years.
const MAX_UPTIME_SECONDS: f64 = 1e9;

/// An instant on `CLOCK_MONOTONIC`, in nanoseconds. Comparable between processes of one machine, never between machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MonoNs(pub u64);

impl MonoNs {
    /// Current reading of the clock.
    pub fn now() -> Self {
        Self(read_clock(rustix::time::ClockId::Monotonic))
    }

    /// An instant given in seconds, as Python's `time.monotonic` and `time.perf_counter` return it. `None` for a value that cannot be one.
    pub fn from_seconds(seconds: f64) -> Option<Self> {
        let is_plausible = seconds > 0.0 && seconds < MAX_UPTIME_SECONDS;
        is_plausible.then(|| Self((seconds * NS_PER_SECOND as f64).round() as u64))
    }

    /// Nanoseconds from `earlier` to `self`; 0 if `earlier` is later, since two observers of one clock may differ slightly.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Nanoseconds from `start` to `self`; `None` if `self` is before it.
    pub fn checked_since(self, start: Self) -> Option<u64> {
        self.0.checked_sub(start.0)
    }
}

/// An optional number of nanoseconds in eight bytes, for records of which there are many. The largest number counts as none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CompactNs(Option<NonZeroU64>);

impl CompactNs {
    /// The number, if there is one.
    pub(crate) fn get(self) -> Option<u64> {
        // Kept inverted, so that 0 is a number like others.
        self.0.map(|inverted| !inverted.get())
    }
}

impl From<u64> for CompactNs {
    fn from(ns: u64) -> Self {
        Self(NonZeroU64::new(!ns))
    }
}

impl std::fmt::Debug for CompactNs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

/// One instant on both clocks. Relates a capture to log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// Time on the clock of all events.
    pub mono: MonoNs,
    /// Nanoseconds since the Unix epoch.
    pub wall_ns: u64,
}

impl Anchor {
    /// Reads both clocks.
    pub fn now() -> Self {
        Self { mono: MonoNs::now(), wall_ns: wall_now_ns() }
    }

    /// Wall-clock time of an instant, in nanoseconds since the Unix epoch. Assumes that both clocks ran alike since the anchor.
    pub fn wall_ns_at(self, mono: MonoNs) -> u64 {
        self.wall_ns.saturating_add(mono.since(self.mono)).saturating_sub(self.mono.since(mono))
    }
}

/// Nanoseconds since the Unix epoch. Anchors a capture to the timestamps of log lines.
pub fn wall_now_ns() -> u64 {
    crate::fault::apply_clock_fault(read_clock(rustix::time::ClockId::Realtime))
}

fn read_clock(clock: rustix::time::ClockId) -> u64 {
    let reading = rustix::time::clock_gettime(clock);
    reading.tv_sec as u64 * NS_PER_SECOND + reading.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::CompactNs;

    #[test]
    fn every_number_but_the_largest_is_kept() {
        assert_eq!(size_of::<CompactNs>(), 8);
        assert_eq!(CompactNs::default().get(), None);
        let kept = [0, 1, u64::MAX - 1, u64::MAX].map(|ns| CompactNs::from(ns).get());
        assert_eq!(kept, [Some(0), Some(1), Some(u64::MAX - 1), None]);
    }
}
