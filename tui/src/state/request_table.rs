//! Request table: all rows, and the shown ones in their order.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;

use trace::columns::Number;

use super::filter::RequestFilter;
use super::request_row::{RequestColumn, RequestRow, SortKey};
use super::run_time::RunClock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SortOrder {
    pub(crate) column: RequestColumn,
    pub(crate) is_descending: bool,
}

impl Default for SortOrder {
    fn default() -> Self {
        Self { column: RequestColumn::Flags, is_descending: true }
    }
}

/// Rows and their order. Rows are reused by the next refresh, so a steady table does not allocate.
///
/// Only the visible part is sorted: of ten thousand requests a screen shows fifty.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestTable {
    rows: Vec<RequestRow>,
    /// Number of rows in use, shown or not; the others are from earlier refreshes.
    pub(crate) row_count: usize,
    /// Rows that pass the filter: pinned ones first and sorted, the others unsorted.
    shown: Vec<ShownRow>,
    pub(crate) pinned_count: usize,
    /// Rows that match the filter; pinned rows are shown even if they do not.
    pub(crate) matching_count: usize,
    /// Clocks of the run, for filters by time.
    pub(crate) clock: RunClock,
    order: SortOrder,
    /// Parameters that `shown` was built with; `None` if rows have changed since.
    arranged_for: Option<Arrangement>,
}

/// Selection and order of the shown rows.
#[derive(Clone, Debug)]
struct Arrangement {
    filter: RequestFilter,
    order: SortOrder,
    pins: BTreeSet<String>,
}

/// A shown row, with what decides its position.
#[derive(Clone, Copy, Debug)]
struct ShownRow {
    /// `None` if its value in the column is unknown.
    key: Option<SortKey>,
    /// First bytes of the rid, which decide most ties.
    rid_prefix: u64,
    /// Index in `rows`.
    row: u32,
}

impl ShownRow {
    fn new(index: usize, row: &RequestRow, sorted_by: RequestColumn) -> Self {
        Self { key: sorted_by.sort_key(row), rid_prefix: sortable_rid_prefix(&row.rid), row: index as u32 }
    }
}

/// First eight bytes of a rid as a number that sorts as the rids do. Zeros fill up a shorter rid.
fn sortable_rid_prefix(rid: &str) -> u64 {
    let mut prefix = [0; 8];
    let length = rid.len().min(prefix.len());
    prefix[..length].copy_from_slice(&rid.as_bytes()[..length]);
    u64::from_be_bytes(prefix)
}

impl RequestTable {
    /// Starts a refresh: all rows may be overwritten.
    pub(crate) fn clear(&mut self) {
        self.row_count = 0;
        self.arranged_for = None;
    }

    /// Adds a row. It still holds old values, so the caller must set every field.
    pub(crate) fn add_row_with_old_values(&mut self) -> &mut RequestRow {
        if self.row_count == self.rows.len() {
            self.rows.push(RequestRow::default());
        }
        self.row_count += 1;
        self.arranged_for = None;
        &mut self.rows[self.row_count - 1]
    }

    /// Selects and orders the shown rows: pinned rows, then rows that match the filter. The rid breaks ties, so that rows do not jump. Does
    /// nothing if neither the rows nor the parameters have changed since the last call.
    pub(crate) fn arrange_shown_rows(&mut self, filter: &RequestFilter, order: SortOrder, pins: &BTreeSet<String>) {
        if let Some(last) = &self.arranged_for
            && last.filter == *filter
            && last.order == order
            && last.pins == *pins
        {
            return;
        }
        // Taken out while it is built, because `compare_rows` borrows `self`. Its memory is reused.
        let mut shown = std::mem::take(&mut self.shown);
        shown.clear();
        self.order = order;
        // Most users pin none, and the search for pinned rows reads all rows.
        let matching_pinned =
            if pins.is_empty() { 0 } else { self.add_pinned_rows_and_count_matching(&mut shown, filter, pins) };
        self.pinned_count = shown.len();
        // Not sorted: `visible_rows` orders those that are on the screen.
        let rows = self.rows[..self.row_count].iter().enumerate();
        let matching_others = rows.filter(|(_, row)| filter.matches(row, self.clock) && !pins.contains(&row.rid));
        shown.extend(matching_others.map(|(index, row)| ShownRow::new(index, row, order.column)));
        self.matching_count = matching_pinned + (shown.len() - self.pinned_count);
        self.shown = shown;
        self.arranged_for = Some(Arrangement { filter: filter.clone(), order, pins: pins.clone() });
    }

