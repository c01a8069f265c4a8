//! Merges several files, each roughly in order, into one stream of events ordered by timestamp.
//!
//! Always reads the file that is furthest behind. Its statements are queued until every file is `window` ahead, so that late lines can be
//! sorted. Files are opened when their first timestamp is near.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trace::event::Event;
use trace::words::plural;

use super::ImportError;
use super::Options;
use super::files;
use super::lines::Lines;
use super::queue::{DueSlot, Queue};
use super::reader::Reader;
use super::recognise::LogLines;
use super::source::{PROBED, Source};
use super::stats::Stats;

/// Lines read from one file before another gets its turn.
const TURN: usize = 512;
/// Text searched for a line that shows the offset of a file's timestamps, in bytes.
const OFFSET_BYTES: u64 = 256 * 1024;

/// Reads timestamps without a zone at the offset that each file shows. A file that shows none gets the offset of the others, if they agree.
fn derive_offsets(sources: &mut [Source], engines: &'static [&'static dyn LogLines], options: &Options) {
    let mut reader = Reader::new(engines, Stats::default(), 0, false);
    let mut offsets = BTreeSet::new();
    for source in &mut *sources {
        derive_offset(source, &mut reader, options);
        offsets.extend(source.clock.derived_offset());
    }
    let mut offsets = offsets.into_iter();
    let (Some(only), None, None) = (offsets.next(), offsets.next(), &options.zone) else { return };
    for source in sources.iter_mut().filter(|source| source.clock.derived_offset().is_none()) {
        source.clock.set_offset(only);
    }
}

/// Reads lines of a file until one shows the offset of its timestamps.
fn derive_offset(source: &mut Source, reader: &mut Reader, options: &Options) {
    if !source.is_regular() {
        return;
    }
    // The import itself reports errors.
    let Ok(lines) = source.open_unread(options) else { return };
    source.lines = Some(lines);
    let mut unused = Queue::new(options.window_ns);
    let is_searched = |source: &Source| {
        let is_long = source.lines.as_ref().is_none_or(|lines| lines.text_bytes >= OFFSET_BYTES);
        is_long || source.clock.derived_offset().is_some()
    };
    while reader.turn(source, PROBED, &mut unused) && !is_searched(source) {}
    source.lines = None;
    source.frontier_ns = 0;
    source.writers.clear();
}

/// An import in progress.
pub struct Import {
    options: Options,
    reader: Reader,
    /// Files not opened yet, the earliest last.
    waiting: Vec<Source>,
    active: Vec<Source>,
    queued: Queue,
    passed_ns: u64,
    bytes: u64,
    read: Arc<AtomicU64>,
}

