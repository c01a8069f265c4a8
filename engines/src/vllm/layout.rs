//! Fields of the messages, by release. The table is data: `cargo xtask schemas` extracts it from the released wheels. A message has no type
//! name: the lengths of its two arrays determine the layout. Where two layouts have equal lengths, one of the values decides.

use std::sync::LazyLock;

use trace::engine::Waiter;

use super::facts;

/// The generated table as text.
static TEXT: &str = include_str!("layouts.txt");

/// One layout of `EngineCoreOutputs`, the message.
#[derive(Debug)]
pub(super) struct Envelope {
    /// Number of fields.
    pub(super) field_count: u32,
    /// Releases for display: `0.5.9`, or `0.5.12..0.5.14`.
    pub(super) releases: &'static str,
    /// Index of the list of `EngineCoreOutput`.
    pub(super) outputs_index: u32,
    /// Index of the time at which the engine made the outputs.
    pub(super) timestamp_index: Option<u32>,
    /// Every layout of an output in these releases.
    pub(super) layouts: Vec<OutputLayout>,
}

/// One layout of `EngineCoreOutput`, a request's part of the message, in the releases of its envelope.
#[derive(Debug)]
pub(super) struct OutputLayout {
    /// Number of fields.
    pub(super) field_count: u32,
    /// Releases for display.
    pub(super) releases: &'static str,
    /// Whether several outputs of one request become one event; `None` where the releases differ.
    pub(super) waiter: Option<Waiter>,
    pub(super) columns: OutputColumns,
}

/// Indices of the fields that are read, after the request id and the new ids.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OutputColumns {
    pub(super) finish: Option<u32>,
    /// Up to 0.7.2: whether the request has finished.
    pub(super) finished: Option<u32>,
    /// 0.9.0 to 0.19.1: an integer, never nil.
    pub(super) cached: Option<u32>,
    /// 0.20.0 and later: a map or nil.
    pub(super) prefill: Option<u32>,
    pub(super) pooling: Option<u32>,
    /// 0.7.3 and later: a list of events or nil.
    pub(super) events: Option<u32>,
}

/// One layout of `EngineCoreRequest`. The request id comes first.
#[derive(Debug)]
pub(super) struct RequestLayout {
    /// Number of fields.
    pub(super) field_count: u32,
    /// Index of the list of prompt ids.
    pub(super) prompt_ids_index: u32,
    /// Number of fields after the arrival time.
    pub(super) fields_after_arrival: u32,
}

/// Every envelope, every layout of a request, and all releases.
#[derive(Debug)]
pub(super) struct LayoutTable {
    pub(super) envelopes: Vec<Envelope>,
    pub(super) requests: Vec<RequestLayout>,
    /// All releases in the table, for display.
    pub(super) all_releases: &'static str,
    /// The releases that send `ENGINE_CORE_DEAD`.
    pub(super) dead_message_releases: &'static str,
}

pub(super) static TABLE: LazyLock<LayoutTable> = LazyLock::new(|| build_table(&parse_table(TEXT)));

/// The message layout with this number of fields.
pub(super) fn envelope_with_fields(fields: u32) -> Option<&'static Envelope> {
    TABLE.envelopes.iter().find(|envelope| envelope.field_count == fields)
}

/// The table's lines about arrays, and the releases that they refer to.
struct ParsedTable {
    releases: Vec<&'static str>,
    lines: Vec<LayoutLine>,
}

/// Fields of one class in a span of releases.
struct LayoutLine {
    class: &'static str,
    span: ReleaseSpan,
    fields: Vec<&'static str>,
}

/// Indices of the first and the last release.
#[derive(Clone, Copy)]
struct ReleaseSpan {
    first: usize,
    last: usize,
}

impl ReleaseSpan {
    /// The span with this label, `FIRST..LAST` or the only release. `None` if a release is not one of `releases`.
    fn of_label(label: &str, releases: &[&str]) -> Option<Self> {
        let (first, last) = label.split_once("..").unwrap_or((label, label));
        let index_of = |name: &str| releases.iter().position(|release| *release == name);
        Some(Self { first: index_of(first)?, last: index_of(last)? })
    }

    /// Releases in both spans; `None` if there are none.
    fn common_with(self, other: Self) -> Option<Self> {
        let common = Self { first: self.first.max(other.first), last: self.last.min(other.last) };
        (common.first <= common.last).then_some(common)
    }

