//! Summaries of finished requests in bounded memory. Ordinary ones are evicted before notable ones.

use std::collections::VecDeque;

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
}

/// Maximum number of summaries, and of bytes of their rids.
#[derive(Clone, Copy)]
pub(super) struct SummaryLimits {
    pub(super) summaries: usize,
    pub(super) rid_bytes: usize,
}

impl FinishedRequests {
    /// Adds a summary. At the limit, evicts the oldest ordinary one, or the oldest notable one if those fill half of the space.
    pub(super) fn add_summary(
        &mut self,
        summary: RequestSummary,
        limits: SummaryLimits,
        is_notable: impl Fn(&RequestSummary) -> bool,
    ) {
        if limits.summaries == 0 || summary.rid.len() > limits.rid_bytes {
            self.evicted += 1;
            return;
        }
        // Each step moves or evicts one summary, so it ends.
        while self.len() > 0
            && (self.len() >= limits.summaries || self.rid_bytes + summary.rid.len() > limits.rid_bytes)
        {
            let evicted = match self.recent.pop_front() {
                // It moves to a list of its own, and is evicted only if too many are notable.
                Some(oldest) if is_notable(&oldest) => {
                    self.notable.push_back(oldest);
                    if self.notable.len() > limits.summaries / 2 { self.notable.pop_front() } else { None }
                }
                Some(oldest) => Some(oldest),
                None => self.notable.pop_front(),
            };
            if let Some(evicted) = evicted {
                self.rid_bytes = self.rid_bytes.saturating_sub(evicted.rid.len());
                self.evicted += 1;
            }
        }
        self.rid_bytes = self.rid_bytes.saturating_add(summary.rid.len());
        self.recent.push_back(summary);
    }

    pub(super) fn len(&self) -> usize {
        self.notable.len() + self.recent.len()
    }

    /// The newest request with this id.
    pub(super) fn newest_mut(&mut self, rid: &str) -> Option<&mut RequestSummary> {
        let all = self.notable.iter_mut().chain(&mut self.recent);
        all.rev().find(|summary| &*summary.rid == rid)
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
