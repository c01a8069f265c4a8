//! Completion of truncated rids, if only one complete rid matches.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;
use std::rc::Rc;

use hashbrown::HashSet;

use super::import_stats::ImportStats;

/// Complete rids seen so far.
#[derive(Debug, Default)]
pub(super) struct KnownRids {
    known: HashSet<Rc<str>>,
    order: VecDeque<Rc<str>>,
    /// The rid that was added last.
    last: Option<Rc<str>>,
    /// Built when the first rid must be completed, since most logs truncate none.
    sorted: Option<BTreeSet<Rc<str>>>,
    limit: usize,
}

impl KnownRids {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Adds a complete rid, and returns its shared text.
    pub(super) fn add_rid(&mut self, rid: &str, stats: &mut ImportStats) -> Rc<str> {
        if self.limit == 0 {
            return rid.into();
        }
        // Statements and lines of one request often follow each other.
        if let Some(last) = self.last.as_ref().filter(|last| ***last == *rid) {
            return Rc::clone(last);
        }
        let known_before = self.known.len();
        let rid = Rc::clone(self.known.get_or_insert_with(rid, |rid| rid.into()));
        self.last = Some(Rc::clone(&rid));
        if self.known.len() == known_before {
            return rid;
        }
        if self.order.len() >= self.limit
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
            if let Some(sorted) = &mut self.sorted {
                sorted.remove(&oldest);
            }
            stats.rids_evicted += 1;
        }
        if let Some(sorted) = &mut self.sorted {
            sorted.insert(Rc::clone(&rid));
        }
        self.order.push_back(Rc::clone(&rid));
        rid
    }

    /// Returns the only complete rid with this prefix. If there is none or more than one, counts that and returns `None`.
    pub(super) fn complete_rid(&mut self, prefix: &str, stats: &mut ImportStats) -> Option<&str> {
        // In sorted order, all rids with the prefix follow it.
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let sorted = self.sorted.get_or_insert_with(|| self.known.iter().cloned().collect());
        let mut fitting = sorted.range::<str, _>(from).take_while(|rid| rid.starts_with(prefix));
        match (fitting.next(), fitting.next()) {
            (Some(rid), None) => {
                stats.rids_completed += 1;
                Some(rid)
            }
            (Some(_), Some(_)) => {
                stats.rids_ambiguous += 1;
                None
            }
            (None, _) => {
                stats.rids_incomplete += 1;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_rid_is_completed_only_if_one_rid_matches() {
        let (mut rids, mut stats) = (KnownRids::new(3), ImportStats::default());
        for rid in ["20cba755-1", "20cba756-2", "5b920f43-3", "20cba755-1"] {
            rids.add_rid(rid, &mut stats);
        }
        assert_eq!(rids.complete_rid("20cba755", &mut stats), Some("20cba755-1"));
        assert_eq!(rids.complete_rid("20cba75", &mut stats), None);
        assert_eq!(rids.complete_rid("ffff", &mut stats), None);
        assert_eq!((stats.rids_completed, stats.rids_ambiguous, stats.rids_incomplete), (1, 1, 1));
        rids.add_rid("aaaa", &mut stats);
        assert_eq!(rids.complete_rid("20cba755", &mut stats), None, "the oldest was evicted");
        assert_eq!(stats.rids_evicted, 1);
    }
}
