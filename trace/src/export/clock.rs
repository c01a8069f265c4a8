//! Times in exports: relative to the start of the capture, and by the wall clock.

use crate::clock::{Anchor, MonoNs};

/// Converts the engine's clock to time since the capture's start and to wall time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) start: MonoNs,
    /// Relation of both clocks, updated during the capture because wall time may be adjusted.
    pub(super) anchor: Anchor,
}

impl Clock {
    /// Nanoseconds since the start of the capture.
    pub(super) fn at(&self, at: MonoNs) -> u64 {
        at.since(self.start)
    }

    /// Nanoseconds since the Unix epoch.
    pub(super) fn wall(&self, at: MonoNs) -> u64 {
        self.anchor.wall_ns_at(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_the_anchor_are_converted() {
        let clock = Clock { start: MonoNs(100), anchor: Anchor { mono: MonoNs(150), wall_ns: 1_000_000 } };
        assert_eq!((clock.at(MonoNs(130)), clock.at(MonoNs(90))), (30, 0));
        assert_eq!((clock.wall(MonoNs(130)), clock.wall(MonoNs(170))), (999_980, 1_000_020));
    }
}