    /// The releases for display, `FIRST..LAST`, or the only one.
    fn label(self, releases: &[&'static str]) -> &'static str {
        if self.first == self.last {
            return releases[self.first];
        }
        // The table is built once and lives as long as the program.
        String::leak(format!("{}..{}", releases[self.first], releases[self.last]))
    }
}

/// Parses the table: first the line of the releases, then lines `CLASS array RELEASES FIELDS`. Leaves out lines whose releases are not
/// among those of the first line.
fn parse_table(text: &'static str) -> ParsedTable {
    let mut releases: Vec<&'static str> = Vec::new();
    let mut lines: Vec<LayoutLine> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let class = words.next().unwrap_or_default();
        if class == "releases" {
            releases = words.collect();
            continue;
        }
        // Behind the class come the kind, `array`, and the releases.
        let label = words.nth(1).unwrap_or_default();
        if let Some(span) = ReleaseSpan::of_label(label, &releases) {
            lines.push(LayoutLine { class, span, fields: words.collect() });
        }
    }
    ParsedTable { releases, lines }
}

/// Builds the table of layouts from the parsed lines: of the message with outputs (the envelope), and of a request. Lines without the
/// fields that are read are left out.
fn build_table(table: &ParsedTable) -> LayoutTable {
    let releases = &table.releases;
    let newest = releases.len() - 1;
    let label_from = |first: usize| ReleaseSpan { first, last: newest }.label(releases);
    // First release whose dying engine sends a message.
    let first_with_dead_message = releases.iter().position(|release| *release == facts::DEAD_FROM);
    let messages = table.lines.iter().filter(|line| line.class == "EngineCoreOutputs");
    let requests = table.lines.iter().filter(|line| line.class == "EngineCoreRequest");
    LayoutTable {
        envelopes: messages.filter_map(|line| build_envelope(line, table)).collect(),
        requests: requests.filter_map(|line| build_request_layout(&line.fields)).collect(),
        all_releases: label_from(0),
        dead_message_releases: first_with_dead_message.map_or("", label_from),
    }
}

/// The layout of a message with the layouts of its outputs. `None` if it has no outputs.
fn build_envelope(message_line: &LayoutLine, table: &ParsedTable) -> Option<Envelope> {
    let outputs_index = index_of_field(&message_line.fields, "outputs")?;
    let mut layouts = Vec::new();
    for output in table.lines.iter().filter(|line| line.class == "EngineCoreOutput") {
        // Only layouts of releases that have both can occur together.
        if let Some(common) = message_line.span.common_with(output.span) {
            layouts.push(build_output_layout(output, common.label(&table.releases)));
        }
    }
    Some(Envelope {
        field_count: message_line.fields.len() as u32,
        releases: message_line.span.label(&table.releases),
        outputs_index,
        timestamp_index: index_of_field(&message_line.fields, "timestamp"),
        layouts,
    })
}

/// The layout of an output in these releases: its number of fields, and the positions of those that are read.
fn build_output_layout(output_line: &LayoutLine, releases: &'static str) -> OutputLayout {
    let fields = &output_line.fields;
    OutputLayout {
        field_count: fields.len() as u32,
        releases,
        waiter: facts::waiter_of_releases(releases),
        columns: OutputColumns {
            finish: index_of_field(fields, "finish_reason"),
            finished: index_of_field(fields, "finished"),
            cached: index_of_field(fields, "num_cached_tokens"),
            prefill: index_of_field(fields, "prefill_stats"),
            pooling: index_of_field(fields, "pooling_output"),
            events: index_of_field(fields, "events"),
        },
    }
}

/// The layout of a request: its number of fields, and the positions of those that are read. `None` if it lacks one of these.
fn build_request_layout(fields: &[&str]) -> Option<RequestLayout> {
    let field_count = fields.len() as u32;
    let arrival_index = index_of_field(fields, "arrival_time")?;
    Some(RequestLayout {
        field_count,
        prompt_ids_index: index_of_field(fields, "prompt_token_ids")?,
        fields_after_arrival: field_count - arrival_index - 1,
    })
}

/// Index of the field with this name; `None` if there is none.
fn index_of_field(fields: &[&str], name: &str) -> Option<u32> {
    fields.iter().position(|field| *field == name).map(|index| index as u32)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_line_is_a_layout_and_the_envelope_is_determined_by_its_length() {
        let lines = |class: &str| TEXT.lines().filter(|line| line.starts_with(&format!("{class} "))).count();
        let mut lengths: Vec<_> = TABLE.envelopes.iter().map(|envelope| envelope.field_count).collect();
        assert_eq!(lengths.len(), lines("EngineCoreOutputs"));
        lengths.dedup();
        assert_eq!(lengths, [1, 2, 4, 7, 8, 9]);
        assert!(TABLE.envelopes.iter().all(|envelope| !envelope.layouts.is_empty()));
        assert_eq!(TABLE.dead_message_releases.split_once("..").map(|(first, _)| first), Some("0.8.5"));
    }

    #[test]
    fn equal_lengths_differ_in_the_value_that_counts_cached_tokens() {
        for envelope in &TABLE.envelopes {
            let mut lengths: BTreeMap<u32, Vec<OutputColumns>> = BTreeMap::new();
            for layout in &envelope.layouts {
                lengths.entry(layout.field_count).or_default().push(layout.columns);
            }
            for (length, columns) in lengths {
                match columns[..] {
                    [_] => {}
                    [older, newer] => {
                        let at = older.cached.expect("an integer in the older layout");
                        assert!(newer.cached.is_none(), "{length}");
                        // At its place the newer layout has a map, an array or nil.
                        assert!(newer.prefill == Some(at) || newer.prefill == Some(at + 1), "{length}: {newer:?}");
                    }
                    _ => panic!("{length} fields occur more than twice"),
                }
            }
        }
    }

    #[test]
    fn every_layout_of_a_request_is_read() {
        let lines: Vec<_> = TEXT.lines().filter(|line| line.starts_with("EngineCoreRequest ")).collect();
        assert_eq!(TABLE.requests.len(), lines.len());
        assert!(lines.iter().all(|line| line.split(' ').nth(3) == Some("request_id")));
        assert!(TABLE.requests.iter().all(|layout| matches!(layout.prompt_ids_index, 1 | 2)));
    }

    /// The codes that the decoder knows are those of the releases.
    #[test]
    fn finish_codes_were_only_ever_appended() {
        let members = TEXT.lines().filter_map(|line| line.strip_prefix("FinishReason enum "));
        let mut last = 0;
        for line in members {
            let names: Vec<_> = line.split(' ').skip(1).collect();
            assert_eq!(names, ["STOP", "LENGTH", "ABORT", "ERROR", "REPETITION"][..names.len()]);
            last = names.len();
        }
        assert_eq!(last, 5);
    }
}
