//! Destination of a line's statements: the queue, each with its time and source.

use super::clock::Stamp;
use super::item::{Item, Statement};
use super::queue::Queue;
use super::queued::{OwnedStatement, Queued};
use super::reader::Reader;
use super::source::Source;

/// Maximum number of words kept per kind; further ones become [`OTHER`].
const WORDS: usize = 512;
const OTHER: &str = "other";

/// Destination of the statements of one line.
pub(super) struct Sink<'s> {
    reader: &'s mut Reader,
    source: &'s mut Source,
    queue: &'s mut Queue,
    stamp: Option<Stamp>,
    rank: &'s str,
    /// Whether any statement has a time.
    pub(super) dated: bool,
}

impl<'s> Sink<'s> {
    pub(super) fn new(
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

    pub(super) fn take(&mut self, item: &Item<'_>) {
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
        let statement = OwnedStatement::of(&item.statement, |name| place(names, name));
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
