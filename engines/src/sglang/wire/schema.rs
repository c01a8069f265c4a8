//! Fields of each message class, by release.
//!
//! The table is data: `cargo xtask schemas` extracts it from the released wheels. A layout that several releases share is one row, so such
//! a message cannot be attributed to a single release.

use std::sync::LazyLock;

use trace::engine::{Version, VersionRange, Waiter};
use trace::event::{IdColumn, Kind};

use crate::sglang::releases::ReleaseBehaviour;

/// How a class is declared, which determines how it is serialised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageForm {
    /// Serialised only as pickle.
    Dataclass,
    /// `msgspec.Struct`: serialised as pickle or msgpack.
    Struct,
}

/// One layout of one class.
#[derive(Debug)]
pub(super) struct MessageLayout {
    pub(super) class: &'static str,
    pub(super) form: MessageForm,
    /// Releases for display: `0.5.9`, `0.5.12..0.5.13.post1`, or several spans separated by commas.
    pub(super) releases: &'static str,
    /// Field names in wire order; none if the class is not read.
    pub(super) fields: Vec<&'static str>,
    pub(super) columns: ColumnIndices,
    pub(super) kind: Kind,
    /// Meaning of a listed `output_ids` column in these releases; the one for the prompt's tail if it holds in any of them. The column may
    /// always be absent.
    pub(super) ids: IdColumn,
    /// Behaviour of a waiter in these releases; `None` where they differ.
    pub(super) waiter: Option<Waiter>,
}

impl MessageLayout {
    /// Whether a message with this number of fields fits.
    pub(super) fn has_fields(&self, number: usize) -> bool {
        self.fields.is_empty() || self.fields.len() == number
    }
}

/// Indices of the fields that are read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ColumnIndices {
    pub(super) rids: Option<u16>,
    pub(super) finish: Option<u16>,
    pub(super) ids: Option<u16>,
    pub(super) text: Option<u16>,
    pub(super) completion: Option<u16>,
    pub(super) prompt: Option<u16>,
    pub(super) cached: Option<u16>,
    pub(super) retractions: Option<u16>,
    pub(super) workers: Option<u16>,
    /// 0.5.5 to 0.5.9: when each request entered a batch, and how long it had waited in the queue.
    pub(super) batch_entry: Option<u16>,
    pub(super) queue_time: Option<u16>,
    /// 0.5.10rc0 and later: an object with times per request.
    pub(super) time_stats: Option<u16>,
    /// 0.4.0 only: a dict with counts and finish reason per request.
    pub(super) meta: Option<u16>,
    /// The id of a single request.
    pub(super) rid: Option<u16>,
    /// What joins the two servers of a prefill/decode pair.
    pub(super) room: Option<u16>,
    pub(super) abort_all: Option<u16>,
    /// 0.5.2 and 0.5.3: the message inside a `MultiTokenizerWrapper`.
    pub(super) wrapped: Option<u16>,
}

impl ColumnIndices {
    /// Index of each field that is read, among the `field_names` of all fields in wire order.
    pub(super) fn find<'n>(field_names: impl Iterator<Item = &'n [u8]>) -> Self {
        let mut columns = Self::default();
        for (index, name) in field_names.enumerate().take(usize::from(u16::MAX)) {
            let column = match name {
                b"rids" => &mut columns.rids,
                b"finished_reasons" | b"finished_reason" => &mut columns.finish,
                b"output_ids" => &mut columns.ids,
                b"output_strs" => &mut columns.text,
                b"completion_tokens" => &mut columns.completion,
                b"prompt_tokens" => &mut columns.prompt,
                b"cached_tokens" => &mut columns.cached,
                b"retraction_counts" => &mut columns.retractions,
                b"http_worker_ipcs" => &mut columns.workers,
                b"forward_entry_time" => &mut columns.batch_entry,
                b"queue_time" => &mut columns.queue_time,
                b"time_stats" => &mut columns.time_stats,
                b"meta_info" => &mut columns.meta,
                b"rid" => &mut columns.rid,
                b"bootstrap_room" => &mut columns.room,
                b"abort_all" => &mut columns.abort_all,
                b"obj" => &mut columns.wrapped,
                _ => continue,
            };
            *column = Some(index as u16);
        }
        columns
    }
}

