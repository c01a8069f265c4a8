//! Requests that a finding counts, so that they can be listed.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::early_deliveries::hash_rid;

/// Maximum number of requests kept of a finding. The oldest are evicted first.
const MAX_KEPT: usize = 4_096;

/// The latest requests that a finding counts. A copy shares their memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountedRids {
    /// Number of them, with those that are not kept any more.
    counted: u64,
    kept: Arc<KeptRids>,
}

/// Hashes of rids. A collision only lists one request too many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct KeptRids {
    in_order: VecDeque<u64>,
    all: BTreeSet<u64>,
}

impl CountedRids {
    /// Counts a request, if it is not among the kept ones.
    pub(crate) fn add_rid(&mut self, rid: &str) {
        let hash = hash_rid(rid);
        if self.kept.all.contains(&hash) {
            return;
        }
        self.counted += 1;
        // Copies the kept hashes first if a finding still shares them.
        let kept = Arc::make_mut(&mut self.kept);
        kept.all.insert(hash);
        kept.in_order.push_back(hash);
        if kept.in_order.len() > MAX_KEPT
            && let Some(oldest) = kept.in_order.pop_front()
        {
            kept.all.remove(&oldest);
        }
    }

    /// Removes a request that was counted.
    pub(super) fn remove_rid(&mut self, rid: &str) {
        let hash = hash_rid(rid);
        self.counted = self.counted.saturating_sub(1);
        let kept = Arc::make_mut(&mut self.kept);
        kept.all.remove(&hash);
        kept.in_order.retain(|other| *other != hash);
    }

    /// Number of requests, with those that are not kept any more.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Whether the request is one of those that are kept.
    pub fn contains(&self, rid: &str) -> bool {
        !self.kept.all.is_empty() && self.kept.all.contains(&hash_rid(rid))
    }
}

impl<'r> FromIterator<&'r str> for CountedRids {
    fn from_iter<I: IntoIterator<Item = &'r str>>(rids: I) -> Self {
        let mut counted = Self::default();
        for rid in rids {
            counted.add_rid(rid);
        }
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_requests_are_kept_once_each_and_all_are_counted() {
        let rids: Vec<String> = (0..MAX_KEPT + 2).map(|n| n.to_string()).collect();
        let counted: CountedRids = rids.iter().chain(&rids[5..9]).map(String::as_str).collect();
        assert_eq!(counted.counted(), rids.len() as u64);
        assert_eq!(["0", "1", "2", "unknown"].map(|rid| counted.contains(rid)), [false, false, true, false]);
        assert!(!CountedRids::default().contains("0"));
    }
}
