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
    pub(super) len: u32,
    /// Releases for display: `0.5.9`, or `0.5.12..0.5.14`.
    pub(super) releases: &'static str,
    /// Index of the list of `EngineCoreOutput`.
    pub(super) outputs: u32,
    /// Index of the time at which the engine made the outputs.
    pub(super) timestamp: Option<u32>,
    /// Every layout of an output in these releases.
    pub(super) layouts: Vec<Layout>,
}

/// One layout of `EngineCoreOutput`, a request's part of the message, in the releases of its envelope.
#[derive(Debug)]
pub(super) struct Layout {
    /// Number of fields.
    pub(super) len: u32,
    /// Releases for display.
    pub(super) releases: &'static str,
    /// Whether several outputs of one request become one event; `None` where the releases differ.
    pub(super) waiter: Option<Waiter>,
    pub(super) columns: Columns,
}

/// Indices of the fields that are read, after the request id and the new ids.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Columns {
    pub(super) finish: Option<u32>,
    /// Up to 0.7.2: whether the request has finished.
    pub(super) finished: Option<u32>,
    /// 0.9.0 to 0.19.1: an integer, never nil.
    pub(super) cached: Option<u32>,
    /// 0.20.0 and later: a map or nil.
    pub(super) prefill: Option<u32>,
    pub(super) pooling: Option<u32>,
}

/// Every envelope, and all releases.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) envelopes: Vec<Envelope>,
    pub(super) all: &'static str,
    /// The releases that send `ENGINE_CORE_DEAD`.
    pub(super) dead: &'static str,
}

pub(super) static TABLE: LazyLock<Table> = LazyLock::new(read);

/// The message layout with this number of fields.
pub(super) fn envelope(fields: u32) -> Option<&'static Envelope> {
    TABLE.envelopes.iter().find(|envelope| envelope.len == fields)
}

/// One line of the table.
struct Line {
    class: &'static str,
    /// Indices of its first and its last release.
    span: (usize, usize),
    fields: Vec<&'static str>,
}

fn read() -> Table {
    let mut releases: Vec<&'static str> = Vec::new();
    let mut lines: Vec<Line> = Vec::new();
    for text in TEXT.lines().filter(|line| !line.starts_with('#')) {
        let mut words = text.split(' ');
        let class = words.next().unwrap_or_default();
        if class == "releases" {
            releases = words.collect();
            continue;
        }
        let span = words.nth(1).unwrap_or_default();
        let place = |name| releases.iter().position(|known| *known == name);
        let (first, last) = span.split_once("..").unwrap_or((span, span));
        if let (Some(first), Some(last)) = (place(first), place(last)) {
            lines.push(Line { class, span: (first, last), fields: words.collect() });
        }
    }
    let label = |(first, last): (usize, usize)| -> &'static str {
        if first == last {
            return releases[first];
        }
        String::leak(format!("{}..{}", releases[first], releases[last]))
    };
    let of = |class| lines.iter().filter(move |line| line.class == class);
    let envelope = |line: &Line| {
        let common = |output: &Line| {
            let span = (line.span.0.max(output.span.0), line.span.1.min(output.span.1));
            (span.0 <= span.1).then(|| layout(output, label(span)))
        };
        Some(Envelope {
            len: line.fields.len() as u32,
            releases: label(line.span),
            outputs: place(&line.fields, "outputs")?,
            timestamp: place(&line.fields, "timestamp"),
            layouts: of("EngineCoreOutput").filter_map(common).collect(),
        })
    };
    let dead = releases.iter().position(|release| *release == facts::DEAD_FROM);
    Table {
        envelopes: of("EngineCoreOutputs").filter_map(envelope).collect(),
        all: label((0, releases.len() - 1)),
        dead: dead.map_or("", |first| label((first, releases.len() - 1))),
    }
}

fn layout(line: &Line, releases: &'static str) -> Layout {
    let place = |name| place(&line.fields, name);
    Layout {
        len: line.fields.len() as u32,
        releases,
        waiter: facts::waiter(releases),
        columns: Columns {
            finish: place("finish_reason"),
            finished: place("finished"),
            cached: place("num_cached_tokens"),
            prefill: place("prefill_stats"),
            pooling: place("pooling_output"),
        },
    }
}

fn place(fields: &[&str], name: &str) -> Option<u32> {
    fields.iter().position(|field| *field == name).map(|place| place as u32)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_line_is_a_layout_and_the_envelope_is_determined_by_its_length() {
        let lines = |class: &str| TEXT.lines().filter(|line| line.starts_with(&format!("{class} "))).count();
        let mut lengths: Vec<_> = TABLE.envelopes.iter().map(|envelope| envelope.len).collect();
        assert_eq!(lengths.len(), lines("EngineCoreOutputs"));
        lengths.dedup();
        assert_eq!(lengths, [1, 2, 4, 7, 8, 9]);
        assert!(TABLE.envelopes.iter().all(|envelope| !envelope.layouts.is_empty()));
        assert_eq!(TABLE.dead.split_once("..").map(|(first, _)| first), Some("0.8.5"));
    }

    #[test]
    fn equal_lengths_differ_in_the_value_that_counts_cached_tokens() {
        for envelope in &TABLE.envelopes {
            let mut lengths: BTreeMap<u32, Vec<Columns>> = BTreeMap::new();
            for layout in &envelope.layouts {
                lengths.entry(layout.len).or_default().push(layout.columns);
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
