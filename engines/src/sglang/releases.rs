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
pub(super) struct ReleaseBehaviour {
    /// Behaviour between the wire and the client.
    pub(super) behaviour: Behaviour,
    /// `output_ids` of the scheduler's frames.
    pub(super) token_ids: Option<IdColumn>,
    /// `output_ids` of the detokenizer's frames.
    pub(super) text_ids: Option<IdColumn>,
}

/// Behaviour from one release on.
#[derive(Clone, Copy, Debug)]
struct ReleaseRow {
    /// First release.
    from: &'static str,
    waiter: Waiter,
    token_path: OutputModeRule,
    text_path: OutputModeRule,
    /// `output_ids` of the scheduler's frames.
    token_ids: IdColumn,
    /// `output_ids` of the detokenizer's frames.
    text_ids: IdColumn,
}

/// A row of the table of releases. Its values hold from the release `from` on: what a waiter (the task that waits for a request's chunks)
/// does with several chunks, the output modes on the token and the text path, and what `output_ids` holds in the frames of each path.
const fn release_row(
    from: &'static str,
    waiter: Waiter,
    token_path: OutputModeRule,
    text_path: OutputModeRule,
    token_ids: IdColumn,
    text_ids: IdColumn,
) -> ReleaseRow {
    ReleaseRow { from, waiter, token_path, text_path, token_ids, text_ids }
}

const ALL: OutputModeRule = OutputModeRule::Always(Mode::Cumulative);
const NEW: OutputModeRule = OutputModeRule::Always(Mode::Incremental);
const FLAG: OutputModeRule = OutputModeRule::ByFlag("--stream-output");
/// The new name of 0.5.10rc0; the old one stays as an alias.
const RENAMED: OutputModeRule = OutputModeRule::ByFlag("--incremental-streaming-output");

/// Each row applies from its release up to the next row's.
const ROWS: &[ReleaseRow] = &[
    release_row("0.4.0", KeepsLast, ALL, ALL, Cumulative, Absent),
    release_row("0.4.3.post4", KeepsLast, FLAG, ALL, Cumulative, Absent),
    release_row("0.4.6.post4", KeepsLast, FLAG, ALL, Delta, Absent),
    release_row("0.5.0rc0", KeepsLast, FLAG, NEW, Delta, AfterPrompt),
    release_row("0.5.0rc1", KeepsLast, FLAG, NEW, Delta, Delta),
    release_row("0.5.1", KeepsLast, FLAG, NEW, Delta, AfterPrompt),
    release_row("0.5.4.post3", KeepsLast, FLAG, NEW, Delta, Delta),
    release_row("0.5.6rc0", KeepsLast, FLAG, FLAG, Delta, Delta),
    release_row("0.5.10rc0", YieldsAll, RENAMED, RENAMED, Delta, Delta),
    release_row("0.5.10", Merges, RENAMED, RENAMED, Delta, Delta),
];

impl ReleaseBehaviour {
    /// Facts about a release or a range such as `0.5.12..0.5.14`; empty for any other text.
    pub(super) fn of_version(version: &str) -> Self {
        version.parse().map(Self::of_range).unwrap_or_default()
    }

    /// Behaviour of a range of releases, as far as all of them share it. Empty for a range that begins before the first row.
    pub(super) fn of_range(range: VersionRange) -> Self {
        let (Some(first), Some(last)) = (row_in_force(range.first), row_in_force(range.last)) else {
            return Self::default();
        };
        // The row in force at the range's first release, and every row that begins within the range.
        let rows = &ROWS[first..=last];
        Self {
            behaviour: Behaviour {
                waiter: common_value(rows, |row| row.waiter),
                token_path: common_value(rows, |row| row.token_path),
                text_path: common_value(rows, |row| row.text_path),
            },
            token_ids: common_value(rows, |row| row.token_ids),
            text_ids: common_value(rows, |row| row.text_ids),
        }
    }
}

/// Index of the last row that begins at or before this release. `None` for a release before the first row.
fn row_in_force(release: Version) -> Option<usize> {
    ROWS.iter().rposition(|row| row.from.parse::<Version>().is_ok_and(|from| from <= release))
}

/// Value that all rows have; `None` if they differ.
fn common_value<T: PartialEq + Copy>(rows: &[ReleaseRow], value_of: impl Fn(&ReleaseRow) -> T) -> Option<T> {
    let first = value_of(rows.first()?);
    rows.iter().all(|row| value_of(row) == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_only_the_properties_its_releases_share() {
        let waiter = |v| ReleaseBehaviour::of_version(v).behaviour.waiter;
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
        assert_eq!(ReleaseBehaviour::of_version("0.4.3").behaviour.fixed_output_mode(), Some(Mode::Cumulative));
        assert_eq!(ReleaseBehaviour::of_version("0.5.5.post3").behaviour.text_path, Some(NEW));
        assert_eq!(ReleaseBehaviour::of_version("0.5.9").behaviour.incremental_output_flag(), Some("--stream-output"));
        assert_eq!(
            ReleaseBehaviour::of_version("0.5.23").behaviour.incremental_output_flag(),
            Some("--incremental-streaming-output")
        );
        assert_eq!(ReleaseBehaviour::of_version("0.5.5..0.5.6").behaviour.text_path, None);
    }

    #[test]
    fn id_columns_change_at_the_right_releases() {
        let ids = |v| ReleaseBehaviour::of_version(v).token_ids;
        assert_eq!(ids("0.4.6.post3"), Some(Cumulative));
        assert_eq!(ids("0.4.6.post4"), Some(Delta));
        assert_eq!(ids("0.4.6.post3..0.4.6.post4"), None);
        assert_eq!(ReleaseBehaviour::of_version("0.5.4.post2").text_ids, Some(AfterPrompt));
    }

    #[test]
    fn rows_are_in_order() {
        let starts: Vec<Version> = ROWS.iter().map(|row| row.from.parse().unwrap()).collect();
        assert!(starts.windows(2).all(|w| w[0] < w[1]));
    }
}
