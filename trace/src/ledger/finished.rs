//! Summaries of finished requests in bounded memory. Ordinary ones are evicted before notable ones.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;

use hashbrown::hash_map::Entry;
use hashbrown::{DefaultHashBuilder, HashMap};

use super::request::RequestSummary;

#[derive(Debug, Default)]
pub(super) struct FinishedRequests {
    /// Notable ones, each older than every recent one; oldest first.
    notable: VecDeque<RequestSummary>,
    /// All others, oldest first.
    recent: VecDeque<RequestSummary>,
    /// Total length of all rids, in bytes.
    rid_bytes: usize,
    /// Number of summaries that are not kept, or not any more.
    pub(super) evicted: u64,
    /// Number of summaries by the hash of their rid, so that an unknown rid is not searched for.
    by_rid_hash: HashMap<u64, u32>,
    hasher: DefaultHashBuilder,
}

/// Maximum number of summaries, and of bytes of their rids.
#[derive(Clone, Copy)]
pub(super) struct SummaryLimits {
    pub(super) summaries: usize,
    pub(super) rid_bytes: usize,
}

impl FinishedRequests {
    /// Adds a summary. At the limit, evicts the oldest ordinary one, or the oldest notable one if those fill half of the space.
    /// `is_notable`: a request with a problem, which is kept longer.
    pub(super) fn add_summary(
        &mut self,
        summary: RequestSummary,
        limits: SummaryLimits,
        is_notable: impl Fn(&RequestSummary) -> bool,
    ) {
        let would_never_fit = limits.summaries == 0 || summary.rid.len() > limits.rid_bytes;
        if would_never_fit {
            self.evicted += 1;
            return;
        }
        // Each step moves or evicts one summary, so it ends.
        while self.len() > 0 && !self.has_room_for(&summary, limits) {
            if let Some(evicted) = self.evict_or_move_oldest(limits.summaries / 2, &is_notable) {
                self.rid_bytes = self.rid_bytes.saturating_sub(evicted.rid.len());
                self.evicted += 1;
                self.uncount_summary_of_rid(&evicted.rid);
            }
        }
        self.rid_bytes = self.rid_bytes.saturating_add(summary.rid.len());
        *self.by_rid_hash.entry(self.hasher.hash_one(&*summary.rid)).or_default() += 1;
        self.recent.push_back(summary);
    }

    /// Whether a further summary keeps both limits.
    fn has_room_for(&self, summary: &RequestSummary, limits: SummaryLimits) -> bool {
        self.len() < limits.summaries && self.rid_bytes + summary.rid.len() <= limits.rid_bytes
    }

    /// Removes and returns the oldest summary. A notable one moves to the list of notable ones instead, from which the oldest is removed if
    /// there are more than `max_notable`. `None` if the summary only moved.
    fn evict_or_move_oldest(
        &mut self,
        max_notable: usize,
        is_notable: impl Fn(&RequestSummary) -> bool,
    ) -> Option<RequestSummary> {
        let Some(oldest) = self.recent.pop_front() else {
            // Only notable ones are left.
            return self.notable.pop_front();
        };
        if !is_notable(&oldest) {
            return Some(oldest);
        }
        self.notable.push_back(oldest);
        if self.notable.len() > max_notable { self.notable.pop_front() } else { None }
    }

    /// Counts one summary less with this rid. At 0, its entry is removed, so that the map stays as small as the list.
    fn uncount_summary_of_rid(&mut self, rid: &str) {
        if let Entry::Occupied(mut summaries) = self.by_rid_hash.entry(self.hasher.hash_one(rid)) {
            *summaries.get_mut() -= 1;
            if *summaries.get() == 0 {
                summaries.remove();
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.notable.len() + self.recent.len()
    }

    /// The newest request with this id; `None` without a summary of it.
    pub(super) fn newest_summary_mut(&mut self, rid: &str) -> Option<&mut RequestSummary> {
        // The search reads all summaries, so it is made only for rids that have one.
        if !self.by_rid_hash.contains_key(&self.hasher.hash_one(rid)) {
            return None;
        }
        let oldest_first = self.notable.iter_mut().chain(&mut self.recent);
        oldest_first.rev().find(|summary| &*summary.rid == rid)
    }

    /// Oldest first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &RequestSummary> {
        self.notable.iter().chain(&self.recent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::request::RequestNumbers;

    fn summary(rid: &str, missing: u32) -> RequestSummary {
        let numbers = RequestNumbers { wire_missing: missing, ..RequestNumbers::default() };
        RequestSummary { rid: rid.into(), numbers }
    }

    #[test]
    fn only_kept_rids_are_found_and_counted() {
        let mut finished = FinishedRequests::default();
        for n in 0..1_000_u32 {
            let limits = SummaryLimits { summaries: 8, rid_bytes: 1_000 };
            // Each fourth is notable, and each rid occurs twice.
            finished.add_summary(summary(&format!("{}", n / 2), u32::from(n % 4 == 0)), limits, |s| s.wire_missing > 0);
            assert!(finished.by_rid_hash.values().sum::<u32>() == finished.len() as u32);
        }
        let kept: Vec<String> = finished.iter().map(|summary| summary.rid.to_string()).collect();
        for n in 0..500 {
            let rid = n.to_string();
            let newest = finished.newest_summary_mut(&rid).map(|summary| summary.wire_missing);
            assert_eq!(newest.is_some(), kept.contains(&rid), "{rid} of {kept:?}");
        }
        assert!(finished.newest_summary_mut("499").is_some() && finished.by_rid_hash.len() <= 8);
    }

    #[test]
    fn notable_requests_are_evicted_after_ordinary_ones() {
        let mut finished = FinishedRequests::default();
        let mut enter = |rid: &str, missing| {
            finished.add_summary(summary(rid, missing), SummaryLimits { summaries: 4, rid_bytes: 1_000 }, |s| {
                s.wire_missing > 0
            });
        };
        enter("lost-0", 1);
        for n in 0..100 {
            enter(&format!("{n}"), 0);
        }
        let rids: Vec<&str> = finished.iter().map(|s| &*s.rid).collect();
        assert_eq!(rids, ["lost-0", "97", "98", "99"]);
        let mut enter = |rid: &str, missing| {
            finished.add_summary(summary(rid, missing), SummaryLimits { summaries: 4, rid_bytes: 1_000 }, |s| {
                s.wire_missing > 0
            });
        };
        for n in 1..9 {
            enter(&format!("lost-{n}"), 1);
        }
        enter("last", 0);
        let rids: Vec<&str> = finished.iter().map(|s| &*s.rid).collect();
        assert_eq!((rids.len(), rids[3], finished.len(), finished.evicted), (4, "last", 4, 106));
        assert!(rids[..3].iter().all(|rid| rid.starts_with("lost-")), "{rids:?}");
    }
}
