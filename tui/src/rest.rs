//! How long a run's loop sleeps where there is nothing to do: shortly between messages, longer once none has come for a while.

use std::time::{Duration, Instant};

/// Short beside the interval of a busy engine's frames, long beside a wake-up.
pub(crate) const SHORT: Duration = Duration::from_millis(4);
/// What comes is observed whether we sleep or not, and waits: the probe's ring and the relay's queue hold several hundred
/// milliseconds of a busy engine. A key ends the sleep.
pub(crate) const LONG: Duration = Duration::from_millis(20);
/// For so long nothing has come by then.
const QUIET: Duration = Duration::from_millis(500);

/// Since when there is nothing to do.
#[derive(Debug, Default)]
pub(crate) struct Rest(Option<Instant>);

impl Rest {
    /// There was something.
    pub(crate) fn end(&mut self) {
        self.0 = None;
    }

    /// There was nothing: how long to sleep before the next look.
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
