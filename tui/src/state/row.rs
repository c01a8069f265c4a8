//! One request as a compact, owned row that can be sorted by any column.

use super::flags::Flags;

/// Sort key of a row, compared from left to right.
pub(crate) type Key = (u8, u8, u64, u64);

/// Life cycle state of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Life {
    /// The scheduler has sent the first token, but the tokenizer has not received it.
    Waiting,
    /// Tokens are flowing.
    #[default]
    Live,
    /// Finished by the scheduler.
    Done,
    Aborted,
    /// Evicted unfinished: silent for too long, or its rid was reused.
    Orphaned,
}

impl Life {
    /// Every state, for the help and for `state:`.
    pub(crate) const ALL: [Self; 5] = [Self::Waiting, Self::Live, Self::Done, Self::Aborted, Self::Orphaned];

    /// Label in the row, and value of `state:` in a filter.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Live => "live",
            Self::Done => "done",
            Self::Aborted => "aborted",
            Self::Orphaned => "orphaned",
        }
    }
}

/// Table columns of one request. `None` means not observable with the attached source.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    pub(crate) rid: String,
    pub(crate) life: Life,
    /// Time since the request was first seen, up to its end if it has ended.
    pub(crate) age_ns: u64,
    /// First receive by the tokenizer minus first send by the scheduler; the time so far in `Life::Waiting`.
    pub(crate) gap_ns: Option<u64>,
    /// Longest time between two chunks of the scheduler.
    pub(crate) silence_ns: Option<u64>,
    pub(crate) sent: u64,
    pub(crate) received: Option<u64>,
    pub(crate) delivered: Option<u64>,
    pub(crate) chunks: u64,
    pub(crate) merged: Option<u64>,
    pub(crate) dropped: Option<u64>,
    /// Tokens of dropped chunks.
    pub(crate) lost: Option<u64>,
    /// Tokens that the scheduler counted and did not send.
    pub(crate) missing_on_wire: u64,
    pub(crate) prompt: Option<u64>,
    pub(crate) retractions: u64,
    /// Tokenizer worker that receives the request; `None` if there is only one, or it is unknown.
    pub(crate) worker: Option<u64>,
    pub(crate) flags: Flags,
}

/// Column of the table, and a possible sort order; its number is its place in [`COLUMNS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Rid,
    State,
    Age,
    Gap,
    Silence,
    Sent,
    Received,
    Delivered,
    Chunks,
    Merged,
    Dropped,
    Lost,
    Worker,
    Flags,
}

/// Reads a number of a row; `None` if it is not observable.
pub(crate) type Number = fn(&Row) -> Option<u64>;

/// Content of a column's cells.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    Text,
    Count(Number),
    /// In nanoseconds.
    Duration(Number),
}

/// A value of a request on the screen: a column, a sort order, a line of the help and, if it is a number, a name in filters.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) column: Column,
    /// Head of the column, and its name in filters.
    pub(crate) head: &'static str,
    /// Explanation for the help.
    pub(crate) what: &'static str,
    /// Width in cells.
    pub(crate) width: u16,
    /// Narrow screens show only the columns with the lowest numbers.
    pub(crate) need: u8,
    pub(crate) value: Value,
}

