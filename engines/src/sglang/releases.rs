//! Behaviour of each release between the wire and the client, taken from the releases' `srt/managers/tokenizer_manager.py` and
//! `io_struct.py` (docs/internals/WIRE.md).

use trace::engine::Waiter::{KeepsLast, Merges, YieldsAll};
use trace::engine::{Behaviour, Mode, OutputModeRule, Version, VersionRange, Waiter};
use trace::event::IdColumn;
use trace::event::IdColumn::{Absent, Cumulative, Delta, DeltaAfterPromptTail as AfterPrompt};

/// First release that drops no queued chunk.
pub(super) const DROPS_FIXED_IN: &str = "0.5.10";

/// Behaviour of a release, or common to all releases of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Release {
    /// Behaviour between the wire and the client.
    pub(super) behaviour: Behaviour,
    /// `output_ids` of the scheduler's frames.
    pub(super) token_ids: Option<IdColumn>,
    /// `output_ids` of the detokenizer's frames.
    pub(super) text_ids: Option<IdColumn>,
}

/// First release of a row; behaviour of a waiter; output modes on the token and text path; `output_ids` of token and text frames.
type Row = (&'static str, Waiter, OutputModeRule, OutputModeRule, IdColumn, IdColumn);

const ALL: OutputModeRule = OutputModeRule::Always(Mode::Cumulative);
const NEW: OutputModeRule = OutputModeRule::Always(Mode::Incremental);
const FLAG: OutputModeRule = OutputModeRule::ByFlag("--stream-output");
/// The new name of 0.5.10rc0; the old one stays as an alias.
const RENAMED: OutputModeRule = OutputModeRule::ByFlag("--incremental-streaming-output");

/// Each row applies from its release up to the next row's.
const ROWS: &[Row] = &[
    ("0.4.0", KeepsLast, ALL, ALL, Cumulative, Absent),
    ("0.4.3.post4", KeepsLast, FLAG, ALL, Cumulative, Absent),
    ("0.4.6.post4", KeepsLast, FLAG, ALL, Delta, Absent),
    ("0.5.0rc0", KeepsLast, FLAG, NEW, Delta, AfterPrompt),
    ("0.5.0rc1", KeepsLast, FLAG, NEW, Delta, Delta),
    ("0.5.1", KeepsLast, FLAG, NEW, Delta, AfterPrompt),
    ("0.5.4.post3", KeepsLast, FLAG, NEW, Delta, Delta),
    ("0.5.6", KeepsLast, FLAG, FLAG, Delta, Delta),
    ("0.5.10rc0", YieldsAll, RENAMED, RENAMED, Delta, Delta),
    ("0.5.10", Merges, RENAMED, RENAMED, Delta, Delta),
];

impl Release {
    /// Facts about a release or a range such as `0.5.12..0.5.14`; empty for any other text.
    pub(super) fn of(version: &str) -> Self {
        version.parse().map(Self::of_range).unwrap_or_default()
    }

    pub(super) fn of_range(range: VersionRange) -> Self {
        let starts = |row: &Row| row.0.parse::<Version>().ok();
        // The row in force at the range's first release, and every row that begins within the range.
        let first = ROWS.iter().rposition(|r| starts(r).is_some_and(|v| v <= range.first));
        let last = ROWS.iter().rposition(|r| starts(r).is_some_and(|v| v <= range.last));
        let (Some(first), Some(last)) = (first, last) else {
            return Self::default();
        };
        let rows = &ROWS[first..=last];
        Self {
            behaviour: Behaviour {
                waiter: agreed(rows, |r| r.1),
                token_path: agreed(rows, |r| r.2),
                text_path: agreed(rows, |r| r.3),
            },
            token_ids: agreed(rows, |r| r.4),
            text_ids: agreed(rows, |r| r.5),
        }
    }
}

fn agreed<T: PartialEq + Copy>(rows: &[Row], of: impl Fn(&Row) -> T) -> Option<T> {
    let first = of(rows.first()?);
    rows.iter().all(|r| of(r) == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_only_the_properties_its_releases_share() {
        let waiter = |v| Release::of(v).behaviour.waiter;
        assert_eq!(waiter("0.5.9"), Some(KeepsLast));
        assert_eq!(waiter("0.5.10rc0"), Some(YieldsAll));
        assert_eq!(waiter("0.5.10.post1"), Some(Merges));
        assert_eq!(waiter("0.5.12..0.5.14"), Some(Merges));
        assert_eq!(waiter("0.5.9..0.5.11"), None);
        assert_eq!(waiter("0.3.6"), None);
        assert_eq!(waiter("main"), None);
    }

    #[test]
    fn delivery_mode_text_path_and_flag_follow_the_release() {
        assert_eq!(Release::of("0.4.3").behaviour.mode(), Some(Mode::Cumulative));
        assert_eq!(Release::of("0.5.5.post3").behaviour.text_path, Some(NEW));
        assert_eq!(Release::of("0.5.9").behaviour.flag(), Some("--stream-output"));
        assert_eq!(Release::of("0.5.23").behaviour.flag(), Some("--incremental-streaming-output"));
        assert_eq!(Release::of("0.5.5..0.5.6").behaviour.text_path, None);
    }

    #[test]
    fn id_columns_change_at_the_right_releases() {
        let ids = |v| Release::of(v).token_ids;
        assert_eq!(ids("0.4.6.post3"), Some(Cumulative));
        assert_eq!(ids("0.4.6.post4"), Some(Delta));
        assert_eq!(ids("0.4.6.post3..0.4.6.post4"), None);
        assert_eq!(Release::of("0.5.4.post2").text_ids, Some(AfterPrompt));
    }

    #[test]
    fn rows_are_in_order() {
        let starts: Vec<Version> = ROWS.iter().map(|r| r.0.parse().unwrap()).collect();
        assert!(starts.windows(2).all(|w| w[0] < w[1]));
    }
}
