//! Merges several files, each roughly in order, into one stream of events ordered by timestamp.
//!
//! Always reads the file that is furthest behind. Its statements are queued until every file is `window` ahead, so that late lines can be
//! sorted. Files are opened when their first timestamp is near.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trace::event::Event;
use trace::words::plural;

use super::ImportError;
use super::ImportOptions;
use super::import_stats::ImportStats;
use super::line_reader::LineReader;
use super::log_files::{self, LogFile};
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
fn derive_utc_offsets(sources: &mut [LogSource], engines: &'static [&'static dyn LogLines], options: &ImportOptions) {
    let mut reader = timestamp_only_reader(engines);
    for source in &mut *sources {
        derive_utc_offset(source, &mut reader, options);
    }
    // A zone that the user states is used instead of the offset of other files.
    if options.zone.is_some() {
        return;
    }
    let Some(agreed_offset_s) = utc_offset_s_if_agreed(sources) else { return };
    for source in sources.iter_mut().filter(|source| source.parser.derived_offset_s().is_none()) {
        source.parser.set_utc_offset_s(agreed_offset_s);
    }
}

/// Creates a reader for lines of which only the timestamps are of interest. It keeps no rids and no rejections.
fn timestamp_only_reader(engines: &'static [&'static dyn LogLines]) -> LogRecordReader {
    let keeps_nothing = ImportOptions { max_rids: 0, max_held_lines: 0, ..ImportOptions::default() };
    // Only names of processes and rejections depend on this, and neither is used.
    let has_several_logs = false;
    LogRecordReader::new(engines, ImportStats::default(), &keeps_nothing, has_several_logs)
}

/// The UTC offset that the lines of some files have shown, in seconds. `None` if no file has shown one, or if they differ.
fn utc_offset_s_if_agreed(sources: &[LogSource]) -> Option<i32> {
    let mut offsets = sources.iter().filter_map(|source| source.parser.derived_offset_s());
    let first_offset_s = offsets.next()?;
    let agree = offsets.all(|offset_s| offset_s == first_offset_s);
    agree.then_some(first_offset_s)
}

/// Reads lines of a file until one shows the UTC offset of its timestamps, which the file's parser then knows. Leaves a pipe alone, because
/// its lines could not be read again.
fn derive_utc_offset(source: &mut LogSource, reader: &mut LogRecordReader, options: &ImportOptions) {
    if !source.is_regular() {
        return;
    }
    // The bytes read here do not count as progress. An error is not reported here, but when the import opens the file again.
    let Ok(lines) = source.open_uncounted(options) else { return };
    source.lines = Some(lines);
    read_until_offset_is_known(source, reader, options);
    // The import will read the file from its start, so everything except the offset is reset.
    source.lines = None;
    source.frontier_ns = 0;
    source.writers.clear();
}

/// Reads lines of an open file until its parser knows the UTC offset, the file ends, or the limit of searched text is reached.
fn read_until_offset_is_known(source: &mut LogSource, reader: &mut LogRecordReader, options: &ImportOptions) {
    // The statements themselves are read again by the import.
    let mut unused_statements = StatementQueue::new(options.window_ns);
    loop {
        let has_more = reader.queue_lines(source, PROBED_LINES, &mut unused_statements);
        let is_limit_reached = source.lines.as_ref().is_none_or(|lines| lines.text_bytes >= MAX_OFFSET_SEARCH_BYTES);
        let is_offset_known = source.parser.derived_offset_s().is_some();
        if !has_more || is_limit_reached || is_offset_known {
            return;
        }
    }
}

/// Whether the files are of several logs. The rotated files of one log have the same label.
fn are_of_several_logs(files: &[LogFile]) -> bool {
    files.iter().any(|file| file.label != files[0].label)
}

/// Reads the first lines of each file, and returns the files that are to be imported. The others are counted as skipped.
fn probe_and_keep_readable_sources(
    sources: Vec<LogSource>,
    options: &ImportOptions,
    stats: &mut ImportStats,
) -> Vec<LogSource> {
    let mut imported = Vec::new();
    for mut source in sources {
        match source.probe_first_lines(options) {
            Ok(()) => imported.push(source),
            Err(why) => stats.add_skipped_file(why),
        }
    }
    imported
}