/// The generated table as text.
static SCHEMA_TEXT: &str = include_str!("schemas.txt");

/// Every known layout, sorted by class, then by release.
static LAYOUTS: LazyLock<Vec<MessageLayout>> = LazyLock::new(|| {
    // The first line lists the releases.
    let lines = SCHEMA_TEXT.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines.filter_map(parse_layout).collect()
});

/// Parses the table if that was not done yet. It takes about a millisecond.
pub(super) fn load_layouts() {
    LazyLock::force(&LAYOUTS);
}

/// Layouts of the class in all releases, oldest first.
pub(super) fn layouts_of_class(class: &[u8]) -> &'static [MessageLayout] {
    // The table is sorted by class, and then by release.
    let from = LAYOUTS.partition_point(|layout| layout.class.as_bytes() < class);
    let to = LAYOUTS.partition_point(|layout| layout.class.as_bytes() <= class);
    &LAYOUTS[from..to]
}

/// Field names of a message class in wire order, as of `release`. `None` if the release is not in the table.
pub fn fields(class: &str, release: &str) -> Option<&'static [&'static str]> {
    let release: Version = release.parse().ok()?;
    for layout in layouts_of_class(class.as_bytes()) {
        let mut ranges = layout.releases.split(',').filter_map(|range| range.parse::<VersionRange>().ok());
        if ranges.any(|range| (range.first..=range.last).contains(&release)) {
            return Some(&layout.fields);
        }
    }
    None
}

/// Parses a line of the table: class, form, releases, fields. The releases determine what the ids mean, and how a waiter processes several
/// chunks of its request. `None` for a line in another form.
fn parse_layout(line: &'static str) -> Option<MessageLayout> {
    let mut words = line.split(' ');
    let class = words.next()?;
    let form = words.next()?;
    let releases = words.next()?;
    let fields: Vec<&str> = words.collect();
    // As far as all these releases behave alike.
    let shared = ReleaseBehaviour::of_range(range_over_spans(releases)?);
    let kind = kind_of_class(class);
    let ids = meaning_of_ids(kind, &shared);
    let columns = ColumnIndices::find(fields.iter().map(|name| name.as_bytes()));
    let form = if form == "struct" { MessageForm::Struct } else { MessageForm::Dataclass };
    Some(MessageLayout { class, form, releases, fields, columns, kind, ids, waiter: shared.behaviour.waiter })
}

/// Range from the first release to the last one of a list of spans, such as `0.5.9` or `0.5.1..0.5.3,0.5.6`.
fn range_over_spans(spans: &str) -> Option<VersionRange> {
    let first_release = spans.split(',').next()?.split("..").next()?;
    let last_release = spans.rsplit(',').next()?.rsplit("..").next()?;
    Some(VersionRange { first: first_release.parse().ok()?, last: last_release.parse().ok()? })
}

/// Which token ids messages of this kind list in these releases: only new ones, all so far, or new ones behind the prompt's last ones.
fn meaning_of_ids(kind: Kind, releases: &ReleaseBehaviour) -> IdColumn {
    if kind != Kind::Text {
        return releases.token_ids.unwrap_or(IdColumn::Undecided);
    }
    match releases.text_ids {
        Some(IdColumn::Delta) => IdColumn::Delta,
        // The releases have the prompt's tail before the new ids, or differ from each other.
        _ => IdColumn::DeltaAfterPromptTail,
    }
}

