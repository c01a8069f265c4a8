//! Converts lines to queued statements, and statements to events.

use std::borrow::Cow;

use super::clock::{Clock, Stamp};
use super::envelope::{self, better};
use super::item::{Item, Statement};
use super::json::{Object, Scalar};
use super::queue::{OwnedRid, OwnedStatement, Queue, Queued};
use super::recognise::{self, Malformed, Recogniser};
use super::rids::Rids;
use super::shape::shape;
use super::source::Source;
use super::stats::{Form, Stats};
use super::text::{clean, epoch_ns};
use crate::clock::MonoNs;
use crate::event::{Event, LoggedState, Merged, Stage, What};

/// Maximum number of words kept per kind; further ones become [`OTHER`].
const WORDS: usize = 512;
const OTHER: &str = "other";

pub(super) struct Reader {
    pub(super) stats: Stats,
    recogniser: Recogniser,
    rids: Rids,
    names: Vec<Box<str>>,
    writers: Vec<Box<str>>,
    /// Whether there are several logs. If so, source names include the log's name.
    several: bool,
}

impl Reader {
    pub(super) fn new(stats: Stats, rids: usize, several: bool) -> Self {
        Self {
            stats,
            recogniser: Recogniser::new(),
            rids: Rids::new(rids),
            names: Vec::new(),
            writers: Vec::new(),
            several,
        }
    }

    /// Reads up to `limit` lines. Returns `false` at the end of the file.
    pub(super) fn turn(&mut self, source: &mut Source, limit: usize, queue: &mut Queue) -> bool {
        let Some(mut lines) = source.lines.take() else {
            return false;
        };
        let before = lines.text_bytes;
        let mut more = true;
        for _ in 0..limit {
            match lines.next() {
                Ok(Some(line)) => {
                    self.stats.lines += 1;
                    self.stats.cut += u64::from(line.cut);
                    self.line(line.text, source, queue);
                }
                Ok(None) => {
                    more = false;
                    break;
                }
                Err(error) => {
                    let path = source.file.path.display();
                    self.stats
                        .breaks(format!("{path}: {error} after {} bytes of text", lines.text_bytes));
                    more = false;
                    break;
                }
            }
        }
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
        if opened.message.starts_with('{')
            && let Ok(object) = serde_json::from_str::<Object<'_>>(opened.message)
        {
            let time = object
                .time
                .as_ref()
                .and_then(|time| scalar_stamp(time, &mut source.clock));
            let stamp = match (opened.stamp, time) {
                (Some(outer), Some(own)) => Some(better(outer, own)),
                (outer, own) => own.or(outer),
            };
            let mut sink = Sink::new(self, source, queue, stamp, "");
            if let Some(found) = recognise::object(&object, &mut |item| sink.take(&item)) {
                let dated = sink.dated;
                self.count(found, stamp, dated);
                return;
            }
            if let Some(message) = &object.message {
                let message = clean(message.as_bytes());
                let inner = envelope::open(&message, &mut source.clock);
                let stamp = match (stamp, inner.stamp) {
                    (Some(outer), Some(own)) => Some(better(outer, own)),
                    (outer, own) => own.or(outer),
                };
                self.message(inner.message, stamp, inner.rank, source, queue, line);
                return;
            }
        }
        self.message(opened.message, opened.stamp, opened.rank, source, queue, line);
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
        let recogniser = self.recogniser.clone();
        let mut sink = Sink::new(self, source, queue, stamp, rank);
        let found = recogniser.read(message, stamp.map(|s| s.wall_ns), &mut |item| sink.take(&item));
        let dated = sink.dated;
        match found {
            Some(found) => self.count(found, stamp, dated),
            None => self.unknown(line),
        }
    }

    fn unknown(&mut self, line: &[u8]) {
        self.stats.unknown += 1;
        if self.stats.first_unknown.is_none() && !line.trim_ascii().is_empty() {
            self.stats.first_unknown = Some(shape(&clean(line)));
        }
    }

