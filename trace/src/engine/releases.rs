//! Behaviour of each SGLang release between the wire and the client, taken from the releases' `srt/managers/tokenizer_manager.py` and
//! `io_struct.py` (docs/internals/WIRE.md).

use super::version::VersionRange;
use super::{Mode, Waiter};
use crate::event::IdColumn;

/// First release that drops no queued chunk.
pub const DROPS_FIXED_IN: &str = "0.5.10";

/// How the output mode is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handout {
    /// Always this mode.
    Always(Mode),
    /// Incremental with this server flag, cumulative without.
    ByFlag(&'static str),
}

/// Behaviour of a release, or common to all releases of a range. `None` if the range disagrees or it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// How a waiter processes several queued chunks.
    pub waiter: Option<Waiter>,
    /// Output mode with `--skip-tokenizer-init`: token frames reach the tokenizer.
    pub token_path: Option<Handout>,
    /// Output mode behind a detokenizer: text frames reach the tokenizer.
    pub text_path: Option<Handout>,
    /// `output_ids` of the scheduler's frames.
    pub token_ids: Option<IdColumn>,
    /// `output_ids` of the detokenizer's frames.
    pub text_ids: Option<IdColumn>,
}

struct Row {
    from: &'static str,
    waiter: Waiter,
    token_path: Handout,
    text_path: Handout,
    token_ids: IdColumn,
    text_ids: IdColumn,
}

const ALL: Handout = Handout::Always(Mode::Cumulative);
const NEW: Handout = Handout::Always(Mode::Incremental);
const STREAM_OUTPUT: Handout = Handout::ByFlag("--stream-output");
/// The new name of 0.5.10rc0; the old one stays as an alias.
const INCREMENTAL: Handout = Handout::ByFlag("--incremental-streaming-output");

/// Each row applies from its release up to the next row's.
const ROWS: &[Row] = &[
    row(
        "0.4.0",
        Waiter::KeepsLast,
        ALL,
        ALL,
        IdColumn::Cumulative,
        IdColumn::Absent,
    ),
    row(
        "0.4.3.post4",
        Waiter::KeepsLast,
        STREAM_OUTPUT,
        ALL,
        IdColumn::Cumulative,
        IdColumn::Absent,
    ),
    row(
        "0.4.6.post4",
        Waiter::KeepsLast,
        STREAM_OUTPUT,
        ALL,
        IdColumn::Delta,
        IdColumn::Absent,
    ),
    row(
        "0.5.0rc0",
        Waiter::KeepsLast,
        STREAM_OUTPUT,
        NEW,
        IdColumn::Delta,
        IdColumn::DeltaAfterPromptTail,
    ),
    row(
        "0.5.0rc1",
        Waiter::KeepsLast,
        STREAM_OUTPUT,
        NEW,
        IdColumn::Delta,
        IdColumn::Delta,
    ),
    row(
        "0.5.1",
        Waiter::KeepsLast,
        STREAM_OUTPUT,
        NEW,
        IdColumn::Delta,
        IdColumn::DeltaAfterPromptTail,
    ),
    row(
        "0.5.4.post3",
        Waiter::KeepsLast,
        STREAM_OUTPUT,
        NEW,
        IdColumn::Delta,
        IdColumn::Delta,
    ),
    row(
        "0.5.6",
        Waiter::KeepsLast,
        STREAM_OUTPUT,
        STREAM_OUTPUT,
        IdColumn::Delta,
        IdColumn::Delta,
    ),
    row(
        "0.5.10rc0",
        Waiter::YieldsAll,
        INCREMENTAL,
        INCREMENTAL,
        IdColumn::Delta,
        IdColumn::Delta,
    ),
    row(
        "0.5.10",
        Waiter::Merges,
        INCREMENTAL,
        INCREMENTAL,
        IdColumn::Delta,
        IdColumn::Delta,
    ),
];

