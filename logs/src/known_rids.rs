//! Completion of truncated rids, if only one complete rid matches.

use std::collections::{BTreeSet, VecDeque};
use std::hash::BuildHasher;
use std::ops::Bound;
use std::rc::Rc;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::import_stats::ImportStats;

/// Complete rids seen so far.
#[derive(Debug, Default)]
pub(super) struct KnownRids {
    /// The rids by their texts. Its entries are small, because a large table is slow to search and to enlarge.
    by_text: HashTable<NumberedRid>,
    hasher: DefaultHashBuilder,
    /// The rids, the oldest first.
    order: VecDeque<Rc<str>>,
    /// Number of the oldest rid in `order`.
    oldest_number: u32,
    /// The rid that was added last.
    last: Option<Rc<str>>,
    /// The rids in the order of their texts. Built when the first rid must be completed, since most logs truncate none.
    sorted: Option<BTreeSet<Rc<str>>>,
    /// Limit of rids.
    limit: usize,
}

/// A rid in the table, without its text.
#[derive(Clone, Copy, Debug)]
struct NumberedRid {
    /// How many rids were added before it, modulo 2^32.
    number: u32,
    /// Hash of its text, so that enlarging the table reads no texts.
    text_hash: u32,
}

impl NumberedRid {
    /// The hash of a text for the table, which uses the lowest and the highest of 64 bits.
    fn table_hash(text_hash: u32) -> u64 {
        (u64::from(text_hash) << 32) | u64::from(text_hash)
    }
}

impl KnownRids {
    /// Creates an empty set of at most `limit` rids.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Adds a complete rid (request id) unless it is known, and returns its shared text.
    pub(super) fn add_and_share_rid(&mut self, rid: &str, stats: &mut ImportStats) -> Rc<str> {
        // With a limit of 0 no rid is kept, so truncated ones stay truncated.
        if self.limit == 0 {
            return rid.into();
        }
        // Statements and lines of one request often follow each other.
        if let Some(last) = &self.last
            && **last == *rid
        {
            return Rc::clone(last);
        }
        let text_hash = self.hash_text(rid);
        let known = self.find_rid(rid, text_hash);
        let rid = known.unwrap_or_else(|| self.insert_rid(rid, text_hash, stats));
        self.last = Some(Rc::clone(&rid));
        rid
    }

    /// The text of a rid in the table.
    fn text_of(&self, known: NumberedRid) -> &Rc<str> {
        // Both numbers wrap, so their difference is the index.
        &self.order[known.number.wrapping_sub(self.oldest_number) as usize]
    }

    /// Returns the shared text of a rid; `None` if it is not known.
    fn find_rid(&self, rid: &str, text_hash: u32) -> Option<Rc<str>> {
        // The table searches by a 64-bit hash, which is computed from the stored 32-bit hash. Texts are compared only if the stored hashes
        // are equal.
        let known = self.by_text.find(NumberedRid::table_hash(text_hash), |known| {
            known.text_hash == text_hash && **self.text_of(*known) == *rid
        })?;
        Some(Rc::clone(self.text_of(*known)))
    }

    /// Adds a rid that is not known. At the limit, the oldest one is evicted and counted first.
    fn insert_rid(&mut self, rid: &str, text_hash: u32, stats: &mut ImportStats) -> Rc<str> {
        if self.order.len() >= self.limit {
            self.evict_oldest();
            stats.rids_evicted += 1;
        }
        let rid: Rc<str> = rid.into();
        // Rids are numbered in the order in which they are added.
        let number = self.oldest_number.wrapping_add(self.order.len() as u32);
        let table_hash = NumberedRid::table_hash(text_hash);
        // To enlarge itself, the table asks for the hashes of its entries.
        let hash_of_entry = |known: &NumberedRid| NumberedRid::table_hash(known.text_hash);
        // The rid is not in the table, so no texts are compared.
        self.by_text.insert_unique(table_hash, NumberedRid { number, text_hash }, hash_of_entry);
        // Rids are sorted only after a truncated one had to be completed.
        if let Some(sorted) = &mut self.sorted {
            sorted.insert(Rc::clone(&rid));
        }
        self.order.push_back(Rc::clone(&rid));
        rid
    }

    /// Removes the oldest rid from the order, the table, and the sorted rids if there are any.
    fn evict_oldest(&mut self) {
        let Some(oldest) = self.order.pop_front() else { return };
        let table_hash = NumberedRid::table_hash(self.hash_text(&oldest));
        if let Ok(entry) = self.by_text.find_entry(table_hash, |known| known.number == self.oldest_number) {
            entry.remove();
        }
        // The next rid in the order has the next number. Numbers wrap after 2^32.
        self.oldest_number = self.oldest_number.wrapping_add(1);
        if let Some(sorted) = &mut self.sorted {
            sorted.remove(&oldest);
        }
    }

    /// Hash of a rid's text.
    fn hash_text(&self, rid: &str) -> u32 {
        self.hasher.hash_one(rid) as u32
    }

    /// Returns the only complete rid with this prefix. If there is none or more than one, counts that and returns `None`.
    pub(super) fn complete_truncated_rid(&mut self, prefix: &str, stats: &mut ImportStats) -> Option<&str> {
        // Built for the first truncated rid, since most logs truncate none. From then on, every added or evicted rid changes it too.
        let sorted = self.sorted.get_or_insert_with(|| self.order.iter().cloned().collect());
        // In sorted order, all rids with the prefix follow each other.
        let from_prefix = (Bound::Included(prefix), Bound::Unbounded);
        let mut candidates = sorted.range::<str, _>(from_prefix).take_while(|rid| rid.starts_with(prefix));
        let Some(rid) = candidates.next() else {
            stats.rids_incomplete += 1;
            return None;
        };
        if candidates.next().is_some() {
            stats.rids_ambiguous += 1;
            return None;
        }
        stats.rids_completed += 1;
        Some(rid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_rid_is_completed_only_if_one_rid_matches() {
        let (mut rids, mut stats) = (KnownRids::new(3), ImportStats::default());
        for rid in ["20cba755-1", "20cba756-2", "5b920f43-3", "20cba755-1"] {
            rids.add_and_share_rid(rid, &mut stats);
        }
        assert_eq!(rids.complete_truncated_rid("20cba755", &mut stats), Some("20cba755-1"));
        assert_eq!(rids.complete_truncated_rid("20cba75", &mut stats), None);
        assert_eq!(rids.complete_truncated_rid("ffff", &mut stats), None);
        assert_eq!((stats.rids_completed, stats.rids_ambiguous, stats.rids_incomplete), (1, 1, 1));
        rids.add_and_share_rid("aaaa", &mut stats);
        assert_eq!(rids.complete_truncated_rid("20cba755", &mut stats), None, "the oldest was evicted");
        assert_eq!(stats.rids_evicted, 1);
    }
}
