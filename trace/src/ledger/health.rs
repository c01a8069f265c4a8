//! Health checks of the server, recognised by their ids. Counted separately, never judged.

use std::collections::VecDeque;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use serde::{Deserialize, Serialize};

/// Number of health checks remembered, to count each once over its chunks and hops. They are seconds apart.
const RECENT: usize = 64;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct HealthChecks {
    /// Gives the same hash in every process, because a serialized ledger may continue in another one.
    #[serde(skip)]
    hasher: BuildHasherDefault<DefaultHasher>,
    recent: VecDeque<u64>,
}

impl HealthChecks {
    /// Whether it was not seen recently.
    pub(crate) fn is_new(&mut self, rid: &str) -> bool {
        let hash = self.hasher.hash_one(rid);
        if self.recent.contains(&hash) {
            return false;
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(hash);
        true
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