/// Sorts files by their first timestamp, the latest first. Files of equal times are sorted by path, so that an import is reproducible.
fn sort_latest_first(sources: &mut [LogSource]) {
    sources.sort_by(|one, other| other.first_ns.cmp(&one.first_ns).then_with(|| other.file.path.cmp(&one.file.path)));
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
        let has_several_logs = are_of_several_logs(&files);
        let mut sources: Vec<LogSource> = files.into_iter().map(|file| LogSource::new(file, &options)).collect();
        derive_utc_offsets(&mut sources, engines, &options);
        let mut waiting = probe_and_keep_readable_sources(sources, &options, &mut stats);
        // Files are opened from the end of the list.
        sort_latest_first(&mut waiting);
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
    pub fn read_some_lines_and_pass_events(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> bool {
        self.open_due_files();
        // Reads the file whose latest timestamp is the earliest, because the events of all other files wait for it.
        let lagging = (0..self.active.len()).min_by_key(|&index| self.active[index].frontier_ns);
        let Some(lagging_index) = lagging else {
            self.pass_remaining_events(sink);
            return false;
        };
        let source = &mut self.active[lagging_index];
        let has_more = self.reader.queue_lines(source, LINES_PER_TURN, &mut self.queue);
        if !has_more {
            self.active.swap_remove(lagging_index);
        }
        self.pass_events_before(self.earliest_expected_ns(), sink);
        // Keeps the memory bounded, even if a later line may belong before these statements.
        self.pass_statements_above_limit(sink);
        true
    }

    /// Passes all events that are left to `sink`, after the last file was read.
    fn pass_remaining_events(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        self.pass_events_before(u64::MAX, sink);
        // Only after the last line is it known whether one engine rejected these requests.
        self.reader.emit_rejections(sink);
    }

    /// Passes the earliest statements to `sink` while more than the limit are held. Counts them, because a line that is read later may
    /// belong before them.
    fn pass_statements_above_limit(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        while self.queue.len() > self.options.max_held_lines {
            let Some(early) = self.queue.pop_slot_before(u64::MAX) else { break };
            self.reader.stats.passed_early += early.len() as u64;
            self.pass_slot_of_events(early, sink);
        }
    }

    /// Time before which no more lines are expected. A file's frontier is the time that the import has reached in it. The earliest frontier
    /// counts, less the window by which lines may be out of order.
    fn earliest_expected_ns(&self) -> u64 {
        let next_file_ns = self.waiting.last().map(|source| source.first_ns);
        let earliest_ns = self.active.iter().map(|source| source.frontier_ns).chain(next_file_ns).min();
        // If no file is left, no more lines are expected.
        earliest_ns.unwrap_or(u64::MAX).saturating_sub(self.options.window_ns)
    }

    /// Opens the files whose first line is due, because the import has reached its time. At the limit of open files, the next file waits
    /// until another is read to its end. Such a file is counted, because its lines may then be late.
    fn open_due_files(&mut self) {
        // A limit of 0 counts as 1, because an import without an open file ends.
        let max_open_files = self.options.max_open_files.max(1);
        while self.is_next_file_due() {
            if self.active.len() >= max_open_files {
                self.reader.stats.opened_late += 1;
                return;
            }
            let Some(source) = self.waiting.pop() else { return };
            self.open_file(source);
        }
    }

    /// Whether the next file must be opened now. That is so if its first timestamp is at most a window after the time that the open file
    /// furthest behind has reached, or if no file is open. `false` without a next file.
    fn is_next_file_due(&self) -> bool {
        let Some(next) = self.waiting.last() else { return false };
        let due_from_ns = next.first_ns.saturating_sub(self.options.window_ns);
        let reached_ns = self.active.iter().map(|source| source.frontier_ns).min();
        reached_ns.is_none_or(|reached_ns| reached_ns >= due_from_ns)
    }

    /// Opens a file to read its lines. One that cannot be opened is counted as skipped.
    fn open_file(&mut self, mut source: LogSource) {
        match LineReader::open(&source.file.path, self.options.max_line_bytes, Arc::clone(&self.read_bytes)) {
            Ok(lines) => {
                source.lines = Some(lines);
                self.reader.stats.files += 1;
                self.active.push(source);
            }
            Err(error) => self.reader.stats.add_skipped_file(format!("{}: {error}", source.file.path.display())),
        }
    }

    /// Passes all statements from before this time to `sink`, in order.
    fn pass_events_before(&mut self, limit_ns: u64, sink: &mut dyn FnMut(&Event<'_>)) {
        while let Some(due) = self.queue.pop_slot_before(limit_ns) {
            self.pass_slot_of_events(due, sink);
        }
    }

    /// Passes the statements of one slot of the queue to `sink`, in order of their times. A slot is a short span of time, whose memory is
    /// used again. Counts a statement as late if one of a later time was passed before it.
    fn pass_slot_of_events(&mut self, due: DueSlot, sink: &mut dyn FnMut(&Event<'_>)) {
        for queued in due.statements_by_time() {
            let is_late = queued.at_ns < self.passed_ns;
            self.reader.stats.late += u64::from(is_late);
            self.passed_ns = self.passed_ns.max(queued.at_ns);
            self.reader.emit_event(queued, sink);
        }
        self.reader.stats.events += due.len() as u64;
        self.queue.keep_memory_of_slot(due);
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
    pub fn fail_if_nothing_recognised(&self) -> Result<(), ImportError> {
        if self.stats().events > 0 {
            return Ok(());
        }
        Err(ImportError::NothingRecognised(self.describe_lines_without_events().join("; ")))
    }

    /// Describes the lines that gave no event, and the files that were skipped. Each returned text states one observation.
    fn describe_lines_without_events(&self) -> Vec<String> {
        let stats = self.stats();
        let mut parts = self.describe_unread_kinds();
        let has_unread_kinds = !parts.is_empty();
        let lines = plural(stats.lines, "line");
        let files = plural(stats.files, "file");
        parts.push(format!("{lines} in {files} and none of a known form ({})", self.known_forms()));
        if stats.undated > 0 {
            parts.push(format!("{} of a known form without a time", plural(stats.undated, "line")));
        }
        // An example helps only if the kind of the file is unknown.
        if !has_unread_kinds && let Some(shape) = &stats.first_unknown {
            parts.push(format!("the first unknown line, with possible prompt text removed: {shape}"));
        }
        parts.extend(stats.skipped.iter().map(|why| format!("skipped {why}")));
        parts
    }

    /// The forms that the engines' readers know, in words.
    fn known_forms(&self) -> String {
        let summaries = self.reader.recogniser.engines.iter().map(|engine| engine.forms_summary());
        summaries.filter(|summary| !summary.is_empty()).collect::<Vec<_>>().join("; ")
    }

    /// What the unknown lines are, if they are of a known kind: one sentence for each kind.
    pub fn describe_unread_kinds(&self) -> Vec<String> {
        self.reader.unread_lines.describe_found_file_kinds()
    }
}
