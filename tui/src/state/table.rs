//! Request table: all rows, and the shown ones in their order.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;

use super::query::Query;
use super::row::{Column, Key, Row};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sort {
    pub(crate) column: Column,
    pub(crate) descending: bool,
}

impl Default for Sort {
    fn default() -> Self {
        Self { column: Column::Flags, descending: true }
    }
}

/// Rows and their order. Rows are reused by the next refresh, so a steady table does not allocate.
///
/// Only the visible part is sorted: of ten thousand requests a screen shows fifty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
    /// Number of rows, shown or not.
    pub(crate) used: usize,
    /// Rows that pass the filter: pinned ones first and sorted, the others unsorted.
    shown: Vec<Entry>,
    pub(crate) pinned: usize,
    sort: Sort,
    /// Parameters that `shown` was built with; `None` if rows have changed since.
    made_for: Option<(Query, Sort, BTreeSet<String>)>,
}

/// Sort key of a row.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    /// First bytes of the rid, which decide most ties.
    start: u64,
    /// Index in `rows`.
    row: u32,
}

/// First bytes of a rid, ordered as rids are.
fn start(rid: &str) -> u64 {
    let mut start = [0; 8];
    std::iter::zip(&mut start, rid.bytes()).for_each(|(to, from)| *to = from);
    u64::from_be_bytes(start)
}

