//! One request as a compact, owned row that can be sorted by any column.

use std::ops::Deref;

use trace::columns::{self, COLUMNS, Emphasis, OnScreen};
use trace::ledger::RequestNumbers;

use super::flags::FlagSet;

/// Sort key of a row. Fields are compared in order; a column uses the first ones that it needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SortKey {
    rank: u8,
    second_rank: u8,
    number: u64,
    second_number: u64,
}

labelled! {
    #[derive(Default, PartialOrd, Ord)]
    pub(crate) RequestState {
        /// The scheduler has sent the first token, but the tokenizer has not received it.
        Waiting = "waiting",
        /// Tokens are flowing.
        #[default]
        Live = "live",
        /// Finished by the scheduler.
        Finished = "finished",
        Aborted = "aborted",
        /// Evicted unfinished: silent for too long, or its rid was reused.
        Orphaned = "orphaned",
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RequestRow {
    pub(crate) rid: String,
    pub(crate) state: RequestState,
    /// Its numbers now. A live request ends now, and the gap of a waiting one is its wait so far.
    pub(crate) numbers: RequestNumbers,
    pub(crate) flags: FlagSet,
}

impl Deref for RequestRow {
    type Target = RequestNumbers;

    fn deref(&self) -> &RequestNumbers {
        &self.numbers
    }
}

/// Column of the table, and a possible sort order, from left to right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RequestColumn {
    Rid,
    State,
    /// When it was first observed.
    Began,
    /// A number, by its index in [`COLUMNS`].
    Number(usize),
    Flags,
}

/// A number of [`COLUMNS`] that the screen shows or that a filter can name.
pub(crate) struct NumberColumn {
    /// Index in [`COLUMNS`].
    index: usize,
    pub(crate) column: &'static columns::Column,
    /// Heading, width and explanation on the screen.
    pub(crate) on_screen: OnScreen,
}

/// Columns of numbers that the screen can show or a filter can name.
pub(crate) fn number_columns() -> impl Iterator<Item = NumberColumn> {
    COLUMNS
        .iter()
        .enumerate()
        .filter_map(|(index, column)| Some(NumberColumn { index, column, on_screen: column.on_screen? }))
}

impl RequestColumn {
    /// Every column, from left to right.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        // Numbers without a width can only be named in filters.
        let shown = number_columns().filter(|number| number.on_screen.width > 0);
        let numbers = shown.map(|number| Self::Number(number.index));
        [Self::Rid, Self::State, Self::Began].into_iter().chain(numbers).chain([Self::Flags])
    }

    /// The column with this heading; the flags if there is none.
    pub(crate) fn with_heading(head: &str) -> Self {
        Self::all().find(|column| column.definition_on_screen().head == head).unwrap_or(Self::Flags)
    }

    /// Definition of the number in the column; `None` if the column shows something else.
    pub(crate) fn number_definition(self) -> Option<&'static columns::Column> {
        match self {
            Self::Number(index) => COLUMNS.get(index),
            _ => None,
        }
    }

    /// How the screen shows the column: heading, width and explanation. A narrow screen leaves out columns of the highest `need` first.
    pub(crate) fn definition_on_screen(self) -> OnScreen {
        const RID: OnScreen =
            OnScreen { head: "rid", about: "the request's id", width: 13, need: 0, emphasis: Emphasis::None };
        const STATE: OnScreen = OnScreen {
            head: "state",
            about: "waiting (for its first token to be received), live, finished, aborted, or orphaned (silent too long)",
            width: 8,
            need: 1,
            emphasis: Emphasis::None,
        };
        const BEGAN: OnScreen = OnScreen {
            head: "began",
            about: "when it was first observed, in UTC; from the start of a run without a wall clock",
            width: 13,
            need: 6,
            emphasis: Emphasis::None,
        };
        const FLAGS: OnScreen = OnScreen {
            head: "flags",
            about: "problems of the request, worst first",
            width: 10,
            need: 3,
            emphasis: Emphasis::None,
        };
        match self {
            Self::Rid => RID,
            Self::State => STATE,
            Self::Began => BEGAN,
            Self::Flags => FLAGS,
            // `Self::all` has only numbers with an entry, so the fallback is never shown.
            Self::Number(index) => COLUMNS.get(index).and_then(|column| column.on_screen).unwrap_or(FLAGS),
        }
    }

    /// The column `offset` positions to the right, wrapping at the ends.
    pub(crate) fn neighbour(self, offset: isize) -> Self {
        let columns: Vec<Self> = Self::all().collect();
        let index = columns.iter().position(|column| *column == self).unwrap_or(0);
        columns[(index as isize + offset).rem_euclid(columns.len() as isize) as usize]
    }

    /// Key by which rows are sorted in ascending order of this column; `None` if the row's value is unknown. [`Self::Rid`] has an empty
    /// key, because rids are compared as texts.
    pub(crate) fn sort_key(self, row: &RequestRow) -> Option<SortKey> {
        Some(match self {
            Self::Rid => SortKey::default(),
            Self::State => SortKey { rank: row.state as u8, ..SortKey::default() },
            Self::Began => SortKey { number: row.began_at().0, ..SortKey::default() },
            Self::Flags => row.severity(),
            Self::Number(index) => SortKey { number: (COLUMNS[index].of)(row)?, ..SortKey::default() },
        })
    }
}

