//! One request as a compact, owned row that can be sorted by any column.

use std::ops::Deref;

use trace::columns::{self, COLUMNS, Emphasis, OnScreen};
use trace::ledger::Numbers;

use super::flags::Flags;

/// Sort key of a row, compared from left to right.
pub(crate) type Key = (u8, u8, u64, u64);

labelled! {
    #[derive(Default, PartialOrd, Ord)]
    pub(crate) Life {
        /// The scheduler has sent the first token, but the tokenizer has not received it.
        Waiting = "waiting",
        /// Tokens are flowing.
        #[default]
        Live = "live",
        /// Finished by the scheduler.
        Done = "done",
        Aborted = "aborted",
        /// Evicted unfinished: silent for too long, or its rid was reused.
        Orphaned = "orphaned",
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    pub(crate) rid: String,
    pub(crate) life: Life,
    /// Its numbers now. A live request ends now, and the gap of a waiting one is its wait so far.
    pub(crate) numbers: Numbers,
    pub(crate) flags: Flags,
}

impl Deref for Row {
    type Target = Numbers;

    fn deref(&self) -> &Numbers {
        &self.numbers
    }
}

/// Column of the table, and a possible sort order, from left to right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Column {
    Rid,
    State,
    /// A number, by its place in [`COLUMNS`].
    Number(usize),
    Flags,
}

/// A number on the screen, and its head, width and explanation there.
pub(crate) fn numbers() -> impl Iterator<Item = (usize, &'static columns::Column, OnScreen)> {
    let on_screen = |(place, column): (usize, &'static columns::Column)| Some((place, column, column.on_screen?));
    COLUMNS.iter().enumerate().filter_map(on_screen)
}

impl Column {
    /// Every column, from left to right.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let numbers = numbers().filter(|(.., on_screen)| on_screen.width > 0);
        let numbers = numbers.map(|(place, ..)| Self::Number(place));
        [Self::Rid, Self::State].into_iter().chain(numbers).chain([Self::Flags])
    }

    /// The column with this head; the flags without one.
    pub(crate) fn headed(head: &str) -> Self {
        Self::all().find(|column| column.on_screen().head == head).unwrap_or(Self::Flags)
    }

    pub(crate) fn number(self) -> Option<&'static columns::Column> {
        match self {
            Self::Number(place) => COLUMNS.get(place),
            _ => None,
        }
    }

    pub(crate) fn on_screen(self) -> OnScreen {
        let text = |head, width, need, about| OnScreen { head, about, width, need, emphasis: Emphasis::None };
        let number = self.number().and_then(|number| number.on_screen);
        number.unwrap_or_else(|| match self {
            Self::Rid => text("rid", 13, 0, "the request's id"),
            Self::State => text(
                "state",
                7,
                1,
                "waiting (for its first token to be received), live, done, aborted, or orphaned (silent too long)",
            ),
            _ => text("flags", 10, 3, "problems of the request, worst first"),
        })
    }

    /// Column `by` positions to the right, wrapping at the ends.
    pub(crate) fn step(self, by: isize) -> Self {
        let all: Vec<Self> = Self::all().collect();
        let place = all.iter().position(|column| *column == self).unwrap_or(0);
        all[(place as isize + by).rem_euclid(all.len() as isize) as usize]
    }

    /// Ascending sort key of this column; unobservable values sort below 0. [`Self::Rid`] has none.
    pub(crate) fn key(self, row: &Row) -> Key {
        match self {
            Self::Rid => Key::default(),
            Self::State => (row.life as u8, 0, 0, 0),
            Self::Flags => row.severity(),
            Self::Number(place) => {
                let number = (COLUMNS[place].of)(row);
                (0, u8::from(number.is_some()), number.unwrap_or(0), 0)
            }
        }
    }
}

impl Row {
    /// Severity of the row, larger for worse. Order: worst flag, unfinished before finished before aborted, lost tokens, gap. Unfinished
    /// requests can still be helped; nobody waits for an aborted one.
    pub(crate) fn severity(&self) -> Key {
        let rank = match self.life {
            Life::Waiting | Life::Live => 2,
            Life::Done | Life::Orphaned => 1,
            Life::Aborted => 0,
        };
        (
            self.flags.weight(),
            rank,
            u64::from(self.tokens_lost.unwrap_or(0)) + u64::from(self.wire_missing),
            self.gap_ns.unwrap_or(0),
        )
    }

    /// Returns whether the request shows any problem.
    pub(crate) fn is_unhealthy(&self) -> bool {
        self.flags.any() || self.tokens_lost.is_some_and(|n| n > 0) || self.gap_ns.is_some_and(|ns| ns > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::flags::Flag;
    use super::*;

    fn gap(ns: u64) -> Row {
        let numbers = Numbers { gap_ns: Some(ns), ..Numbers::default() };
        Row { numbers, ..Row::default() }
    }

    #[test]
    fn equally_unhealthy_requests_sort_live_first_and_aborted_last() {
        let row = |life, lost, aborted| {
            let numbers = Numbers { tokens_lost: Some(lost), ..Numbers::default() };
            let mut row = Row { life, numbers, ..Row::default() };
            row.flags.set(Flag::Dropped, true);
            row.flags.set(Flag::Aborted, aborted);
            row
        };
        let mut rows = [
            row(Life::Aborted, 9, true),
            row(Life::Done, 5, false),
            row(Life::Live, 1, false),
            row(Life::Done, 7, false),
        ];
        rows.sort_by_key(|row| std::cmp::Reverse(Column::Flags.key(row)));
        assert_eq!(rows.map(|r| r.tokens_lost), [Some(1), Some(7), Some(5), Some(9)]);
        assert!(!Row::default().is_unhealthy());
    }

    #[test]
    fn an_aborted_request_does_not_outrank_a_live_one_without_flags() {
        let mut aborted = Row { life: Life::Aborted, ..gap(9) };
        aborted.flags.set(Flag::Aborted, true);
        assert!(aborted.severity() < Row::default().severity());
        assert!(aborted.is_unhealthy(), "its flag still counts");
    }

    #[test]
    fn unobservable_values_sort_below_zero() {
        let column = Column::headed("gap");
        assert!(column.key(&Row::default()) < column.key(&gap(0)));
        assert_eq!(Column::Flags.step(1), Column::Rid);
        assert_eq!(Column::Rid.step(-1), Column::Flags);
    }
}
