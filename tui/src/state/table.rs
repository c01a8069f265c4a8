//! The request table: rows, and which of them are shown in what order.

use std::collections::BTreeSet;

use super::query::Query;
use super::row::{Column, Key, Row};
use super::ui::Sort;

/// Rows and their order. Rows are reused from one refresh to the next, so a steady table allocates nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
    used: usize,
    /// Places in `rows` of those that pass the filter, pinned ones first.
    order: Vec<u32>,
    pinned: usize,
    /// What each row is sorted by, at its place.
    keys: Vec<Key>,
    /// What the order was made for; `None` when rows have changed since.
    made_for: Option<(Query, Sort, BTreeSet<String>)>,
}

impl Table {
    /// Begins a refresh: all rows are free to be written again.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
        self.made_for = None;
    }

    /// The next row to write. It still holds what it held before; the writer sets every field.
    pub(crate) fn next(&mut self) -> &mut Row {
        if self.used == self.rows.len() {
            self.rows.push(Row::default());
        }
        self.used += 1;
        self.made_for = None;
        &mut self.rows[self.used - 1]
    }

    /// Puts the rows in order: pinned ones, then those that pass the filter, sorted. Ties go by rid, so that nothing jumps.
    pub(crate) fn arrange(&mut self, filter: &Query, sort: Sort, pins: &BTreeSet<String>) {
        let made_for = self.made_for.as_ref();
        if made_for.is_some_and(|(q, s, p)| q == filter && *s == sort && p == pins) {
            return;
        }
        let rows = &self.rows[..self.used];
        let keys = &mut self.keys;
        keys.clear();
        keys.extend(rows.iter().map(|row| sort.column.key(row)));
        let by_rid = sort.column == Column::Rid && sort.descending;
        let compare = |&a: &u32, &b: &u32| {
            let (a, b) = (a as usize, b as usize);
            let by = keys[a].cmp(&keys[b]);
            let rids = || rows[a].rid.cmp(&rows[b].rid);
            (if sort.descending { by.reverse() } else { by })
                .then_with(|| if by_rid { rids().reverse() } else { rids() })
        };
        let is_pinned = |row: &Row| !pins.is_empty() && pins.contains(&row.rid);
        self.order.clear();
        self.order
            .extend((0..rows.len() as u32).filter(|&i| is_pinned(&rows[i as usize])));
        self.order.sort_unstable_by(compare);
        self.pinned = self.order.len();
        let passes = |row: &Row| !is_pinned(row) && filter.matches(row);
        self.order
            .extend((0..rows.len() as u32).filter(|&i| passes(&rows[i as usize])));
        self.order[self.pinned..].sort_unstable_by(compare);
        self.made_for = Some((filter.clone(), sort, pins.clone()));
    }

    /// The row shown at `place`, counted from the top.
    pub(crate) fn visible(&self, place: usize) -> Option<&Row> {
        self.rows.get(*self.order.get(place)? as usize)
    }

    /// How many rows are shown.
    pub(crate) fn visible_count(&self) -> usize {
        self.order.len()
    }

    /// How many rows there are, shown or not.
    pub(crate) fn count(&self) -> usize {
        self.used
    }

    /// How many of the shown rows are pinned.
    pub(crate) fn pinned(&self) -> usize {
        self.pinned
    }

    /// Where `rid` is shown. A rid that was used twice is found where it stands first.
    pub(crate) fn place(&self, rid: &str) -> Option<usize> {
        self.order.iter().position(|&i| self.rows[i as usize].rid == rid)
    }

    /// The worst of the rows that are shown; `None` when nothing is wrong with any.
    pub(crate) fn worst(&self) -> Option<&Row> {
        let shown = self.order.iter().map(|&i| &self.rows[i as usize]);
        shown.filter(|r| r.is_ill()).max_by_key(|r| r.badness())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(gaps: &[(&str, u64)]) -> Table {
        let mut table = Table::default();
        for &(rid, gap) in gaps {
            *table.next() = Row {
                rid: rid.into(),
                gap_ns: Some(gap),
                ..Row::default()
            };
        }
        table
    }

    fn shown(table: &Table) -> Vec<&str> {
        (0..table.visible_count())
            .filter_map(|i| table.visible(i))
            .map(|r| r.rid.as_str())
            .collect()
    }

    #[test]
    fn pins_come_first_and_pass_every_filter() {
        let mut table = table(&[("a", 1), ("b", 3), ("c", 2), ("d", 2)]);
        let sort = Sort {
            column: Column::Gap,
            descending: true,
        };
        table.arrange(&Query::default(), sort, &BTreeSet::new());
        assert_eq!(shown(&table), ["b", "c", "d", "a"]);
        let filter = Query::parse("gap>1ns").expect("a filter");
        table.arrange(&filter, sort, &BTreeSet::from(["a".to_owned()]));
        assert_eq!(shown(&table), ["a", "b", "c", "d"]);
        assert_eq!(
            (table.pinned(), table.place("c"), table.worst().map(|r| &*r.rid)),
            (1, Some(2), Some("b"))
        );
    }

    #[test]
    fn a_smaller_refresh_leaves_no_old_rows() {
        let mut table = table(&[("a", 1), ("b", 3)]);
        table.clear();
        *table.next() = Row {
            rid: "z".into(),
            ..Row::default()
        };
        table.arrange(&Query::default(), Sort::default(), &BTreeSet::new());
        assert_eq!((shown(&table), table.count(), table.place("b")), (vec!["z"], 1, None));
        assert_eq!(table.worst(), None);
    }
}
