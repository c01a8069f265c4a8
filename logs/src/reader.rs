//! Converts lines to queued statements, and statements to events.

use std::borrow::Cow;
use std::rc::Rc;

use serde_json::value::RawValue;
use trace::clock::MonoNs;
use trace::event::{Engine, Event, LoggedState, Merged, Stage, What};

use super::clock::{Stamp, ZoneSource};
use super::envelope::{better, first_stamp};
use super::lines::Line;
use super::queue::{Queue, Queued, QueuedWhat};
use super::recognise::{Found, Item, LogLines, Logged, Mark, Recogniser};
use super::rids::Rids;
use super::rooms::Rooms;
use super::shape::shape;
use super::source::Source;
use super::stats::Stats;
use super::structure::{Content, Search, start_of_json, time_of_record};
use super::text::clean;
use super::unread::UnreadLines;

/// Maximum number of words kept per kind; further ones become [`OTHER`].
const WORDS: usize = 512;
const OTHER: &str = "other";
/// Maximum depth of JSON texts inside strings of others.
const JSON_IN_JSON: usize = 4;
/// Maximum length of the bracket with a record's own timestamp, in bytes.
const BRACKET: usize = 64;
/// Rooms are kept only until both halves of a request are known.
const ROOMS_PER_RID: usize = 4;

pub(super) struct Reader {
    pub(super) stats: Stats,
    pub(super) recogniser: Rc<Recogniser>,
    pub(super) unread: UnreadLines,
    /// Offset that was last added to the statistics, in seconds east of UTC.
    noted_offset: Option<i32>,
    /// Number of records of known forms, with or without usable content.
    records: u64,
    rids: Rids,
    rooms: Rooms,
    names: Vec<Box<str>>,
    writers: Vec<Box<str>>,
    /// Whether there are several logs. If so, source names include the log's name.
    several: bool,
    /// Engine of the first known line, and whether an event names it.
    engine: Option<&'static str>,
    named: bool,
}

