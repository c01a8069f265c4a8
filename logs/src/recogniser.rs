//! Recognition of the log lines of all engines.

use aho_corasick::{AhoCorasick, MatchKind};
use trace::event::{LoggedState, Merged, Stage};

use super::json_record::{FieldUse, JsonRecord};
use super::text::trim_ascii_matches;

/// Log lines of an engine.
pub trait LogLines: Sync {
    /// Name of the engine, like `sglang`.
    fn engine_name(&self) -> &'static str;

    /// The known lines, as an error lists them: `request logs and time stats`.
    fn forms_summary(&self) -> &'static str;

    /// The kinds of text lines that can be read, each with the text that marks it and its parser.
    fn line_forms(&self) -> &'static [LineForm];

    /// Whether lines of this form contain prompts or outputs. Nothing behind the start of such a line counts as another record.
    fn has_free_text(&self, _form: &str) -> bool {
        false
    }

    /// Files that users also pass to `import` and that hold no readable lines, with what reads them instead.
    fn unread_file_kinds(&self) -> &'static [UnreadFileKind] {
        &[]
    }

    /// Texts in JSON records. A record that contains none of them is not read.
    fn record_marks(&self) -> &'static [&'static str] {
        &[]
    }

    /// Use of this field of a JSON record by [`read_record`](Self::read_record).
    fn field_use(&self, _name: &str) -> FieldUse {
        FieldUse::Skipped
    }

    /// Passes the statements of a JSON record to `sink`, and returns the name of the record's form. `None` if the record is not the
    /// engine's. `Some(Err)` if it has no usable content.
    fn read_record(
        &self,
        _record: &JsonRecord<'_>,
        _sink: &mut dyn FnMut(&Statement<'_>),
    ) -> Option<Result<&'static str, MalformedLine>> {
        None
    }
}

/// A form of text lines. The first mark in a line decides, so that a prompt cannot imitate another form.
#[derive(Clone, Copy, Debug)]
pub struct LineForm {
    /// Text that marks the lines.
    pub mark: &'static str,
    /// Name of the form.
    pub name: &'static str,
    /// Parser of what follows the mark.
    pub parse: ParseLine,
}

/// Parser of a line after its mark. It gets the line's timestamp and passes the statements to the sink.
pub type ParseLine = fn(&str, Option<u64>, &mut dyn FnMut(&Statement<'_>)) -> Result<(), MalformedLine>;

/// A kind of file without readable lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreadFileKind {
    /// Text that only its lines contain.
    pub mark: &'static str,
    /// Name, as in "12 lines of vLLM's log".
    pub name: &'static str,
    /// Why it is not read, and what to do instead.
    pub advice: &'static str,
}

/// A line of a known form without usable content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedLine;

/// A statement of a log line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statement<'l> {
    /// Time of the event since the epoch, if the line describes an earlier event.
    pub wall_ns: Option<u64>,
    /// Whether the line truncates the request id.
    pub is_rid_truncated: bool,
    /// The statement. Its `by` is the role of the process that wrote the line, or empty.
    pub kind: StatementKind<'l>,
}

/// Kind of a statement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StatementKind<'l> {
    /// A request reached a stage.
    Stage(Stage<'l>),
    /// State of a process.
    ProcessState(LoggedState<'l>),
    /// Chunks of a request were merged.
    MergedChunks(Merged<'l>),
    /// The line belongs to one half of a request that a prefill and a decode server share.
    RequestHalf(RequestHalf<'l>),
    /// A request was answered with this error status. The line names neither the request nor the engine.
    Rejected {
        /// HTTP status from 400 on.
        status: u16,
    },
    /// The process serves this address.
    ServerAddress(&'l str),
    /// The line has durations that cannot be: they are unknown.
    ImpossibleDurations,
}

/// One half of a request that a prefill and a decode server share. Each server may have its own rid for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHalf<'l> {
    /// The server's rid.
    pub rid: &'l str,
    /// Number that both servers log for the request (`bootstrap_room`).
    pub room: u64,
    /// Whether it is the decode server's half.
    pub is_decode: bool,
}

/// A request id, and whether the line truncates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedRid<'l> {
    /// The id, as far as the line contains it.
    pub text: &'l str,
    /// Whether the line truncates the id.
    pub is_truncated: bool,
}

/// Maximum length of a rid; a longer word is not a rid.
const LONGEST_RID_BYTES: usize = 256;
/// Minimum length of a word that is a rid if all its characters are letters, digits and hyphens: longer than `None`.
const MIN_PLAIN_BYTES: usize = 5;

impl<'l> LoggedRid<'l> {
    /// Parses a rid: bare, quoted, or truncated with `...`. `None` if the word is empty, too long, or `None`.
    pub fn parse(word: &'l str) -> Option<Self> {
        // Almost all rids are like this.
        if is_plain_rid(word) {
            return Some(Self { text: word, is_truncated: false });
        }
        // A rid may be quoted, in a list, or followed by punctuation.
        let word = trim_ascii_matches(word, |byte| matches!(byte, b'\'' | b'"' | b',' | b';' | b')' | b']' | b'['));
        let text = word.trim_end_matches(['.', '…']);
        let dots = &word[text.len()..];
        // A single dot may end the sentence.
        let is_truncated = dots.contains('…') || dots.len() >= 2;
        let is_rid = !text.is_empty()
            && text.len() <= LONGEST_RID_BYTES
            && text != "None"
            && !text.contains(char::is_whitespace);
        is_rid.then_some(Self { text, is_truncated })
    }
}

/// Whether the word is a rid of letters, digits and hyphens only.
fn is_plain_rid(word: &str) -> bool {
    // A check of all bytes without an early exit is vectorised.
    let is_plain =
        word.bytes().fold(true, |are_plain, byte| are_plain & (byte.is_ascii_alphanumeric() || byte == b'-'));
    is_plain && (MIN_PLAIN_BYTES..=LONGEST_RID_BYTES).contains(&word.len())
}

/// Engine and form of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordForm {
    pub(super) engine: &'static str,
    pub(super) form: &'static str,
}

/// Form of a record that was read, or that it has no usable content.
pub(super) type RecordResult = Result<RecordForm, MalformedLine>;

/// A mark in a line.
#[derive(Clone, Copy)]
pub(super) struct MarkMatch {
    /// Index of its first byte.
    pub(super) start: usize,
    /// Index behind its last byte.
    pub(super) end: usize,
    /// Name of the engine whose mark it is.
    pub(super) engine: &'static str,
    /// Form of the line; `None` for a mark of JSON records.
    pub(super) form: Option<LineForm>,
    /// Whether the rest of the line may be a prompt.
    pub(super) has_free_text: bool,
    /// Whether the rest of the line is known to have no mark.
    pub(super) is_last: bool,
}

/// A mark of an engine.
struct EngineMark {
    engine: &'static dyn LogLines,
    /// As in [`MarkMatch`].
    form: Option<LineForm>,
    has_free_text: bool,
}

impl EngineMark {
    /// The mark of lines of this form.
    fn of_lines(engine: &'static dyn LogLines, form: LineForm) -> Self {
        Self { engine, form: Some(form), has_free_text: engine.has_free_text(form.name) }
    }

    /// A mark of the engine's JSON records, of which the rest may be a prompt.
    fn of_json_records(engine: &'static dyn LogLines) -> Self {
        Self { engine, form: None, has_free_text: true }
    }
}

/// Finds the records of all engines, and reads those in JSON.
pub(super) struct Recogniser {
    pub(super) engines: &'static [&'static dyn LogLines],
    /// Searcher for all marks.
    marks: AhoCorasick,
    /// What each of `marks` means, in the same order.
    engine_marks: Vec<EngineMark>,
    /// Searcher for the marks of JSON records.
    record_marks: AhoCorasick,
}