/// Kind of the messages of a class.
fn kind_of_class(class: &str) -> Kind {
    match class {
        "BatchTokenIDOut" | "BatchTokenIDOutput" => Kind::TokenIds,
        "BatchStrOut" | "BatchStrOutput" => Kind::Text,
        "BatchEmbeddingOut" | "BatchEmbeddingOutput" => Kind::Embedding,
        "BatchMultimodalDecodeReq" | "BatchMultimodalOut" | "BatchMultimodalOutput" => Kind::Multimodal,
        "AbortReq" => Kind::Abort,
        _ => Kind::Control,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_layout(class: &str, releases: &str) -> &'static MessageLayout {
        let found = layouts_of_class(class.as_bytes()).iter().find(|layout| layout.releases == releases);
        found.unwrap_or_else(|| panic!("no {class} of {releases}"))
    }

    #[test]
    fn every_table_row_parses_as_a_layout() {
        let lines = SCHEMA_TEXT.lines().filter(|line| !line.starts_with('#') && !line.starts_with("releases "));
        assert_eq!(LAYOUTS.len(), lines.count());
        assert!(LAYOUTS.is_sorted_by_key(|layout| layout.class));
    }

    #[test]
    fn batch_layouts_have_all_required_columns() {
        for layout in LAYOUTS.iter().filter(|layout| matches!(layout.kind, Kind::TokenIds | Kind::Text)) {
            let ColumnIndices { rids, finish, completion, prompt, meta, .. } = layout.columns;
            assert!(rids.is_some() && finish.is_some(), "{layout:?}");
            assert!(meta.is_some() || (completion.is_some() && prompt.is_some()), "{layout:?}");
        }
    }

    #[test]
    fn id_semantics_follow_the_release_and_are_undecided_across_a_change() {
        assert_eq!(parse_layout("BatchTokenIDOut", "0.4.3..0.4.3.post2").ids, IdColumn::Cumulative);
        assert_eq!(parse_layout("BatchTokenIDOut", "0.4.3.post3..0.5.2rc2").ids, IdColumn::Undecided);
        assert_eq!(parse_layout("BatchTokenIDOut", "0.5.2..0.5.3rc0").ids, IdColumn::Delta);
        assert_eq!(parse_layout("BatchStrOutput", "0.5.4.post2..0.5.4.post3").ids, IdColumn::DeltaAfterPromptTail);
        assert_eq!(parse_layout("BatchStrOutput", "0.5.5..0.5.5.post1").ids, IdColumn::Delta);
    }

    #[test]
    fn the_waiter_behaviour_follows_the_release() {
        assert_eq!(parse_layout("BatchTokenIDOutput", "0.5.9").waiter, Some(Waiter::KeepsLast));
        assert_eq!(parse_layout("BatchTokenIDOutput", "0.5.10rc0").waiter, Some(Waiter::YieldsAll));
        assert_eq!(parse_layout("BatchTokenIDOutput", "0.5.10..0.5.10.post1").waiter, Some(Waiter::Merges));
        assert_eq!(parse_layout("AbortReq", "0.5.4.post2..0.5.14").waiter, None);
    }

    #[test]
    fn msgpack_batches_are_identified_by_their_length() {
        for class in ["BatchTokenIDOutput", "BatchStrOutput", "BatchEmbeddingOutput", "AbortReq"] {
            let structs =
                || layouts_of_class(class.as_bytes()).iter().filter(|layout| layout.form == MessageForm::Struct);
            let lengths: std::collections::HashSet<usize> = structs().map(|layout| layout.fields.len()).collect();
            assert_eq!(lengths.len(), structs().count(), "{class}");
        }
    }

    #[test]
    fn msgpack_requests_have_their_fields_where_they_are_read() {
        let mut rooms = std::collections::HashMap::new();
        for class in ["TokenizedGenerateReqInput", "TokenizedEmbeddingReqInput"] {
            for layout in layouts_of_class(class.as_bytes()).iter().filter(|layout| layout.form == MessageForm::Struct)
            {
                assert_eq!(layout.fields[..4], ["rid", "http_worker_ipc", "input_text", "input_ids"], "{layout:?}");
                let room = *rooms.entry((class, layout.fields.len())).or_insert(layout.columns.room);
                assert_eq!(room, layout.columns.room, "equal lengths: {layout:?}");
            }
        }
        assert!(rooms.len() > 8, "{rooms:?}");
    }
}