impl Reader {
    pub(super) fn new(engines: &'static [&'static dyn LogLines], stats: Stats, rids: usize, several: bool) -> Self {
        Self {
            stats,
            recogniser: Rc::new(Recogniser::new(engines)),
            unread: UnreadLines::new(engines),
            noted_offset: None,
            records: 0,
            rids: Rids::new(rids),
            rooms: Rooms::new(rids / ROOMS_PER_RID),
            names: Vec::new(),
            writers: Vec::new(),
            several,
            engine: None,
            named: false,
        }
    }

    /// Reads up to `limit` lines. Returns `false` at the end of the file.
    pub(super) fn turn(&mut self, source: &mut Source, limit: usize, queue: &mut Queue) -> bool {
        let Some(mut lines) = source.lines.take() else {
            return false;
        };
        let before = lines.text_bytes;
        let recogniser = Rc::clone(&self.recogniser);
        let more = (0..limit).all(|_| match lines.next(Some(&recogniser)) {
            Ok(Some(line)) => {
                self.stats.lines += 1;
                self.stats.cut += u64::from(line.cut);
                self.line(&line, source, queue);
                true
            }
            Ok(None) => false,
            Err(error) => {
                let path = source.file.path.display();
                self.stats.breaks(format!("{path}: {error} after {} bytes of text", lines.text_bytes));
                false
            }
        });
        self.stats.bytes += lines.text_bytes - before;
        source.lines = Some(lines);
        more
    }

    fn line(&mut self, line: &Line<'_>, source: &mut Source, queue: &mut Queue) {
        let before = self.records;
        if let Some(mark) = line.mark {
            let text = clean(line.text);
            // Colour codes and invalid characters before the mark move it.
            let mark = if let Cow::Borrowed(_) = text { Some(mark) } else { self.recogniser.find(text.as_bytes()) };
            self.read_text(&text, mark, None, JSON_IN_JSON, &mut Target { source, queue });
        }
        match self.records - before {
            0 => self.unknown(line.text),
            records => self.stats.joined += records - 1,
        }
    }

    /// Reads the records of a text. `outer` is the timestamp that a collector added.
    fn read_text(
        &mut self,
        text: &str,
        mark: Option<Mark>,
        outer: Option<Stamp>,
        json_depth: usize,
        target: &mut Target<'_>,
    ) {
        let Some(mark) = mark else { return };
        let start = if json_depth > 0 { start_of_json(text, mark.start) } else { None };
        let Some(start) = start else { return self.read_lines(text, mark, outer, target) };
        let stamp = better(outer, first_stamp(&text[..start], &mut target.source.clock));
        let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<&RawValue>();
        let mut read_bytes = 0;
        while let Some(Ok(value)) = values.next() {
            read_bytes = values.byte_offset();
            self.read_json(value.get(), stamp, json_depth - 1, target);
        }
        // What follows is no JSON, or is cut.
        let rest = if read_bytes == 0 { text } else { &text[start + read_bytes..] };
        if let Some(mark) = self.recogniser.find(rest.as_bytes()) {
            self.read_lines(rest, mark, stamp, target);
        }
    }

    fn read_json(&mut self, json: &str, outer: Option<Stamp>, json_depth: usize, target: &mut Target<'_>) {
        let recogniser = Rc::clone(&self.recogniser);
        let clock = &mut target.source.clock;
        let mut search = Search { recogniser: &recogniser, clock, found: Vec::new() };
        search.value(json, 0);
        for found in search.found {
            let stamp = better(outer, found.stamp);
            match found.content {
                Content::Text(text) => {
                    let text = clean(text.as_bytes());
                    let mark = recogniser.find(text.as_bytes());
                    self.read_text(&text, mark, stamp, json_depth, target);
                }
                Content::Record(record) => {
                    let stamp = time_of_record(&record, stamp, &mut target.source.clock);
                    let mut sink = Sink::new(self, target, stamp, "");
                    if let Some(found) = recogniser.read_record(&record, &mut |item| sink.take(item)) {
                        sink.count(found);
                    }
                }
            }
        }
    }

    /// Reads the records in a text that is no JSON, from the first mark on. Several processes that write to one pipe join lines.
    fn read_lines(&mut self, text: &str, first: Mark, outer: Option<Stamp>, target: &mut Target<'_>) {
        let recogniser = Rc::clone(&self.recogniser);
        let (mut rest, mut next) = (text, Some(first));
        while let Some(mark) = next {
            // A JSON record that cannot be parsed: what follows may be a prompt.
            let Some((_, form, read)) = mark.form else { return };
            let Source { prefix_memo, clock, .. } = &mut *target.source;
            let prefix = prefix_memo.read(&rest[..mark.start], clock);
            let stamp = better(outer, prefix.stamp);
            let body = &rest[mark.end..];
            let behind = if mark.has_free_text { None } else { recogniser.find(body.as_bytes()) };
            let end = behind.as_ref().map_or(body.len(), |mark| start_of_record(body, mark.start));
            let mut sink = Sink::new(self, target, stamp, prefix.rank);
            let found = read(&body[..end], stamp.map(|s| s.wall_ns), &mut |item| sink.take(item));
            sink.count(found.map(|()| (mark.engine, form)));
            rest = &body[end..];
            next = behind.map(|mark| Mark { start: mark.start - end, end: mark.end - end, ..mark });
        }
    }

    fn unknown(&mut self, line: &[u8]) {
        self.stats.unknown += 1;
        self.unread.enter(line);
        if self.stats.first_unknown.is_none() && !line.trim_ascii().is_empty() {
            self.stats.first_unknown = Some(shape(&clean(line)));
        }
    }

    /// Converts a queued statement to an event. The first one is preceded by an event that names the engine.
    pub(super) fn emit(&mut self, queued: &Queued, sink: &mut dyn FnMut(&Event<'_>)) {
        let at = MonoNs(queued.at_ns);
        if !std::mem::replace(&mut self.named, true) {
            let engine = Engine { name: self.engine, ..Engine::default() };
            sink(&Event::new(at, What::Engine(engine)));
        }
        let by = &*self.writers[usize::from(queued.by)];
        let rid = whole(queued, &mut self.rids, &mut self.stats);
        let rid = match self.rooms.prefill_rid(&rid) {
            Some(prefill) => Cow::Borrowed(prefill),
            None => rid,
        };
        let what = match queued.what {
            QueuedWhat::Stage { name, tokens, pending, gap_ns } => {
                let name = &*self.names[usize::from(name)];
                What::Stage(Stage { rid: &rid, name, by, tokens, pending, gap_ns })
            }
            QueuedWhat::State(ref state) => What::LoggedState(LoggedState { by, ..**state }),
            QueuedWhat::Merged { chunks } => What::Merged(Merged { rid: &rid, by, chunks }),
        };
        sink(&Event::new(at, what));
    }
}

/// Start of the record in a text whose mark is at `mark`, with the bracket of its timestamp: `[2026-01-18 07:55:00 TP0] `.
fn start_of_record(text: &str, mark: usize) -> usize {
    let Some(at) = text[..mark].rfind('[') else { return mark };
    let is_stamp = mark - at <= BRACKET && text[at + 1..].starts_with(|c: char| c.is_ascii_digit());
    if is_stamp { at } else { mark }
}

/// The log that is read, and where its statements go.
struct Target<'t> {
    source: &'t mut Source,
    queue: &'t mut Queue,
}

/// Destination of the statements of one record.
struct Sink<'s, 't> {
    reader: &'s mut Reader,
    target: &'s mut Target<'t>,
    stamp: Option<Stamp>,
    rank: &'s str,
    /// Whether any statement has a time.
    is_dated: bool,
    /// Latest time that the record itself states.
    last_stated_ns: u64,
    /// Rid of the last statement.
    rid: Option<Rc<str>>,
}

impl<'s, 't> Sink<'s, 't> {
    fn new(reader: &'s mut Reader, target: &'s mut Target<'t>, stamp: Option<Stamp>, rank: &'s str) -> Self {
        Self { reader, target, stamp, rank, is_dated: false, last_stated_ns: 0, rid: None }
    }

