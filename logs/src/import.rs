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
use super::ImportOptions;
use super::import_stats::ImportStats;
use super::line_reader::LineReader;
use super::log_files;
use super::log_source::{LogSource, PROBED_LINES};
use super::recogniser::LogLines;
use super::record_reader::LogRecordReader;
use super::statement_queue::{DueSlot, StatementQueue};

/// Lines read from one file before another gets its turn.
const LINES_PER_TURN: usize = 512;
/// Text searched for a line that shows the offset of a file's timestamps, in bytes.
const MAX_OFFSET_SEARCH_BYTES: u64 = 256 * 1024;

/// Finds the UTC offset of each file, which its parser applies to timestamps without a zone. A file whose lines do not show the offset gets
/// that of the others, if they agree.
fn derive_offsets(sources: &mut [LogSource], engines: &'static [&'static dyn LogLines], options: &ImportOptions) {
    // Only timestamps are of interest, so this reader keeps no rids and no rejections.
    let probing = ImportOptions { max_rids: 0, max_held_lines: 0, ..ImportOptions::default() };
    // Only names of processes and rejections depend on this, and neither is used here.
    let has_several_logs = false;
    let mut reader = LogRecordReader::new(engines, ImportStats::default(), &probing, has_several_logs);
    let mut offsets = BTreeSet::new();
    for source in &mut *sources {
        derive_offset(source, &mut reader, options);
        if let Some(offset_s) = source.parser.derived_offset_s() {
            offsets.insert(offset_s);
        }
    }
    // A zone that the user states, or offsets that differ, leave nothing to assume.
    if options.zone.is_some() || offsets.len() != 1 {
        return;
    }
    let Some(only_offset_s) = offsets.first() else { return };
    for source in sources.iter_mut().filter(|source| source.parser.derived_offset_s().is_none()) {
        source.parser.set_offset_s(*only_offset_s);
    }
}

/// Reads lines of a file until one shows the UTC offset of its timestamps, which the file's parser then knows. Leaves a pipe alone, because
/// its lines could not be read again.
fn derive_offset(source: &mut LogSource, reader: &mut LogRecordReader, options: &ImportOptions) {
    if !source.is_regular() {
        return;
    }
    // These bytes do not count as the import's progress. An error is reported when the import opens the file again.
    let Ok(lines) = source.open_uncounted(options) else { return };
    source.lines = Some(lines);
    // The statements themselves are read again by the import.
    let mut unused_statements = StatementQueue::new(options.window_ns);
    loop {
        let has_more = reader.read_lines(source, PROBED_LINES, &mut unused_statements);
        let is_limit_reached = source.lines.as_ref().is_none_or(|lines| lines.text_bytes >= MAX_OFFSET_SEARCH_BYTES);
        let is_offset_known = source.parser.derived_offset_s().is_some();
        if !has_more || is_limit_reached || is_offset_known {
            break;
        }
    }
    // The import reads the file from its start, so everything but the offset is reset.
    source.lines = None;
    source.frontier_ns = 0;
    source.writers.clear();
}

/// How much of an import's files was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportProgress {
    /// Bytes read from the disk.
    pub read_bytes: u64,
    /// Size of all files.
    pub total_bytes: u64,
}

/// An import in progress.
pub struct Import {
    options: ImportOptions,
    reader: LogRecordReader,
    /// Files not opened yet, the earliest last.
    waiting: Vec<LogSource>,
    /// Files that are open.
    active: Vec<LogSource>,
    queue: StatementQueue,
    /// Time of the latest event that was passed on.
    passed_ns: u64,
    /// Size of all files on the disk.
    total_bytes: u64,
    read_bytes: Arc<AtomicU64>,
}

