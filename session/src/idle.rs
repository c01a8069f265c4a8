//! Sleep time of a run loop without work: short between messages, longer after a quiet period.

use std::time::{Duration, Instant};

/// Sleep between messages. Shorter than the frame interval of a busy engine, but long compared to a wake-up.
pub const SHORT: Duration = Duration::from_millis(4);
/// Sleep after a quiet period: the tick interval, so that such a run wakes only for ticks. Observations are queued meanwhile: the probe's
/// ring buffer and the relay's queue hold several hundred milliseconds of a busy engine. A key ends the sleep.
pub const LONG: Duration = Duration::from_millis(100);
/// Idle time after which sleeps become long.
const QUIET: Duration = Duration::from_millis(500);

/// Start of the current idle period.
#[derive(Debug, Default)]
pub struct IdleTimer(Option<Instant>);

impl IdleTimer {
    /// Ends the idle period.
    pub fn end(&mut self) {
        self.0 = None;
    }

    /// Length of the next sleep while idle.
    pub fn length(&mut self, now: Instant) -> Duration {
        let since = *self.0.get_or_insert(now);
        if now - since < QUIET { SHORT } else { LONG }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_become_long_only_after_a_quiet_period() {
        let (mut idle_timer, start) = (IdleTimer::default(), Instant::now());
        assert_eq!(idle_timer.length(start), SHORT);
        assert_eq!(idle_timer.length(start + SHORT), SHORT);
        assert_eq!(idle_timer.length(start + QUIET), LONG);
        idle_timer.end();
        assert_eq!(idle_timer.length(start + QUIET + LONG), SHORT);
    }
}