    fn take(&mut self, item: &Item<'_>) {
        match item.what {
            Logged::Half(half) => return self.reader.rooms.enter(&half),
            Logged::ImpossibleDurations => return self.reader.stats.impossible += 1,
            _ => {}
        }
        self.last_stated_ns = self.last_stated_ns.max(item.wall_ns.unwrap_or(0));
        let Some(at_ns) = item.wall_ns.or(self.stamp.map(|s| s.wall_ns)) else {
            return;
        };
        self.is_dated = true;
        let reader = &mut *self.reader;
        let (rid, role, what) = match item.what {
            Logged::Stage(stage) => {
                let name = place(&mut reader.names, stage.name);
                let Stage { rid, by, tokens, pending, gap_ns, .. } = stage;
                (rid, by, QueuedWhat::Stage { name, tokens, pending, gap_ns })
            }
            Logged::State(state) => ("", state.by, QueuedWhat::State(Box::new(LoggedState { by: "", ..state }))),
            Logged::Merged(merged) => (merged.rid, merged.by, QueuedWhat::Merged { chunks: merged.chunks }),
            Logged::Half(_) | Logged::ImpossibleDurations => return,
        };
        let rid = match self.rid.take() {
            // All statements of most records are about one request.
            Some(last) if *last == *rid => last,
            _ if rid.is_empty() || item.cut => rid.into(),
            _ => reader.rids.note(rid, &mut reader.stats),
        };
        self.rid = Some(Rc::clone(&rid));
        let source = &mut *self.target.source;
        // The line's own timestamp advances the file; for records without one, the time of their event does.
        let line_ns = self.stamp.map_or(at_ns, |s| s.wall_ns);
        source.frontier_ns = source.frontier_ns.max(line_ns);
        let by = writer(&mut reader.writers, source, role, self.rank, reader.several);
        let cut = item.cut && !rid.is_empty();
        self.target.queue.push(Queued { at_ns, by, cut, rid, what });
    }

    /// Counts the record.
    fn count(self, found: Found) {
        self.reader.records += 1;
        let stats = &mut self.reader.stats;
        let Ok((engine, form)) = found else {
            stats.malformed += 1;
            return;
        };
        self.reader.engine.get_or_insert(engine);
        *stats.forms.entry(form).or_default() += 1;
        stats.undated += u64::from(!self.is_dated);
        if let Some(stamp) = self.stamp {
            if self.last_stated_ns > 0 {
                self.target.source.clock.derive_offset(&stamp, self.last_stated_ns);
            }
            stats.zone_assumed += u64::from(stamp.zone == ZoneSource::Options);
            if stamp.zone == ZoneSource::File {
                stats.zone_derived += 1;
                let offset = self.target.source.clock.derived_offset();
                if let Some(seconds) = offset.filter(|_| self.reader.noted_offset != offset) {
                    self.reader.noted_offset = offset;
                    stats.note_offset(seconds);
                }
            }
            stats.year_assumed += u64::from(stamp.year_assumed);
            stats.whole_seconds += u64::from(stamp.coarse);
        }
    }
}

/// Index of the source: `tokenizer`, `scheduler TP0`, `tokenizer (decode.log)`.
fn writer(writers: &mut Vec<Box<str>>, source: &mut Source, role: &str, rank: &str, several: bool) -> u16 {
    if let Some(known) = source.writers.iter().find(|s| *s.0 == *role && *s.1 == *rank) {
        return known.2;
    }
    let label = &source.file.label;
    let name = match (role, rank) {
        ("", "") => label.to_string(),
        (role, rank) => {
            let blank = if role.is_empty() || rank.is_empty() { "" } else { " " };
            let log = if several { format!(" ({label})") } else { String::new() };
            format!("{role}{blank}{rank}{log}")
        }
    };
    let place = place(writers, &name);
    // A rank comes from the log, so the length of this list must be bounded.
    if source.writers.len() < WORDS {
        source.writers.push((role.into(), rank.into(), place));
    }
    place
}

fn place(words: &mut Vec<Box<str>>, word: &str) -> u16 {
    if let Some(known) = words.iter().position(|w| **w == *word) {
        return known as u16;
    }
    if words.len() >= WORDS {
        return words.iter().position(|w| &**w == OTHER).unwrap_or(WORDS - 1) as u16;
    }
    let word = if words.len() == WORDS - 1 { OTHER } else { word };
    words.push(word.into());
    (words.len() - 1) as u16
}

/// Full rid, or the truncated one followed by `...`.
fn whole<'r>(queued: &'r Queued, rids: &'r mut Rids, stats: &mut Stats) -> Cow<'r, str> {
    if !queued.cut {
        return Cow::Borrowed(&queued.rid);
    }
    match rids.complete(&queued.rid, stats) {
        Some(whole) => Cow::Borrowed(whole),
        None => Cow::Owned(format!("{}...", queued.rid)),
    }
}
