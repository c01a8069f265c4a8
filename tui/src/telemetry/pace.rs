//! Limits the bytes sent per minute.

use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_mins(1);

/// Byte budget per minute.
#[derive(Debug)]
pub(super) struct Pace {
    most: u64,
    since: Instant,
    sent: u64,
}

impl Pace {
    pub(super) fn new(most: u64, now: Instant) -> Self {
        Self {
            most,
            since: now,
            sent: 0,
        }
    }

    /// Returns whether a body of `bytes` may be sent. A body that starts within the budget is sent completely.
    pub(super) fn admits(&mut self, bytes: usize, now: Instant) -> bool {
        if now.duration_since(self.since) >= MINUTE {
            (self.since, self.sent) = (now, 0);
        }
        let admitted = self.sent < self.most;
        if admitted {
            self.sent += bytes as u64;
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_has_its_bytes_and_the_next_one_as_many() {
        let begun = Instant::now();
        let mut pace = Pace::new(100, begun);
        let after = |s| begun + Duration::from_secs(s);
        assert!(pace.admits(60, begun) && pace.admits(60, after(1)));
        assert!(!pace.admits(1, after(2)) && !pace.admits(1, after(59)));
        assert!(pace.admits(500, after(60)));
        assert!(!pace.admits(1, after(61)));
    }
}
