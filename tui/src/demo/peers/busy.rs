//! Time that a peer spends on its work. It sleeps instead of computing, so that the demo leaves the machine to the rest.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// A thread that can do one thing at a time.
#[derive(Debug)]
pub(super) struct Busy {
    until: Instant,
}

/// What the timer can do: shorter work is saved up until it amounts to this, and a sleep that came out longer is made up.
const RESOLUTION: Duration = Duration::from_millis(1);

impl Busy {
    pub(super) fn new() -> Self {
        Self { until: Instant::now() }
    }

    /// Works for that long.
    pub(super) async fn spend(&mut self, time: Duration) {
        let now = Instant::now();
        self.until = self.until.max(now.checked_sub(RESOLUTION).unwrap_or(now)) + time;
        if self.until - now >= RESOLUTION {
            sleep_until(self.until).await;
        }
    }
}