const fn row(
    from: &'static str,
    waiter: Waiter,
    token_path: Handout,
    text_path: Handout,
    token_ids: IdColumn,
    text_ids: IdColumn,
) -> Row {
    Row {
        from,
        waiter,
        token_path,
        text_path,
        token_ids,
        text_ids,
    }
}

impl Behaviour {
    /// Behaviour of a release or of a range such as `0.5.12..0.5.14`; empty for any other text.
    pub fn of(version: &str) -> Self {
        let Ok(range) = version.parse::<VersionRange>() else {
            return Self::default();
        };
        let starts = |row: &Row| row.from.parse::<super::Version>().ok();
        // The row in force at the range's first release, and every row that begins within the range.
        let first = ROWS.iter().rposition(|r| starts(r).is_some_and(|v| v <= range.first));
        let last = ROWS.iter().rposition(|r| starts(r).is_some_and(|v| v <= range.last));
        let (Some(first), Some(last)) = (first, last) else {
            return Self::default();
        };
        let rows = &ROWS[first..=last];
        Self {
            waiter: agreed(rows, |r| r.waiter),
            token_path: agreed(rows, |r| r.token_path),
            text_path: agreed(rows, |r| r.text_path),
            token_ids: agreed(rows, |r| r.token_ids),
            text_ids: agreed(rows, |r| r.text_ids),
        }
    }

    /// The mode, if the release has the same fixed mode on both paths.
    pub fn mode(&self) -> Option<Mode> {
        match (self.token_path?, self.text_path?) {
            (Handout::Always(a), Handout::Always(b)) if a == b => Some(a),
            _ => None,
        }
    }

    /// Flag that selects incremental output, if the release has one.
    pub fn flag(&self) -> Option<&'static str> {
        [self.token_path, self.text_path]
            .into_iter()
            .flatten()
            .find_map(|h| match h {
                Handout::ByFlag(flag) => Some(flag),
                Handout::Always(_) => None,
            })
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
    fn a_release_is_known_and_a_range_only_where_it_agrees() {
        let waiter = |v| Behaviour::of(v).waiter;
        assert_eq!(waiter("0.5.9"), Some(Waiter::KeepsLast));
        assert_eq!(waiter("0.5.10rc0"), Some(Waiter::YieldsAll));
        assert_eq!(waiter("0.5.10.post1"), Some(Waiter::Merges));
        assert_eq!(waiter("0.5.12..0.5.14"), Some(Waiter::Merges));
        assert_eq!(waiter("0.5.9..0.5.11"), None);
        assert_eq!(waiter("0.3.6"), None);
        assert_eq!(waiter("main"), None);
    }

    #[test]
    fn handing_out_follows_path_release_and_flag() {
        assert_eq!(Behaviour::of("0.4.3").mode(), Some(Mode::Cumulative));
        assert_eq!(Behaviour::of("0.5.5.post3").text_path, Some(NEW));
        assert_eq!(Behaviour::of("0.5.9").flag(), Some("--stream-output"));
        assert_eq!(Behaviour::of("0.5.23").flag(), Some("--incremental-streaming-output"));
        assert_eq!(Behaviour::of("0.5.5..0.5.6").text_path, None);
    }

    #[test]
    fn id_columns_change_where_the_releases_did() {
        let ids = |v| Behaviour::of(v).token_ids;
        assert_eq!(ids("0.4.6.post3"), Some(IdColumn::Cumulative));
        assert_eq!(ids("0.4.6.post4"), Some(IdColumn::Delta));
        assert_eq!(ids("0.4.6.post3..0.4.6.post4"), None);
        assert_eq!(
            Behaviour::of("0.5.4.post2").text_ids,
            Some(IdColumn::DeltaAfterPromptTail)
        );
    }

    #[test]
    fn rows_are_in_order() {
        let starts: Vec<super::super::Version> = ROWS.iter().map(|r| r.from.parse().unwrap()).collect();
        assert!(starts.windows(2).all(|w| w[0] < w[1]));
    }
}
