//! Limits the bytes sent per minute.

use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_mins(1);

/// Byte budget per minute.
#[derive(Debug)]
pub(super) struct ByteBudget {
    max: u64,
    since: Instant,
    sent: u64,
}

impl ByteBudget {
    pub(super) fn new(max: u64, now: Instant) -> Self {
        Self {
            max,
            since: now,
            sent: 0,
        }
    }

    /// Returns whether a body of `bytes` may be sent. A body that starts within the budget is sent completely.
    pub(super) fn admits(&mut self, bytes: usize, now: Instant) -> bool {
        if now.duration_since(self.since) >= MINUTE {
            (self.since, self.sent) = (now, 0);
        }
        let admitted = self.sent < self.max;
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
    fn the_byte_budget_is_reset_every_minute() {
        let begun = Instant::now();
        let mut budget = ByteBudget::new(100, begun);
        let after = |s| begun + Duration::from_secs(s);
        assert!(budget.admits(60, begun) && budget.admits(60, after(1)));
        assert!(!budget.admits(1, after(2)) && !budget.admits(1, after(59)));
        assert!(budget.admits(500, after(60)));
        assert!(!budget.admits(1, after(61)));
    }
}
