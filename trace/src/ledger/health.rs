//! Health checks of the server, recognised by their ids. Counted separately, never judged.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::early::hash;
use super::limits::push_bounded;

/// Number of health checks remembered, to count each once over its chunks and hops. They are seconds apart.
const RECENT: usize = 64;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct HealthChecks {
    recent: VecDeque<u64>,
}

impl HealthChecks {
    /// Whether it was not seen recently.
    pub(crate) fn is_new(&mut self, rid: &str) -> bool {
        let hash = hash(rid);
        let known = self.recent.contains(&hash);
        if !known {
            push_bounded(&mut self.recent, hash, RECENT);
        }
        !known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_health_check_counts_once_over_its_chunks_and_hops() {
        let mut checks = HealthChecks::default();
        assert!(checks.is_new("HEALTH_CHECK_1") && !checks.is_new("HEALTH_CHECK_1") && checks.is_new("HEALTH_CHECK_2"));
    }
}