    fn count(&mut self, found: Result<Form, Malformed>, stamp: Option<Stamp>, dated: bool) {
        let stats = &mut self.stats;
        let Ok(form) = found else {
            stats.malformed += 1;
            return;
        };
        *stats.forms.entry(form).or_default() += 1;
        stats.undated += u64::from(!dated);
        if let Some(stamp) = stamp {
            stats.zone_assumed += u64::from(stamp.zone_assumed);
            stats.year_assumed += u64::from(stamp.year_assumed);
            stats.whole_seconds += u64::from(stamp.coarse);
        }
    }

    /// Converts a queued statement to an event.
    pub(super) fn emit(&mut self, queued: &Queued, sink: &mut dyn FnMut(&Event<'_>)) {
        let by = &*self.writers[usize::from(queued.by)];
        let what = match &queued.statement {
            OwnedStatement::Stage {
                rid,
                name,
                tokens,
                pending,
            } => What::Stage(Stage {
                rid: &whole(rid, &mut self.rids, &mut self.stats),
                name: &self.names[usize::from(*name)],
                by,
                tokens: *tokens,
                pending: *pending,
            }),
            OwnedStatement::LoggedState {
                states,
                rids,
                recv_wait_ns,
                more,
                cpu,
            } => What::LoggedState(LoggedState {
                by,
                states: *states,
                rids: *rids,
                recv_wait_ns: *recv_wait_ns,
                more: *more,
                cpu: *cpu,
                cpu_system: None,
            }),
            OwnedStatement::Merged { rid, chunks } => What::Merged(Merged {
                rid: &whole(rid, &mut self.rids, &mut self.stats),
                chunks: *chunks,
                by,
            }),
        };
        sink(&Event::new(MonoNs(queued.at_ns), what));
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

impl<'s> Sink<'s> {
    fn new(
        reader: &'s mut Reader,
        source: &'s mut Source,
        queue: &'s mut Queue,
        stamp: Option<Stamp>,
        rank: &'s str,
    ) -> Self {
        Self {
            reader,
            source,
            queue,
            stamp,
            rank,
            dated: false,
        }
    }

    fn take(&mut self, item: &Item<'_>) {
        let Some(at_ns) = item.wall_ns.or(self.stamp.map(|s| s.wall_ns)) else {
            return;
        };
        self.dated = true;
        let reader = &mut *self.reader;
        if let Statement::Stage { rid, .. } | Statement::Merged { rid, .. } = &item.statement
            && !rid.cut
        {
            reader.rids.note(rid.text, &mut reader.stats);
        }
        // The line's own timestamp advances the file; for records without one, the time of their event does.
        let line_ns = self.stamp.map_or(at_ns, |s| s.wall_ns);
        self.source.frontier_ns = self.source.frontier_ns.max(line_ns);
        let by = writer(&mut reader.writers, self.source, item.role, self.rank, reader.several);
        let names = &mut reader.names;
        let statement = item.statement.map(OwnedRid::from, |name| place(names, name));
        self.queue.push(Queued { at_ns, by, statement });
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
fn whole<'r>(rid: &'r OwnedRid, rids: &'r mut Rids, stats: &mut Stats) -> Cow<'r, str> {
    if !rid.cut {
        return Cow::Borrowed(&rid.text);
    }
    match rids.complete(&rid.text, stats) {
        Some(whole) => Cow::Borrowed(whole),
        None => Cow::Owned(format!("{}...", rid.text)),
    }
}

/// Parses a timestamp such as `"2026-01-18T07:55:00Z"`, `1768722900.33` or `1768722900330`.
fn scalar_stamp(time: &Scalar<'_>, clock: &mut Clock) -> Option<Stamp> {
    match time {
        Scalar::Text(text) => clock.read(text.as_bytes()).map(|(stamp, _)| stamp),
        Scalar::Whole(number) => clock.read(number.to_string().as_bytes()).map(|(stamp, _)| stamp),
        Scalar::Number(seconds) => epoch_ns(*seconds).map(|wall_ns| Stamp {
            wall_ns,
            coarse: false,
            zone_assumed: false,
            year_assumed: false,
        }),
        Scalar::Other => None,
    }
}