/// Columns, from left to right.
pub(crate) static COLUMNS: [Field; 14] = [
    Field {
        column: Column::Rid,
        head: "rid",
        what: "the request's id",
        width: 13,
        need: 0,
        value: Value::Text,
    },
    Field {
        column: Column::State,
        head: "state",
        what: "waiting (for its first token to be received), live, done, aborted, or orphaned (silent too long)",
        width: 7,
        need: 1,
        value: Value::Text,
    },
    Field {
        column: Column::Age,
        head: "age",
        what: "time since it was first observed, or until it ended",
        width: 7,
        need: 9,
        value: Value::Duration(|row| Some(row.age_ns)),
    },
    Field {
        column: Column::Gap,
        head: "gap",
        what: "first-token gap: received by the tokenizer minus sent by the scheduler; still growing while it waits",
        width: 7,
        need: 2,
        value: Value::Duration(|row| row.gap_ns),
    },
    Field {
        column: Column::Silence,
        head: "silence",
        what: "longest time between two chunks sent by the scheduler",
        width: 7,
        need: 11,
        value: Value::Duration(|row| row.silence_ns),
    },
    Field {
        column: Column::Sent,
        head: "sent",
        what: "tokens that the scheduler sent",
        width: 6,
        need: 7,
        value: Value::Count(|row| Some(row.sent)),
    },
    Field {
        column: Column::Received,
        head: "recv",
        what: "tokens received by the tokenizer",
        width: 6,
        need: 10,
        value: Value::Count(|row| row.received),
    },
    Field {
        column: Column::Delivered,
        head: "deliv",
        what: "tokens delivered to the client",
        width: 6,
        need: 8,
        value: Value::Count(|row| row.delivered),
    },
    Field {
        column: Column::Chunks,
        head: "chunks",
        what: "chunks that the scheduler sent",
        width: 6,
        need: 12,
        value: Value::Count(|row| Some(row.chunks)),
    },
    Field {
        column: Column::Merged,
        head: "merged",
        what: "chunks delivered merged with a later one",
        width: 6,
        need: 6,
        value: Value::Count(|row| row.merged),
    },
    Field {
        column: Column::Dropped,
        head: "drop",
        what: "chunks dropped: later ones were delivered, these were not",
        width: 5,
        need: 4,
        value: Value::Count(|row| row.dropped),
    },
    Field {
        column: Column::Lost,
        head: "lost",
        what: "lost tokens: those of dropped chunks",
        width: 5,
        need: 5,
        value: Value::Count(|row| row.lost),
    },
    Field {
        column: Column::Worker,
        head: "worker",
        what: "tokenizer worker of the request",
        width: 7,
        need: 13,
        value: Value::Count(|row| row.worker),
    },
    Field {
        column: Column::Flags,
        head: "flags",
        what: "problems of the request, worst first",
        width: 10,
        need: 3,
        value: Value::Text,
    },
];

impl Column {
    pub(crate) fn field(self) -> &'static Field {
        &COLUMNS[self as usize]
    }

    /// Column `by` positions to the right, wrapping at the ends.
    pub(crate) fn step(self, by: isize) -> Self {
        let place = (self as isize + by).rem_euclid(COLUMNS.len() as isize);
        COLUMNS[place as usize].column
    }

    /// Ascending sort key of this column; unobservable values sort below 0. [`Self::Rid`] has none.
    pub(crate) fn key(self, row: &Row) -> Key {
        match (self, self.field().value) {
            (Self::State, _) => (row.life as u8, 0, 0, 0),
            (Self::Flags, _) => row.severity(),
            (_, Value::Text) => Key::default(),
            (_, Value::Count(of) | Value::Duration(of)) => {
                let number = of(row);
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
            self.lost.unwrap_or(0) + self.missing_on_wire,
            self.gap_ns.unwrap_or(0),
        )
    }

    /// Returns whether the request shows any problem.
    pub(crate) fn is_unhealthy(&self) -> bool {
        self.flags.any() || self.lost.is_some_and(|n| n > 0) || self.gap_ns.is_some_and(|ns| ns > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equally_unhealthy_requests_sort_live_first_and_aborted_last() {
        use super::super::flags::Flag;
        let row = |life, lost, aborted| {
            let mut row = Row {
                life,
                lost: Some(lost),
                ..Row::default()
            };
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
        assert_eq!(rows.map(|r| r.lost), [Some(1), Some(7), Some(5), Some(9)]);
        assert!(!Row::default().is_unhealthy());
    }

    #[test]
    fn an_aborted_request_does_not_outrank_a_live_one_without_flags() {
        use super::super::flags::Flag;
        let mut aborted = Row {
            life: Life::Aborted,
            gap_ns: Some(9),
            ..Row::default()
        };
        aborted.flags.set(Flag::Aborted, true);
        assert!(aborted.severity() < Row::default().severity());
        assert!(aborted.is_unhealthy(), "its flag still counts");
    }

    #[test]
    fn every_column_has_its_own_place_in_the_table() {
        for (place, field) in COLUMNS.iter().enumerate() {
            assert_eq!(place, field.column as usize, "{field:?}");
        }
    }

    #[test]
    fn unobservable_values_sort_below_zero() {
        let (unobserved, none) = (
            Row::default(),
            Row {
                gap_ns: Some(0),
                ..Row::default()
            },
        );
        assert!(Column::Gap.key(&unobserved) < Column::Gap.key(&none));
        assert_eq!(Column::Flags.step(1), Column::Rid);
        assert_eq!(Column::Rid.step(-1), Column::Flags);
    }
}
