//! Times in exports: relative to the start of the capture, and by the wall clock.

use crate::clock::MonoNs;

/// Converts the engine's clock to time since the capture's start and to wall time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: MonoNs,
    mono: MonoNs,
    wall_ns: u64,
}

impl Clock {
    /// Clock of a capture that began at `start`. The instant `mono` was `wall_ns` since the Unix epoch.
    pub fn new(start: MonoNs, mono: MonoNs, wall_ns: u64) -> Self {
        Self { start, mono, wall_ns }
    }

    /// Updates the relation of both clocks: wall time may be adjusted during a capture.
    pub(super) fn anchor(&mut self, mono: MonoNs, wall_ns: u64) {
        (self.mono, self.wall_ns) = (mono, wall_ns);
    }

    /// Nanoseconds since the start of the capture.
    pub fn at(&self, at: MonoNs) -> u64 {
        at.since(self.start)
    }

    /// The inverse of [`Self::at`].
    pub(super) fn mono(&self, at_ns: u64) -> MonoNs {
        MonoNs(self.start.0.saturating_add(at_ns))
    }

    /// Nanoseconds since the Unix epoch.
    pub fn wall(&self, at: MonoNs) -> u64 {
        if at >= self.mono {
            self.wall_ns.saturating_add(at.since(self.mono))
        } else {
            self.wall_ns.saturating_sub(self.mono.since(at))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_the_anchor_are_converted() {
        let mut clock = Clock::new(MonoNs(100), MonoNs(150), 1_000_000);
        assert_eq!((clock.at(MonoNs(130)), clock.at(MonoNs(90))), (30, 0));
        assert_eq!((clock.wall(MonoNs(130)), clock.wall(MonoNs(170))), (999_980, 1_000_020));
        assert_eq!(clock.mono(30), MonoNs(130));
        clock.anchor(MonoNs(200), 2_000_000);
        assert_eq!(clock.wall(MonoNs(201)), 2_000_001);
    }
}