    /// Adds the pinned rows to the empty list `shown`, in their order. All of them are shown, but only those that match the filter are
    /// counted. Returns that number.
    fn add_pinned_rows_and_count_matching(
        &self,
        shown: &mut Vec<ShownRow>,
        filter: &RequestFilter,
        pins: &BTreeSet<String>,
    ) -> usize {
        let mut matching_count = 0;
        for (index, row) in self.rows[..self.row_count].iter().enumerate() {
            if !pins.contains(&row.rid) {
                continue;
            }
            if filter.matches(row, self.clock) {
                matching_count += 1;
            }
            shown.push(ShownRow::new(index, row, self.order.column));
        }
        shown.sort_unstable_by(|a, b| self.compare_rows(a, b));
        matching_count
    }

    /// Order of two rows: by the sorted column, then by their rids.
    fn compare_rows(&self, a: &ShownRow, b: &ShownRow) -> Ordering {
        // Most rids differ in their first bytes, which are compared faster as a number.
        let rids = a.rid_prefix.cmp(&b.rid_prefix).then_with(|| self.row(a).rid.cmp(&self.row(b).rid));
        if self.order.column == RequestColumn::Rid {
            return if self.order.is_descending { rids.reverse() } else { rids };
        }
        let (Some(key_of_a), Some(key_of_b)) = (a.key, b.key) else {
            // Unknown values come last in both orders.
            return b.key.is_some().cmp(&a.key.is_some()).then(rids);
        };
        let keys = if self.order.is_descending { key_of_b.cmp(&key_of_a) } else { key_of_a.cmp(&key_of_b) };
        keys.then(rids)
    }

    fn row(&self, shown: &ShownRow) -> &RequestRow {
        &self.rows[shown.row as usize]
    }

    /// The shown row at this position, counted from the top.
    pub(crate) fn visible_row(&self, position: usize) -> Option<&RequestRow> {
        self.visible_rows(position..position + 1).pop()
    }

    /// The shown rows at these positions, counted from the top, as far as they exist.
    pub(crate) fn visible_rows(&self, positions: Range<usize>) -> Vec<&RequestRow> {
        let (pinned, others) = self.shown.split_at(self.pinned_count);
        let pinned_count = pinned.len();
        let visible_pinned = &pinned[positions.start.min(pinned_count)..positions.end.min(pinned_count)];
        // The same positions, counted from the first row that is not pinned.
        let start = positions.start.saturating_sub(pinned_count);
        let end = positions.end.saturating_sub(pinned_count).min(others.len());
        let visible_others = if start < end { self.rows_at_sorted_positions(others, start..end) } else { Vec::new() };
        visible_pinned.iter().chain(visible_others).map(|shown| self.row(shown)).collect()
    }