impl RequestRow {
    /// Sort key of the row, larger for worse. These decide, in this order:
    /// - the worst flag,
    /// - the state, because an unfinished request can still be helped, and nobody waits for an aborted one,
    /// - the number of lost tokens,
    /// - the gap between send and receive of the first token.
    pub(crate) fn severity(&self) -> SortKey {
        let state_rank = match self.state {
            RequestState::Waiting | RequestState::Live => 2,
            RequestState::Finished | RequestState::Orphaned => 1,
            RequestState::Aborted => 0,
        };
        SortKey {
            rank: self.flags.severity(),
            second_rank: state_rank,
            number: u64::from(self.tokens_lost.unwrap_or(0)) + u64::from(self.wire_missing),
            second_number: self.gap_ns.unwrap_or(0),
        }
    }

    /// Returns whether the request shows any problem.
    pub(crate) fn is_unhealthy(&self) -> bool {
        !self.flags.is_empty() || self.tokens_lost.is_some_and(|n| n > 0) || self.gap_ns.is_some_and(|ns| ns > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::flags::Flag;
    use super::*;

    fn row_with_gap(gap_ns: u64) -> RequestRow {
        let numbers = RequestNumbers { gap_ns: Some(gap_ns), ..RequestNumbers::default() };
        RequestRow { numbers, ..RequestRow::default() }
    }

    #[test]
    fn equally_unhealthy_requests_sort_live_first_and_aborted_last() {
        let row = |state, lost, aborted| {
            let numbers = RequestNumbers { tokens_lost: Some(lost), ..RequestNumbers::default() };
            let mut row = RequestRow { state, numbers, ..RequestRow::default() };
            row.flags.set_if(Flag::Dropped, true);
            row.flags.set_if(Flag::Aborted, aborted);
            row
        };
        let mut rows = [
            row(RequestState::Aborted, 9, true),
            row(RequestState::Finished, 5, false),
            row(RequestState::Live, 1, false),
            row(RequestState::Finished, 7, false),
        ];
        rows.sort_by_key(|row| std::cmp::Reverse(RequestColumn::Flags.sort_key(row)));
        assert_eq!(rows.map(|r| r.tokens_lost), [Some(1), Some(7), Some(5), Some(9)]);
        assert!(!RequestRow::default().is_unhealthy());
    }

    #[test]
    fn an_aborted_request_does_not_outrank_a_live_one_without_flags() {
        let mut aborted = RequestRow { state: RequestState::Aborted, ..row_with_gap(9) };
        aborted.flags.set_if(Flag::Aborted, true);
        assert!(aborted.severity() < RequestRow::default().severity());
        assert!(aborted.is_unhealthy(), "its flag still counts");
    }

    #[test]
    fn an_unobservable_value_has_no_sort_key() {
        let column = RequestColumn::with_heading("gap");
        assert_eq!(column.sort_key(&RequestRow::default()), None);
        assert!(column.sort_key(&row_with_gap(0)).is_some());
        assert_eq!(RequestColumn::Flags.neighbour(1), RequestColumn::Rid);
        assert_eq!(RequestColumn::Rid.neighbour(-1), RequestColumn::Flags);
    }
}