impl Import {
    /// Finds the files under `paths`, which have log lines of `engines`, and reads the start of each.
    pub fn open(
        paths: &[PathBuf],
        engines: &'static [&'static dyn LogLines],
        options: Options,
    ) -> Result<Self, ImportError> {
        let mut stats = Stats::default();
        let files = files::gather(paths, &options, &mut stats)?;
        let bytes = files.iter().map(|f| f.bytes).sum();
        let first = &files[0].label;
        let several = files.iter().any(|f| f.label != *first);
        let mut sources: Vec<Source> = files.into_iter().map(|file| Source::new(file, &options)).collect();
        derive_offsets(&mut sources, engines, &options);
        let mut waiting = Vec::new();
        for mut source in sources {
            match source.probe(&options) {
                Ok(()) => waiting.push(source),
                Err(why) => stats.skip(why),
            }
        }
        waiting.sort_by(|a, b| b.first_ns.cmp(&a.first_ns).then_with(|| b.file.path.cmp(&a.file.path)));
        Ok(Self {
            reader: Reader::new(engines, stats, options.rids, several),
            queued: Queue::new(options.window_ns),
            options,
            waiting,
            active: Vec::new(),
            passed_ns: 0,
            bytes,
            read: Arc::new(AtomicU64::new(0)),
        })
    }

    /// Reads some lines and passes on the events that are due. Returns `false` at the end.
    pub fn next(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> bool {
        self.open_due();
        let lagging = (0..self.active.len()).min_by_key(|&at| self.active[at].frontier_ns);
        let Some(at) = lagging else {
            self.pass_before(u64::MAX, sink);
            return false;
        };
        let source = &mut self.active[at];
        if !self.reader.turn(source, TURN, &mut self.queued) {
            self.active.swap_remove(at);
        }
        self.pass_before(self.horizon(), sink);
        while self.queued.len() > self.options.held_lines {
            let Some(early) = self.queued.pop_before(u64::MAX) else {
                break;
            };
            self.reader.stats.passed_early += early.len() as u64;
            self.pass(early, sink);
        }
        true
    }

    /// Time before which no more lines are expected.
    fn horizon(&self) -> u64 {
        let next = self.waiting.last().map(|s| s.first_ns);
        let lagging = self.active.iter().map(|s| s.frontier_ns).chain(next).min();
        lagging.unwrap_or(u64::MAX).saturating_sub(self.options.window_ns)
    }

    /// Opens the files whose first timestamp is near.
    fn open_due(&mut self) {
        while let Some(next) = self.waiting.last() {
            let now = self.active.iter().map(|s| s.frontier_ns).min();
            if now.is_some_and(|now| next.first_ns.saturating_sub(self.options.window_ns) > now) {
                return;
            }
            if self.active.len() >= self.options.open_files.max(1) {
                self.reader.stats.opened_late += 1;
                return;
            }
            let Some(mut source) = self.waiting.pop() else { return };
            match Lines::open(&source.file.path, self.options.line_bytes, Arc::clone(&self.read)) {
                Ok(lines) => {
                    source.lines = Some(lines);
                    self.reader.stats.files += 1;
                    self.active.push(source);
                }
                Err(error) => self.reader.stats.skip(format!("{}: {error}", source.file.path.display())),
            }
        }
    }

    fn pass_before(&mut self, horizon_ns: u64, sink: &mut dyn FnMut(&Event<'_>)) {
        while let Some(due) = self.queued.pop_before(horizon_ns) {
            self.pass(due, sink);
        }
    }

    fn pass(&mut self, due: DueSlot, sink: &mut dyn FnMut(&Event<'_>)) {
        for queued in due.by_time() {
            self.reader.stats.late += u64::from(queued.at_ns < self.passed_ns);
            self.passed_ns = self.passed_ns.max(queued.at_ns);
            self.reader.emit(queued, sink);
        }
        self.reader.stats.events += due.len() as u64;
        self.queued.reuse(due);
    }

    /// Counters of recognised and unrecognised lines.
    pub fn stats(&self) -> &Stats {
        &self.reader.stats
    }

    /// Bytes read from the disk, and the total.
    pub fn progress(&self) -> (u64, u64) {
        (self.read.load(Ordering::Relaxed).min(self.bytes), self.bytes)
    }

    /// Checks the result at the end: an error if no line was recognised.
    pub fn check(&self) -> Result<(), ImportError> {
        let stats = self.stats();
        if stats.events > 0 {
            return Ok(());
        }
        let undated = match stats.undated {
            0 => String::new(),
            n => format!("; {} of a known form without a time", plural(n, "line")),
        };
        let kinds = self.unread_kinds();
        let first = stats.first_unknown.as_ref().filter(|_| kinds.is_empty()).map_or_else(String::new, |shape| {
            format!("; the first unknown line, with possible prompt text removed: {shape}")
        });
        let skipped = stats.skipped.iter().fold(String::new(), |text, why| text + "; skipped " + why);
        let kinds = kinds.iter().fold(String::new(), |text, kind| text + kind + "; ");
        let summaries = self.reader.recogniser.engines.iter().map(|engine| engine.summary());
        let known: Vec<_> = summaries.filter(|summary| !summary.is_empty()).collect();
        let (files, known) = (plural(stats.files, "file"), known.join("; "));
        Err(ImportError::NothingRecognised(format!(
            "{kinds}{} in {files} and none of a known form ({known}){undated}{first}{skipped}",
            plural(stats.lines, "line")
        )))
    }

    /// What the unknown lines are, if they are of a known kind: one sentence for each kind.
    pub fn unread_kinds(&self) -> Vec<String> {
        self.reader.unread.sentences()
    }
}
