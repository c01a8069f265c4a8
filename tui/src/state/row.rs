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
    /// Tokens that will never arrive: dropped, or missing on the wire.
    pub(crate) lost: Option<u64>,
    /// Part of `lost`: tokens of dropped chunks.
    pub(crate) dropped_tokens: u64,
    pub(crate) prompt: Option<u64>,
    pub(crate) retractions: u64,
    /// Tokenizer worker that receives the request; `None` if there is only one, or it is unknown.
    pub(crate) worker: Option<u64>,
    pub(crate) flags: Flags,
}

/// Column of the table, and a possible sort order.
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

impl Column {
    /// Every column, from left to right.
    pub(crate) const ALL: [Self; 14] = [
        Self::Rid,
        Self::State,
        Self::Age,
        Self::Gap,
        Self::Silence,
        Self::Sent,
        Self::Received,
        Self::Delivered,
        Self::Chunks,
        Self::Merged,
        Self::Dropped,
        Self::Lost,
        Self::Worker,
        Self::Flags,
    ];

    pub(crate) fn head(self) -> &'static str {
        match self {
            Self::Rid => "rid",
            Self::State => "state",
            Self::Age => "age",
            Self::Gap => "gap",
            Self::Silence => "silence",
            Self::Sent => "sent",
            Self::Received => "recv",
            Self::Delivered => "deliv",
            Self::Chunks => "chunks",
            Self::Merged => "merged",
            Self::Dropped => "drop",
            Self::Lost => "lost",
            Self::Worker => "worker",
            Self::Flags => "flags",
        }
    }

    /// Explanation for the help.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::Rid => "the request's id",
            Self::State => {
                "waiting (for its first token to be received), live, done, aborted, or orphaned (silent too long)"
            }
            Self::Age => "time since it was first observed, or until it ended",
            Self::Gap => {
                "first-token gap: received by the tokenizer minus sent by the scheduler; still growing while it waits"
            }
            Self::Silence => "longest time between two chunks sent by the scheduler",
            Self::Sent => "tokens that the scheduler sent",
            Self::Received => "tokens received by the tokenizer",
            Self::Delivered => "tokens delivered to the client",
            Self::Chunks => "chunks that the scheduler sent",
            Self::Merged => "chunks delivered merged with a later one",
            Self::Dropped => "chunks dropped: later ones were delivered, these were not",
            Self::Lost => "lost tokens: in dropped chunks, or missing on the wire",
            Self::Worker => "tokenizer worker of the request",
            Self::Flags => "problems of the request, worst first",
        }
    }

    /// Column `by` positions to the right, wrapping at the ends.
    pub(crate) fn step(self, by: isize) -> Self {
        let n = Self::ALL.len() as isize;
        let at = Self::ALL.iter().position(|&c| c == self).unwrap_or(0) as isize;
        Self::ALL[(at + by).rem_euclid(n) as usize]
    }

    /// Ascending sort key of this column; unobservable values sort below 0. [`Self::Rid`] has none.
    pub(crate) fn key(self, row: &Row) -> Key {
        match self {
            Self::Rid => Key::default(),
            Self::State => (row.life as u8, 0, 0, 0),
            Self::Flags => row.severity(),
            _ => {
                let number = self.number(row);
                (0, u8::from(number.is_some()), number.unwrap_or(0), 0)
            }
        }
    }

    fn number(self, row: &Row) -> Option<u64> {
        match self {
            Self::Age => Some(row.age_ns),
            Self::Gap => row.gap_ns,
            Self::Silence => row.silence_ns,
            Self::Sent => Some(row.sent),
            Self::Received => row.received,
            Self::Delivered => row.delivered,
            Self::Chunks => Some(row.chunks),
            Self::Merged => row.merged,
            Self::Dropped => row.dropped,
            Self::Lost => row.lost,
            Self::Worker => row.worker,
            Self::Rid | Self::State | Self::Flags => None,
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
            self.lost.unwrap_or(0),
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
