//! Files that users also pass to `import` and that hold no readable lines: named, with what reads them instead.

use std::collections::BTreeMap;

use aho_corasick::{AhoCorasick, MatchKind};
use trace::words::plural;

use super::recognise::{LogLines, Unread};

/// Number of unknown lines compared. More would show nothing else, and cost time.
const LINES: u64 = 4_096;

/// Kinds that no engine writes alone.
const COMMON: [Unread; 7] = [
    SSE,
    Unread { mark: "data: {\"", ..SSE },
    Unread { mark: "data:{\"", ..SSE },
    METRICS,
    Unread { mark: "# HELP ", ..METRICS },
    Unread {
        mark: "\"resourceSpans\"",
        name: "OpenTelemetry spans",
        advice: "tokengap writes spans (`tokengap export --format otlp`) and reads none: open them in a trace viewer",
    },
    Unread {
        mark: "\"schema\":\"tokengap.",
        name: "tokengap's own output",
        advice: "`tokengap report` and `tokengap diff` read recordings (.tgap)",
    },
];
const SSE: Unread = Unread {
    mark: "data: [DONE]",
    name: "a saved response (server-sent events)",
    advice: "it has no times; `tokengap tap --listen http://ADDRESS:PORT --upstream http://ADDRESS:PORT` checks responses while they are sent",
};
const METRICS: Unread = Unread {
    mark: "# TYPE ",
    name: "Prometheus metrics",
    advice: "they have sums over all requests and no time of one; `tokengap attach --metrics ADDRESS:PORT` serves its own beside them",
};

/// Kinds of the unknown lines.
#[derive(Debug)]
pub(super) struct UnreadLines {
    marks: AhoCorasick,
    kinds: Vec<Unread>,
    /// Number of compared lines.
    compared: u64,
    /// Number of lines of each kind, by name.
    lines: BTreeMap<&'static str, (u64, &'static str)>,
}

impl UnreadLines {
    pub(super) fn new(engines: &[&dyn LogLines]) -> Self {
        let of_engines = engines.iter().flat_map(|engine| engine.unread());
        let kinds: Vec<Unread> = of_engines.chain(&COMMON).copied().collect();
        let marks = kinds.iter().map(|kind| kind.mark);
        let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).build(marks);
        let marks = built.expect("a few short constants make an automaton");
        Self { marks, kinds, compared: 0, lines: BTreeMap::new() }
    }

    /// Compares an unknown line.
    pub(super) fn enter(&mut self, line: &[u8]) {
        if self.compared >= LINES {
            return;
        }
        self.compared += 1;
        let Some(found) = self.marks.find(line) else { return };
        let kind = self.kinds[found.pattern().as_usize()];
        self.lines.entry(kind.name).or_insert((0, kind.advice)).0 += 1;
    }

    /// One sentence for each kind, that of the most lines first.
    pub(super) fn sentences(&self) -> Vec<String> {
        let mut kinds: Vec<_> = self.lines.iter().collect();
        kinds.sort_by_key(|(_, (lines, _))| std::cmp::Reverse(*lines));
        let at_least = if self.compared >= LINES { "at least " } else { "" };
        let sentence = |(name, (lines, advice)): (&&str, &(u64, &str))| {
            format!("{at_least}{} of {name}: {advice}", plural(*lines, "line"))
        };
        kinds.into_iter().map(sentence).collect()
    }
}