    /// The rows that have these positions in the order of all `rows`. Sorts only them. There must be a position, and a row at each.
    fn rows_at_sorted_positions<'r>(&self, rows: &'r [ShownRow], positions: Range<usize>) -> Vec<&'r ShownRow> {
        let mut rows: Vec<&ShownRow> = rows.iter().collect();
        // Moves the rows before the end to the front, and drops the others.
        rows.select_nth_unstable_by(positions.end - 1, |a, b| self.compare_rows(a, b));
        rows.truncate(positions.end);
        // Moves the rows before the start to the front, and drops them.
        rows.select_nth_unstable_by(positions.start, |a, b| self.compare_rows(a, b));
        rows.drain(..positions.start);
        rows.sort_unstable_by(|a, b| self.compare_rows(a, b));
        rows
    }

    /// Whether this number is known of at least one request.
    pub(super) fn has_number(&self, number: Number) -> bool {
        self.rows[..self.row_count].iter().any(|row| number(row).is_some())
    }

    pub(crate) fn visible_count(&self) -> usize {
        self.shown.len()
    }

    /// Position of `rid` among the shown rows; the first one if a rid was used twice, `None` if no shown row has it.
    pub(crate) fn shown_position_of_rid(&self, rid: &str) -> Option<usize> {
        // A number is compared faster than a text.
        let prefix = sortable_rid_prefix(rid);
        let has_rid = |shown: &ShownRow| shown.rid_prefix == prefix && self.row(shown).rid == rid;
        let (pinned, others) = self.shown.split_at(self.pinned_count);
        if let Some(position) = pinned.iter().position(has_rid) {
            return Some(position);
        }
        // The others are not sorted, so the position is the number of rows that sort before it.
        let first = others.iter().filter(|other| has_rid(other)).min_by(|a, b| self.compare_rows(a, b))?;
        let rows_before = others.iter().filter(|other| self.compare_rows(other, first).is_lt());
        Some(self.pinned_count + rows_before.count())
    }

    /// Worst of the shown rows; `None` if all are healthy.
    pub(crate) fn worst_row(&self) -> Option<&RequestRow> {
        let unhealthy = self.shown.iter().map(|shown| self.row(shown)).filter(|row| row.is_unhealthy());
        unhealthy.max_by(|a, b| a.severity().cmp(&b.severity()).then_with(|| a.rid.cmp(&b.rid)))
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use trace::ledger::RequestNumbers;

    use super::super::request_row::RequestState;
    use super::*;

    fn table(gaps: &[(&str, u64)]) -> RequestTable {
        let mut table = RequestTable::default();
        for &(rid, gap) in gaps {
            *table.add_row_with_old_values() = RequestRow {
                rid: rid.into(),
                numbers: RequestNumbers { gap_ns: Some(gap), ..RequestNumbers::default() },
                ..RequestRow::default()
            };
        }
        table
    }

    fn shown(table: &RequestTable) -> Vec<&str> {
        (0..table.visible_count()).filter_map(|i| table.visible_row(i)).map(|r| r.rid.as_str()).collect()
    }

    #[test]
    fn pins_come_first_and_pass_every_filter() {
        let mut table = table(&[("a", 1), ("b", 3), ("c", 2), ("d", 2)]);
        let sort = SortOrder { column: RequestColumn::with_heading("gap"), is_descending: true };
        table.arrange_shown_rows(&RequestFilter::default(), sort, &BTreeSet::new());
        assert_eq!(shown(&table), ["b", "c", "d", "a"]);
        let filter = RequestFilter::parse("gap>1ns").expect("a filter");
        table.arrange_shown_rows(&filter, sort, &BTreeSet::from(["a".to_owned()]));
        assert_eq!(shown(&table), ["a", "b", "c", "d"]);
        assert_eq!(
            (table.pinned_count, table.shown_position_of_rid("c"), table.worst_row().map(|r| &*r.rid)),
            (1, Some(2), Some("b"))
        );
        assert_eq!(table.matching_count, 3, "the pinned row is shown, but does not match");
        table.arrange_shown_rows(&filter, sort, &BTreeSet::from(["b".to_owned()]));
        assert_eq!((table.matching_count, table.visible_count()), (3, 3));
    }

    #[test]
    fn requests_with_an_unknown_value_come_last_in_both_orders() {
        let mut table = table(&[("a", 1), ("b", 3), ("c", 2)]);
        *table.add_row_with_old_values() = RequestRow { rid: "unknown".into(), ..RequestRow::default() };
        *table.add_row_with_old_values() = RequestRow {
            rid: "z".into(),
            state: RequestState::Aborted,
            numbers: RequestNumbers { gap_ns: Some(4), ..RequestNumbers::default() },
            ..RequestRow::default()
        };
        for (is_descending, expected) in
            [(true, ["z", "b", "c", "a", "unknown"]), (false, ["a", "c", "b", "z", "unknown"])]
        {
            let order = SortOrder { column: RequestColumn::with_heading("gap"), is_descending };
            table.arrange_shown_rows(&RequestFilter::default(), order, &BTreeSet::new());
            assert_eq!(shown(&table), expected);
        }
    }

    proptest! {
        #[test]
        fn visible_rows_match_a_full_sort(
            rows in vec(("[ab]{0,9}", 0..4_u64), 0..40), from in 0..45_usize, length in 0..45_usize, descending: bool, rids: bool,
        ) {
            let column = if rids { RequestColumn::Rid } else { RequestColumn::with_heading("gap") };
            let rows: BTreeMap<String, u64> = rows.into_iter().collect();
            let mut expected: Vec<(&str, u64)> = rows.iter().map(|(rid, gap)| (rid.as_str(), *gap)).collect();
            let mut table = table(&expected);
            match (rids, descending) {
                (true, true) => expected.reverse(),
                (true, false) => {}
                (false, true) => expected.sort_by_key(|row| Reverse(row.1)),
                (false, false) => expected.sort_by_key(|row| row.1),
            }
            table.arrange_shown_rows(&RequestFilter::default(), SortOrder { column, is_descending: descending }, &BTreeSet::new());
            let seen: Vec<&str> = table.visible_rows(from..from + length).iter().map(|row| row.rid.as_str()).collect();
            let expected: Vec<&str> = expected.iter().map(|row| row.0).collect();
            prop_assert_eq!(seen, expected.iter().copied().skip(from).take(length).collect::<Vec<_>>());
            prop_assert_eq!(table.visible_row(from).map(|row| row.rid.as_str()), expected.get(from).copied());
            for (place, rid) in expected.iter().enumerate() {
                prop_assert_eq!(table.shown_position_of_rid(rid), Some(place));
            }
        }
    }

    #[test]
    fn a_smaller_refresh_leaves_no_old_rows() {
        let mut table = table(&[("a", 1), ("b", 3)]);
        table.clear();
        *table.add_row_with_old_values() = RequestRow { rid: "z".into(), ..RequestRow::default() };
        table.arrange_shown_rows(&RequestFilter::default(), SortOrder::default(), &BTreeSet::new());
        assert_eq!((shown(&table), table.row_count, table.shown_position_of_rid("b")), (vec!["z"], 1, None));
        assert_eq!(table.worst_row(), None);
    }
}