impl Import {
    /// Finds the files under `paths`, whose lines are those of `engines`, and reads the start of each. Files without text are counted as
    /// skipped.
    pub fn open(
        paths: &[PathBuf],
        engines: &'static [&'static dyn LogLines],
        options: ImportOptions,
    ) -> Result<Self, ImportError> {
        let mut stats = ImportStats::default();
        let files = log_files::find_log_files(paths, &options, &mut stats)?;
        let total_bytes = files.iter().map(|file| file.bytes).sum();
        // There is a first file: finding none is an error. The rotated files of one log have the same label.
        let first_label = &files[0].label;
        let has_several_logs = files.iter().any(|file| file.label != *first_label);
        let mut sources: Vec<LogSource> = files.into_iter().map(|file| LogSource::new(file, &options)).collect();
        derive_offsets(&mut sources, engines, &options);
        let mut waiting = Vec::new();
        for mut source in sources {
            match source.probe_first_lines(&options) {
                Ok(()) => waiting.push(source),
                Err(why) => stats.add_skipped_file(why),
            }
        }
        // The latest first: files are opened from the end of the list.
        waiting.sort_by(|one, other| {
            // By path among files of equal times, so that an import is reproducible.
            other.first_ns.cmp(&one.first_ns).then_with(|| other.file.path.cmp(&one.file.path))
        });
        Ok(Self {
            reader: LogRecordReader::new(engines, stats, &options, has_several_logs),
            queue: StatementQueue::new(options.window_ns),
            options,
            waiting,
            active: Vec::new(),
            passed_ns: 0,
            total_bytes,
            read_bytes: Arc::new(AtomicU64::new(0)),
        })
    }

    /// Reads some lines, and passes to `sink` all events that no later line is expected to precede. Returns `false` at the end of the last
    /// file, after all events were passed.
    pub fn read_some(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> bool {
        self.open_due_files();
        // The file that is furthest behind goes first, so that few events wait for it.
        let lagging = (0..self.active.len()).min_by_key(|&index| self.active[index].frontier_ns);
        let Some(lagging_index) = lagging else {
            // All files are read, so all queued statements are due.
            self.pass_events_before(u64::MAX, sink);
            // Only after the last line is it known whether one engine rejected these requests.
            self.reader.emit_rejections(sink);
            return false;
        };
        let source = &mut self.active[lagging_index];
        if !self.reader.read_lines(source, LINES_PER_TURN, &mut self.queue) {
            self.active.swap_remove(lagging_index);
        }
        self.pass_events_before(self.horizon_ns(), sink);
        // Too many are held, so the earliest slots are passed on, whatever their time. A line that is read later may belong before them.
        while self.queue.len() > self.options.max_held_lines {
            let Some(early) = self.queue.pop_slot_before(u64::MAX) else { break };
            self.reader.stats.passed_early += early.len() as u64;
            self.pass_slot(early, sink);
        }
        true
    }

    /// Time before which no more lines are expected: the time that the file furthest behind has reached (its frontier), less the window by
    /// which lines may be out of order.
    fn horizon_ns(&self) -> u64 {
        let next_file_ns = self.waiting.last().map(|source| source.first_ns);
        let earliest_ns = self.active.iter().map(|source| source.frontier_ns).chain(next_file_ns).min();
        // Without any file, nothing more is expected.
        earliest_ns.unwrap_or(u64::MAX).saturating_sub(self.options.window_ns)
    }

    /// Opens the files whose first timestamp lies at most a window ahead of the file that is furthest behind.
    fn open_due_files(&mut self) {
        while let Some(next) = self.waiting.last() {
            let due_from_ns = next.first_ns.saturating_sub(self.options.window_ns);
            let reached_ns = self.active.iter().map(|source| source.frontier_ns).min();
            if reached_ns.is_some_and(|reached_ns| reached_ns < due_from_ns) {
                return;
            }
            // At the limit, the file waits until another one is read to its end. Its lines may then be late, which is counted. One file is
            // opened whatever the limit, because an import without an open file ends.
            if self.active.len() >= self.options.max_open_files.max(1) {
                self.reader.stats.opened_late += 1;
                return;
            }
            let Some(mut source) = self.waiting.pop() else { return };
            match LineReader::open(&source.file.path, self.options.max_line_bytes, Arc::clone(&self.read_bytes)) {
                Ok(lines) => {
                    source.lines = Some(lines);
                    self.reader.stats.files += 1;
                    self.active.push(source);
                }
                Err(error) => self.reader.stats.add_skipped_file(format!("{}: {error}", source.file.path.display())),
            }
        }
    }

    /// Passes all statements from before this time to `sink`, in order.
    fn pass_events_before(&mut self, horizon_ns: u64, sink: &mut dyn FnMut(&Event<'_>)) {
        while let Some(due) = self.queue.pop_slot_before(horizon_ns) {
            self.pass_slot(due, sink);
        }
    }

    /// Passes the statements of one slot of the queue, a short span of time, to `sink` in order of their times. Counts those that are late.
    /// The slot's memory is used again.
    fn pass_slot(&mut self, due: DueSlot, sink: &mut dyn FnMut(&Event<'_>)) {
        for queued in due.statements_by_time() {
            let is_late = queued.at_ns < self.passed_ns;
            self.reader.stats.late += u64::from(is_late);
            self.passed_ns = self.passed_ns.max(queued.at_ns);
            self.reader.emit_event(queued, sink);
        }
        self.reader.stats.events += due.len() as u64;
        self.queue.reuse_slot(due);
    }

    /// Counters of recognised and unrecognised lines.
    pub fn stats(&self) -> &ImportStats {
        &self.reader.stats
    }

    /// How much was read so far.
    pub fn progress(&self) -> ImportProgress {
        let read_bytes = self.read_bytes.load(Ordering::Relaxed).min(self.total_bytes);
        ImportProgress { read_bytes, total_bytes: self.total_bytes }
    }

    /// Returns an error if the import has ended without any event. The error says what the lines are instead.
    pub fn check_any_recognised(&self) -> Result<(), ImportError> {
        let stats = self.stats();
        if stats.events > 0 {
            return Ok(());
        }
        let mut parts = self.describe_unread_kinds();
        let has_unread_kinds = !parts.is_empty();
        let lines = plural(stats.lines, "line");
        let files = plural(stats.files, "file");
        parts.push(format!("{lines} in {files} and none of a known form ({})", self.known_forms()));
        if stats.undated > 0 {
            parts.push(format!("{} of a known form without a time", plural(stats.undated, "line")));
        }
        // Lines of a known kind of file need no example.
        if !has_unread_kinds && let Some(shape) = &stats.first_unknown {
            parts.push(format!("the first unknown line, with possible prompt text removed: {shape}"));
        }
        parts.extend(stats.skipped.iter().map(|why| format!("skipped {why}")));
        Err(ImportError::NothingRecognised(parts.join("; ")))
    }

    /// The forms that the engines' readers know, in words.
    fn known_forms(&self) -> String {
        let summaries = self.reader.recogniser.engines.iter().map(|engine| engine.forms_summary());
        summaries.filter(|summary| !summary.is_empty()).collect::<Vec<_>>().join("; ")
    }

    /// What the unknown lines are, if they are of a known kind: one sentence for each kind.
    pub fn describe_unread_kinds(&self) -> Vec<String> {
        self.reader.unread_lines.describe_kinds()
    }
}
