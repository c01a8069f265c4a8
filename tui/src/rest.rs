//! Sleep time of a run loop without work: short between messages, longer after a quiet period.

use std::time::{Duration, Instant};

/// Shorter than the frame interval of a busy engine, but long compared to a wake-up.
pub(crate) const SHORT: Duration = Duration::from_millis(4);
/// Observations are queued during the sleep: the probe's ring buffer and the relay's queue hold several hundred milliseconds of a busy
/// engine. A key ends the sleep.
pub(crate) const LONG: Duration = Duration::from_millis(50);
/// Idle time after which sleeps become long.
const QUIET: Duration = Duration::from_millis(500);

/// Start of the current idle period.
#[derive(Debug, Default)]
pub(crate) struct Rest(Option<Instant>);

impl Rest {
    /// Ends the idle period.
    pub(crate) fn end(&mut self) {
        self.0 = None;
    }

    /// Length of the next sleep while idle.
    pub(crate) fn length(&mut self, now: Instant) -> Duration {
        let since = *self.0.get_or_insert(now);
        if now - since < QUIET { SHORT } else { LONG }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_run_that_is_quiet_for_a_while_sleeps_long() {
        let (mut rest, start) = (Rest::default(), Instant::now());
        assert_eq!(rest.length(start), SHORT);
        assert_eq!(rest.length(start + SHORT), SHORT);
        assert_eq!(rest.length(start + QUIET), LONG);
        rest.end();
        assert_eq!(rest.length(start + QUIET + LONG), SHORT);
    }
}
