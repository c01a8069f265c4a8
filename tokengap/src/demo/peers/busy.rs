//! Processing time of a peer. It sleeps instead of computing, to leave the CPU to others.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// A thread that does one thing at a time.
#[derive(Debug)]
pub(super) struct Busy {
    until: Instant,
}

/// Timer resolution. Shorter work accumulates until it reaches this; an overlong sleep is compensated.
const RESOLUTION: Duration = Duration::from_millis(1);

impl Busy {
    pub(super) fn new() -> Self {
        Self { until: Instant::now() }
    }

    /// Spends `time` being busy.
    pub(super) async fn spend(&mut self, time: Duration) {
        let now = Instant::now();
        self.until = self.until.max(now.checked_sub(RESOLUTION).unwrap_or(now)) + time;
        if self.until - now >= RESOLUTION {
            sleep_until(self.until).await;
        }
    }
}