impl Recogniser {
    /// Prepares the search for the marks of these engines. A mark is a fixed text that all lines of one form contain, or all JSON records
    /// of an engine.
    pub(super) fn new(engines: &'static [&'static dyn LogLines]) -> Self {
        let mut marks = Vec::new();
        let mut record_marks = Vec::new();
        // Engine and form of each of `marks`, in the same order.
        let mut engine_marks = Vec::new();
        for &engine in engines {
            for &form in engine.line_forms() {
                // Several lines are searched at once, so a mark must not reach into the next one.
                debug_assert!(!form.mark.contains(['\r', '\n']), "a mark is in one line");
                marks.push(form.mark);
                engine_marks.push(EngineMark::of_lines(engine, form));
            }
            for &mark in engine.record_marks() {
                // Searched without its quotes, because a record inside a JSON string has escaped quotes.
                let bare = mark.trim_matches('"');
                marks.push(bare);
                record_marks.push(bare);
                engine_marks.push(EngineMark::of_json_records(engine));
            }
        }
        Self {
            engines,
            marks: build_mark_searcher(marks),
            engine_marks,
            record_marks: build_mark_searcher(record_marks),
        }
    }

    /// Parses an engine's own JSON record. `None` if the object is something else.
    pub(super) fn parse_engine_record<'l>(&self, json: &'l str) -> Option<JsonRecord<'l>> {
        if !self.record_marks.is_match(json) {
            return None;
        }
        let record = JsonRecord::parse(json, &|name| self.use_of_field(name))?;
        // Only an attempt to read the record shows whether it is an engine's. Its statements are ignored here, and read again later.
        let is_of_engine = self.read_record(&record, &mut |_| {}).is_some();
        is_of_engine.then_some(record)
    }

    /// Use of the field with this name. It is read if any of the engines reads it.
    fn use_of_field(&self, name: &str) -> FieldUse {
        let uses = self.engines.iter().map(|engine| engine.field_use(name));
        uses.max().unwrap_or(FieldUse::Skipped)
    }

    /// First mark in a text, if any. A mark is a text that all known records of one form contain.
    pub(super) fn find_mark(&self, text: &[u8]) -> Option<MarkMatch> {
        let found = self.marks.find(text)?;
        // `engine_marks` has the order of the searched marks.
        let engine_mark = &self.engine_marks[found.pattern().as_usize()];
        Some(MarkMatch {
            start: found.start(),
            end: found.end(),
            engine: engine_mark.engine.engine_name(),
            form: engine_mark.form,
            has_free_text: engine_mark.has_free_text,
            // Whether another mark follows is unknown, because the rest of the text was not searched.
            is_last: false,
        })
    }

    /// Passes the statements of an engine's own JSON record to `sink`, and returns the form of the record. `None` if the record is of no
    /// engine. `Some(Err)` if it has no usable content.
    pub(super) fn read_record(
        &self,
        record: &JsonRecord<'_>,
        sink: &mut dyn FnMut(&Statement<'_>),
    ) -> Option<RecordResult> {
        for engine in self.engines {
            if let Some(read) = engine.read_record(record, sink) {
                return Some(read.map(|form| RecordForm { engine: engine.engine_name(), form }));
            }
        }
        None
    }
}

/// A searcher for all marks at once.
fn build_mark_searcher(marks: Vec<&'static str>) -> AhoCorasick {
    // Only leftmost searches are vectorised.
    let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).build(marks);
    built.expect("a few short constants make an automaton")
}
