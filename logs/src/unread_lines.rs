//! Files that users also pass to `import` and that hold no readable lines: named, with what reads them instead.

use std::collections::BTreeMap;

use aho_corasick::{AhoCorasick, MatchKind};
use trace::words::plural;

use super::recogniser::{LogLines, UnreadFileKind};

/// Number of unknown lines compared. More would show nothing else, and cost time.
const MAX_COMPARED_LINES: u64 = 4_096;

/// Kinds that no engine writes alone.
const COMMON: [UnreadFileKind; 7] = [
    SSE,
    UnreadFileKind { mark: "data: {\"", ..SSE },
    UnreadFileKind { mark: "data:{\"", ..SSE },
    METRICS,
    UnreadFileKind { mark: "# HELP ", ..METRICS },
    UnreadFileKind {
        mark: "\"resourceSpans\"",
        name: "OpenTelemetry spans",
        advice: "tokengap writes spans (`tokengap export --format otlp`) and reads none: open them in a trace viewer",
    },
    UnreadFileKind {
        mark: "\"schema\":\"tokengap.",
        name: "tokengap's own output",
        advice: "`tokengap report` and `tokengap diff` read recordings (.tgap)",
    },
];
const SSE: UnreadFileKind = UnreadFileKind {
    mark: "data: [DONE]",
    name: "a saved response (server-sent events)",
    advice: "it has no times; `tokengap tap --listen http://ADDRESS:PORT --upstream http://ADDRESS:PORT` checks responses while they are sent",
};
const METRICS: UnreadFileKind = UnreadFileKind {
    mark: "# TYPE ",
    name: "Prometheus metrics",
    advice: "they have sums over all requests and no time of one; `tokengap attach --metrics ADDRESS:PORT` serves its own beside them",
};

/// Kinds of the unknown lines.
#[derive(Debug)]
pub(super) struct UnreadLineCounter {
    /// Searcher for the marks of `kinds`, in the same order.
    marks: AhoCorasick,
    kinds: Vec<UnreadFileKind>,
    /// Number of compared lines.
    compared: u64,
    /// Found kinds, by name.
    found: BTreeMap<&'static str, FoundKind>,
}

/// A kind of file that lines were found of.
#[derive(Debug)]
struct FoundKind {
    lines: u64,
    advice: &'static str,
}

impl UnreadLineCounter {
    /// Prepares the search for kinds of files that users pass to the import although it cannot read their lines. Some kinds are those of
    /// these engines. Others are of no single engine, such as saved responses. Each kind has a text that marks its lines.
    pub(super) fn new(engines: &[&dyn LogLines]) -> Self {
        let of_engines = engines.iter().flat_map(|engine| engine.unread_file_kinds());
        let kinds: Vec<UnreadFileKind> = of_engines.chain(&COMMON).copied().collect();
        let marks = kinds.iter().map(|kind| kind.mark);
        let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).build(marks);
        let marks = built.expect("a few short constants make an automaton");
        Self { marks, kinds, compared: 0, found: BTreeMap::new() }
    }

    /// Whether no more lines are compared.
    pub(super) fn has_compared_enough(&self) -> bool {
        self.compared >= MAX_COMPARED_LINES
    }

    /// Counts an unknown line for the kind of file whose mark it contains, if any. After enough lines, does nothing.
    pub(super) fn count_line_for_file_kind(&mut self, line: &[u8]) {
        if self.has_compared_enough() {
            return;
        }
        self.compared += 1;
        let Some(found) = self.marks.find(line) else { return };
        let kind = self.kinds[found.pattern().as_usize()];
        self.found.entry(kind.name).or_insert(FoundKind { lines: 0, advice: kind.advice }).lines += 1;
    }

    /// One sentence for each kind. The kind with the most lines comes first.
    pub(super) fn describe_found_file_kinds(&self) -> Vec<String> {
        let mut kinds: Vec<_> = self.found.iter().collect();
        kinds.sort_by_key(|(_name, kind)| std::cmp::Reverse(kind.lines));
        // Lines beyond the limit were not compared.
        let at_least = if self.has_compared_enough() { "at least " } else { "" };
        kinds
            .into_iter()
            .map(|(name, kind)| format!("{at_least}{} of {name}: {}", plural(kind.lines, "line"), kind.advice))
            .collect()
    }
}