impl Table {
    /// Starts a refresh: all rows may be overwritten.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
        self.made_for = None;
    }

    /// Next row to write. It still holds old values, so the caller must set every field.
    pub(crate) fn next(&mut self) -> &mut Row {
        if self.used == self.rows.len() {
            self.rows.push(Row::default());
        }
        self.used += 1;
        self.made_for = None;
        &mut self.rows[self.used - 1]
    }

    /// Selects and orders the shown rows: pinned rows, then rows that match the filter. The rid breaks ties, so that rows do not jump.
    pub(crate) fn arrange(&mut self, filter: &Query, sort: Sort, pins: &BTreeSet<String>) {
        let made_for = self.made_for.as_ref();
        if made_for.is_some_and(|(q, s, p)| q == filter && *s == sort && p == pins) {
            return;
        }
        let mut shown = std::mem::take(&mut self.shown);
        shown.clear();
        let rows = || self.rows[..self.used].iter().enumerate();
        let is_pinned = |row: &Row| !pins.is_empty() && pins.contains(&row.rid);
        let entry = |(place, row): (usize, &Row)| Entry {
            key: sort.column.key(row),
            start: start(&row.rid),
            row: place as u32,
        };
        shown.extend(rows().filter(|(_, row)| is_pinned(row)).map(entry));
        self.pinned = shown.len();
        let passes = |row: &Row| !is_pinned(row) && filter.matches(row);
        shown.extend(rows().filter(|(_, row)| passes(row)).map(entry));
        self.sort = sort;
        shown[..self.pinned].sort_unstable_by(|a, b| self.compare(a, b));
        self.shown = shown;
        self.made_for = Some((filter.clone(), sort, pins.clone()));
    }

    fn compare(&self, a: &Entry, b: &Entry) -> Ordering {
        let by = a.key.cmp(&b.key);
        let rid = |entry: &Entry| self.rows[entry.row as usize].rid.as_str();
        let rids = a.start.cmp(&b.start).then_with(|| rid(a).cmp(rid(b)));
        match self.sort {
            Sort { column: Column::Rid, descending: true } => rids.reverse(),
            Sort { descending: true, .. } => by.reverse().then(rids),
            _ => by.then(rids),
        }
    }

    /// Row at `place` of the shown rows, counted from the top.
    pub(crate) fn visible(&self, place: usize) -> Option<&Row> {
        self.visible_at(place..place + 1).pop()
    }

    /// Existing rows at `places` of the shown rows, counted from the top.
    pub(crate) fn visible_at(&self, places: Range<usize>) -> Vec<&Row> {
        let (pinned, others) = self.shown.split_at(self.pinned);
        let first = places.start.min(pinned.len())..places.end.min(pinned.len());
        let from = places.start.saturating_sub(pinned.len());
        let to = places.end.saturating_sub(pinned.len()).min(others.len());
        let mut others: Vec<&Entry> = others.iter().collect();
        let mut rest: &mut [&Entry] = &mut [];
        if from < to {
            let compare = |a: &&Entry, b: &&Entry| self.compare(a, b);
            others.select_nth_unstable_by(to - 1, compare);
            rest = &mut others[..to];
            rest.select_nth_unstable_by(from, compare);
            rest = &mut rest[from..];
            rest.sort_unstable_by(compare);
        }
        let all = pinned[first].iter().chain(rest.iter().copied());
        all.map(|entry| &self.rows[entry.row as usize]).collect()
    }

    pub(crate) fn visible_count(&self) -> usize {
        self.shown.len()
    }

    /// Position of `rid` among the shown rows; the first one if a rid was used twice.
    pub(crate) fn place(&self, rid: &str) -> Option<usize> {
        let start = start(rid);
        let is_it = |entry: &&Entry| entry.start == start && self.rows[entry.row as usize].rid == rid;
        let (pinned, others) = self.shown.split_at(self.pinned);
        if let Some(place) = pinned.iter().position(|entry| is_it(&entry)) {
            return Some(place);
        }
        let it = others.iter().filter(is_it).min_by(|a, b| self.compare(a, b))?;
        let before = others.iter().filter(|other| self.compare(other, it).is_lt());
        Some(self.pinned + before.count())
    }

    /// Worst of the shown rows; `None` if all are healthy.
    pub(crate) fn worst(&self) -> Option<&Row> {
        let shown = self.shown.iter().map(|entry| &self.rows[entry.row as usize]);
        let unhealthy = shown.filter(|row| row.is_unhealthy());
        unhealthy.max_by(|a, b| a.severity().cmp(&b.severity()).then_with(|| a.rid.cmp(&b.rid)))
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use trace::ledger::Numbers;

    use super::*;

    fn table(gaps: &[(&str, u64)]) -> Table {
        let mut table = Table::default();
        for &(rid, gap) in gaps {
            *table.next() =
                Row { rid: rid.into(), numbers: Numbers { gap_ns: Some(gap), ..Numbers::default() }, ..Row::default() };
        }
        table
    }

    fn shown(table: &Table) -> Vec<&str> {
        (0..table.visible_count()).filter_map(|i| table.visible(i)).map(|r| r.rid.as_str()).collect()
    }

    #[test]
    fn pins_come_first_and_pass_every_filter() {
        let mut table = table(&[("a", 1), ("b", 3), ("c", 2), ("d", 2)]);
        let sort = Sort { column: Column::headed("gap"), descending: true };
        table.arrange(&Query::default(), sort, &BTreeSet::new());
        assert_eq!(shown(&table), ["b", "c", "d", "a"]);
        let filter = Query::parse("gap>1ns").expect("a filter");
        table.arrange(&filter, sort, &BTreeSet::from(["a".to_owned()]));
        assert_eq!(shown(&table), ["a", "b", "c", "d"]);
        assert_eq!((table.pinned, table.place("c"), table.worst().map(|r| &*r.rid)), (1, Some(2), Some("b")));
    }

    proptest! {
        #[test]
        fn visible_rows_match_a_full_sort(
            rows in vec(("[ab]{0,9}", 0..4_u64), 0..40), from in 0..45_usize, length in 0..45_usize, descending: bool, rids: bool,
        ) {
            let column = if rids { Column::Rid } else { Column::headed("gap") };
            let rows: BTreeMap<String, u64> = rows.into_iter().collect();
            let mut expected: Vec<(&str, u64)> = rows.iter().map(|(rid, gap)| (rid.as_str(), *gap)).collect();
            let mut table = table(&expected);
            match (rids, descending) {
                (true, true) => expected.reverse(),
                (true, false) => {}
                (false, true) => expected.sort_by_key(|row| Reverse(row.1)),
                (false, false) => expected.sort_by_key(|row| row.1),
            }
            table.arrange(&Query::default(), Sort { column, descending }, &BTreeSet::new());
            let seen: Vec<&str> = table.visible_at(from..from + length).iter().map(|row| row.rid.as_str()).collect();
            let expected: Vec<&str> = expected.iter().map(|row| row.0).collect();
            prop_assert_eq!(seen, expected.iter().copied().skip(from).take(length).collect::<Vec<_>>());
            prop_assert_eq!(table.visible(from).map(|row| row.rid.as_str()), expected.get(from).copied());
            for (place, rid) in expected.iter().enumerate() {
                prop_assert_eq!(table.place(rid), Some(place));
            }
        }
    }

    #[test]
    fn a_smaller_refresh_leaves_no_old_rows() {
        let mut table = table(&[("a", 1), ("b", 3)]);
        table.clear();
        *table.next() = Row { rid: "z".into(), ..Row::default() };
        table.arrange(&Query::default(), Sort::default(), &BTreeSet::new());
        assert_eq!((shown(&table), table.used, table.place("b")), (vec!["z"], 1, None));
        assert_eq!(table.worst(), None);
    }
}
