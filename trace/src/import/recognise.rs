//! Recognition of the log lines of all engines.

use aho_corasick::{AhoCorasick, MatchKind};

use super::json::{Field, Record};
use crate::event::{LoggedState, Merged, Stage};

/// Log lines of an engine.
pub trait LogLines: Sync {
    /// Name of the engine, as in its facts.
    fn name(&self) -> &'static str;

    /// The known lines, as an error lists them: `request logs and time stats`.
    fn summary(&self) -> &'static str;

    /// Forms of text lines.
    fn forms(&self) -> &'static [Form];

    /// Texts in JSON records. A record that contains none of them is not read.
    fn record_marks(&self) -> &'static [&'static str] {
        &[]
    }

    /// Use of this field of a JSON record by [`record`](Self::record).
    fn field(&self, _name: &str) -> Field {
        Field::Skipped
    }

    /// Passes the statements of a JSON record to `sink` and returns the name of its form; `None` if it is not the engine's.
    fn record(
        &self,
        _record: &Record<'_>,
        _sink: &mut dyn FnMut(&Item<'_>),
    ) -> Option<Result<&'static str, Malformed>> {
        None
    }
}

/// A form of lines: a text that marks them, the name of the form, and the parser of what follows the mark. The first mark in a line decides,
/// so that a prompt cannot imitate another form.
pub type Form = (&'static str, &'static str, Read);

/// Parser of a line after its mark. It gets the line's timestamp and passes the statements to the sink.
pub type Read = fn(&str, Option<u64>, &mut dyn FnMut(&Item<'_>)) -> Result<(), Malformed>;

/// A line of a known form without usable content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// A statement of a log line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item<'l> {
    /// Time of the event since the epoch, if the line describes an earlier event.
    pub wall_ns: Option<u64>,
    /// Whether the line truncates the request id.
    pub cut: bool,
    /// The statement. Its `by` is the role of the process that wrote the line, or empty.
    pub what: Logged<'l>,
}

/// Kind of a statement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Logged<'l> {
    /// A request reached a stage.
    Stage(Stage<'l>),
    /// State of a process.
    State(LoggedState<'l>),
    /// Chunks of a request were merged.
    Merged(Merged<'l>),
}

/// A request id, and whether the line truncates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rid<'l> {
    /// The id, as far as the line contains it.
    pub text: &'l str,
    /// Whether the line truncates the id.
    pub cut: bool,
}

/// Maximum length of a rid; a longer word is not a rid.
const LONGEST_RID: usize = 256;

impl<'l> Rid<'l> {
    /// Parses a rid: bare, quoted, or truncated with `...`.
    pub fn read(word: &'l str) -> Option<Self> {
        let word = word.trim_matches(|c| matches!(c, '\'' | '"' | ',' | ';' | ')' | ']' | '['));
        let text = word.trim_end_matches(['.', '…']);
        let cut = word[text.len()..].contains('…') || word[text.len()..].len() >= 2;
        let valid = !text.is_empty() && text.len() <= LONGEST_RID && !text.contains(char::is_whitespace);
        (valid && text != "None").then_some(Self { text, cut })
    }
}

/// Engine and form of a line.
pub(super) type Found = Result<(&'static str, &'static str), Malformed>;

/// Finds and reads messages.
pub(super) struct Recogniser {
    pub(super) engines: &'static [&'static dyn LogLines],
    marks: AhoCorasick,
    /// Engine and form of each mark; no form for those of JSON records.
    forms: Vec<(&'static str, Option<Form>)>,
}

impl Recogniser {
    pub(super) fn new(engines: &'static [&'static dyn LogLines]) -> Self {
        let (mut marks, mut forms) = (Vec::new(), Vec::new());
        for engine in engines {
            marks.extend(engine.forms().iter().map(|form| form.0));
            forms.extend(engine.forms().iter().map(|&form| (engine.name(), Some(form))));
            marks.extend(engine.record_marks());
            forms.resize(marks.len(), (engine.name(), None));
        }
        // Only leftmost searches are vectorised.
        let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).build(marks);
        Self { engines, marks: built.expect("a few short constants make an automaton"), forms }
    }

    /// Parses a JSON object. `None` if the message is something else.
    pub(super) fn parse<'l>(&self, message: &'l str) -> Option<Record<'l>> {
        let field = |name: &str| self.engines.iter().map(|engine| engine.field(name)).max();
        Record::read(message, &|name| field(name).unwrap_or(Field::Skipped))
    }

    /// Whether the line may have a known form. Fast, because most lines do not.
    pub(super) fn may_match(&self, line: &[u8]) -> bool {
        self.marks.is_match(line)
    }

    /// Passes the content of the message to `sink`. `line_ns` is the line's timestamp. `None` if the form is unknown.
    pub(super) fn read(&self, message: &str, line_ns: Option<u64>, sink: &mut dyn FnMut(&Item<'_>)) -> Option<Found> {
        let found = self.marks.find(message)?;
        let (engine, form) = self.forms[found.pattern().as_usize()];
        let (_, name, read) = form?;
        Some(read(&message[found.end()..], line_ns, sink).map(|()| (engine, name)))
    }

    /// Like [`read`](Self::read), for an engine's own JSON record.
    pub(super) fn record(&self, record: &Record<'_>, sink: &mut dyn FnMut(&Item<'_>)) -> Option<Found> {
        self.engines.iter().find_map(|engine| {
            let found = engine.record(record, sink)?;
            Some(found.map(|form| (engine.name(), form)))
        })
    }
}
