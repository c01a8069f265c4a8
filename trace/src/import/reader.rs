//! Converts lines to queued statements, and statements to events.

use std::borrow::Cow;
use std::sync::Arc;

use super::clock::Stamp;
use super::envelope::{self, better};
use super::queue::{Queue, Queued};
use super::recognise::{Found, Item, LogLines, Logged, Recogniser};
use super::rids::Rids;
use super::shape::shape;
use super::source::Source;
use super::stats::Stats;
use super::text::clean;
use crate::clock::MonoNs;
use crate::event::{Engine, Event, LoggedState, Merged, Stage, What};

/// Maximum number of words kept per kind; further ones become [`OTHER`].
const WORDS: usize = 512;
const OTHER: &str = "other";

pub(super) struct Reader {
    pub(super) stats: Stats,
    pub(super) recogniser: Arc<Recogniser>,
    rids: Rids,
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
            recogniser: Arc::new(Recogniser::new(engines)),
            rids: Rids::new(rids),
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
        let more = (0..limit).all(|_| match lines.next() {
            Ok(Some(line)) => {
                self.stats.lines += 1;
                self.stats.cut += u64::from(line.cut);
                self.line(line.text, source, queue);
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

    fn line(&mut self, line: &[u8], source: &mut Source, queue: &mut Queue) {
        if !self.recogniser.may_match(line) {
            self.unknown(line);
            return;
        }
        let text = clean(line);
        let opened = envelope::open(&text, &mut source.clock);
        let Some(record) = self.recogniser.parse(opened.message) else {
            return self.message(opened.message, opened.stamp, opened.rank, source, queue, line);
        };
        let own = record.time().and_then(|time| source.clock.read(time.as_bytes()));
        let stamp = better(opened.stamp, own.map(|own| own.0));
        let recogniser = Arc::clone(&self.recogniser);
        let mut sink = Sink { reader: self, source, queue, stamp, rank: "", dated: false };
        if let Some(found) = recogniser.record(&record, &mut |item| sink.take(item)) {
            sink.count(found);
        } else if let Some(message) = record.message() {
            let message = clean(message.as_bytes());
            let inner = envelope::open(&message, &mut source.clock);
            let stamp = better(stamp, inner.stamp);
            self.message(inner.message, stamp, inner.rank, source, queue, line);
        } else {
            self.message(opened.message, opened.stamp, opened.rank, source, queue, line);
        }
    }

    fn message(
        &mut self,
        message: &str,
        stamp: Option<Stamp>,
        rank: &str,
        source: &mut Source,
        queue: &mut Queue,
        line: &[u8],
    ) {
        let recogniser = Arc::clone(&self.recogniser);
        let mut sink = Sink { reader: self, source, queue, stamp, rank, dated: false };
        match recogniser.read(message, stamp.map(|s| s.wall_ns), &mut |item| sink.take(item)) {
            Some(found) => sink.count(found),
            None => self.unknown(line),
        }
    }

    fn unknown(&mut self, line: &[u8]) {
        self.stats.unknown += 1;
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
        let what = match queued.what {
            Logged::Stage(stage) => {
                What::Stage(Stage { rid: &rid, name: &self.names[usize::from(queued.name)], by, ..stage })
            }
            Logged::State(state) => What::LoggedState(LoggedState { by, ..state }),
            Logged::Merged(merged) => What::Merged(Merged { rid: &rid, by, ..merged }),
        };
        sink(&Event::new(at, what));
    }
}

/// Destination of the statements of one line.
struct Sink<'s> {
    reader: &'s mut Reader,
    source: &'s mut Source,
    queue: &'s mut Queue,
    stamp: Option<Stamp>,
    rank: &'s str,
    /// Whether any statement has a time.
    dated: bool,
}

impl Sink<'_> {
    fn take(&mut self, item: &Item<'_>) {
        let Some(at_ns) = item.wall_ns.or(self.stamp.map(|s| s.wall_ns)) else {
            return;
        };
        self.dated = true;
        let reader = &mut *self.reader;
        let (rid, name, role, what) = match item.what {
            Logged::Stage(stage) => {
                let name = place(&mut reader.names, stage.name);
                (stage.rid, name, stage.by, Logged::Stage(Stage { rid: "", name: "", by: "", ..stage }))
            }
            Logged::State(state) => ("", 0, state.by, Logged::State(LoggedState { by: "", ..state })),
            Logged::Merged(merged) => (merged.rid, 0, merged.by, Logged::Merged(Merged { rid: "", by: "", ..merged })),
        };
        if !rid.is_empty() && !item.cut {
            reader.rids.note(rid, &mut reader.stats);
        }
        // The line's own timestamp advances the file; for records without one, the time of their event does.
        let line_ns = self.stamp.map_or(at_ns, |s| s.wall_ns);
        self.source.frontier_ns = self.source.frontier_ns.max(line_ns);
        let by = writer(&mut reader.writers, self.source, role, self.rank, reader.several);
        self.queue.push(Queued { at_ns, by, name, rid: rid.into(), cut: item.cut && !rid.is_empty(), what });
    }

    /// Counts the line.
    fn count(self, found: Found) {
        let stats = &mut self.reader.stats;
        let Ok((engine, form)) = found else {
            stats.malformed += 1;
            return;
        };
        self.reader.engine.get_or_insert(engine);
        *stats.forms.entry(form).or_default() += 1;
        stats.undated += u64::from(!self.dated);
        if let Some(stamp) = self.stamp {
            stats.zone_assumed += u64::from(stamp.zone_assumed);
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
