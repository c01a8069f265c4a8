//! Converts lines to queued statements, and statements to events.

use std::borrow::Cow;
use std::rc::Rc;

use serde_json::value::RawValue;
use trace::clock::MonoNs;
use trace::event::{Engine, Event, LoggedState, Merged, Rejection, Stage, What};

use super::ImportOptions;
use super::bootstrap_rooms::BootstrapRooms;
use super::import_stats::ImportStats;
use super::json_search::{JsonSearch, RecordContent, find_json_start, time_of_record};
use super::known_rids::KnownRids;
use super::line_prefix::{first_timestamp, more_precise_timestamp};
use super::line_reader::{LineReader, LogLine};
use super::line_shape::describe_line_shape;
use super::log_source::{LogSource, LogWriter};
use super::logged_rejections::{LoggedRejection, LoggedRejections};
use super::recogniser::{LogLines, MarkMatch, Recogniser, RecordForm, RecordResult, Statement, StatementKind};
use super::statement_queue::{QueuedKind, QueuedStatement, StatementQueue};
use super::text::plain_text;
use super::timestamp::{LogTimestamp, ZoneSource};
use super::unread_lines::UnreadLineCounter;

/// Maximum number of words kept per kind; further ones become [`OTHER`].
const MAX_WORDS: usize = 512;
/// Stands for all further words.
const OTHER: &str = "other";
/// Rank of a record that names none.
const NO_RANK: &str = "";
/// Rid of a statement about a process.
const NO_RID: &str = "";
/// Maximum depth of JSON texts inside strings of others.
const MAX_JSON_IN_JSON: usize = 4;
/// Maximum length of the bracket with a record's own timestamp, in bytes.
const MAX_BRACKET_BYTES: usize = 64;
/// One room is kept for so many rids, since it is needed only until both halves of its request are known.
const RIDS_PER_ROOM: usize = 4;

/// Reader of the records of all files, with what it keeps between them.
pub(super) struct LogRecordReader {
    pub(super) stats: ImportStats,
    pub(super) recogniser: Rc<Recogniser>,
    pub(super) unread_lines: UnreadLineCounter,
    /// Offset that was last added to the statistics, in seconds east of UTC.
    counted_offset_s: Option<i32>,
    /// Number of records of known forms, with or without usable content.
    record_count: u64,
    /// Records of each form since the last call of [`Self::queue_lines`], which adds them to the statistics.
    form_counts: Vec<FormCount>,
    rids: KnownRids,
    rooms: BootstrapRooms,
    rejections: LoggedRejections,
    /// Names that queued statements refer to by index.
    stage_names: Vec<Box<str>>,
    /// Names of the processes, which queued statements refer to by index.
    writer_names: Vec<Box<str>>,
    /// Whether there are several logs. If so, source names include the log's name.
    has_several_logs: bool,
    /// Engine of the first known line.
    engine_name: Option<&'static str>,
    /// An event has named the engine.
    is_engine_named: bool,
}

impl LogRecordReader {
    /// Creates a reader of the records of these engines. It adds to `stats`, and keeps at most `max_rids` complete rids. With
    /// `has_several_logs`, it names the log in the name of each process.
    pub(super) fn new(
        engines: &'static [&'static dyn LogLines],
        stats: ImportStats,
        options: &ImportOptions,
        has_several_logs: bool,
    ) -> Self {
        let max_rids = options.max_rids;
        Self {
            stats,
            recogniser: Rc::new(Recogniser::new(engines)),
            unread_lines: UnreadLineCounter::new(engines),
            counted_offset_s: None,
            record_count: 0,
            form_counts: Vec::new(),
            rids: KnownRids::new(max_rids),
            rooms: BootstrapRooms::new(max_rids / RIDS_PER_ROOM),
            rejections: LoggedRejections::new(options.max_held_lines, has_several_logs),
            stage_names: Vec::new(),
            writer_names: Vec::new(),
            has_several_logs,
            engine_name: None,
            is_engine_named: false,
        }
    }

    /// Reads up to `max_lines` of the file and queues their statements. Returns whether further lines may follow.
    pub(super) fn queue_lines(&mut self, source: &mut LogSource, max_lines: usize, queue: &mut StatementQueue) -> bool {
        // Moved out of the source, because the calls below borrow both. Moved back at the end.
        let Some(mut lines) = source.lines.take() else {
            return false;
        };
        let bytes_before = lines.text_bytes;
        let recogniser = Rc::clone(&self.recogniser);
        let mut has_more = true;
        let mut lines_read = 0;
        while has_more && lines_read < max_lines {
            // Skipped lines count as read, so they may use up `max_lines`.
            lines_read += self.skip_unknown_lines(&mut lines, max_lines - lines_read);
            if lines_read == max_lines {
                break;
            }
            has_more = self.read_and_queue_next_line(&mut lines, &recogniser, source, queue);
            lines_read += usize::from(has_more);
        }
        self.stats.lines += lines_read as u64;
        self.stats.bytes += lines.text_bytes - bytes_before;
        self.add_form_counts_to_stats();
        source.lines = Some(lines);
        has_more
    }

    /// Reads the next line of the file and queues its statements. Returns whether there was one: `false` at the end of the file, and if the
    /// rest cannot be read, which is reported in the statistics.
    #[inline]
    fn read_and_queue_next_line(
        &mut self,
        lines: &mut LineReader,
        recogniser: &Recogniser,
        source: &mut LogSource,
        queue: &mut StatementQueue,
    ) -> bool {
        match lines.next_line(Some(recogniser)) {
            Ok(Some(line)) => {
                self.stats.cut += u64::from(line.is_truncated);
                self.queue_records_of_line(&line, source, queue);
                true
            }
            Ok(None) => false,
            Err(error) => {
                let path = source.file.path.display();
                self.stats.add_broken_file(format!("{path}: {error} after {} bytes of text", lines.text_bytes));
                false
            }
        }
    }

    /// Skips the next lines without a known record, and counts them as unknown. Returns their number, at most `max_lines`. Skips none until
    /// enough unknown lines were examined.
    fn skip_unknown_lines(&mut self, lines: &mut LineReader, max_lines: usize) -> usize {
        if !self.has_enough_unknown_lines() {
            return 0;
        }
        // Lines without a mark of an engine are skipped without parsing.
        let skipped = lines.skip_unmarked_lines(&self.recogniser, max_lines);
        self.stats.unknown += skipped as u64;
        skipped
    }

    /// Moves the counts of records by form to the statistics. They are counted separately first, because the statistics would compare the
    /// text of the form for each record.
    fn add_form_counts_to_stats(&mut self) {
        for FormCount { form, records } in self.form_counts.drain(..) {
            *self.stats.forms.entry(form).or_default() += records;
        }
    }

    /// Queues the records of a line, which are messages of an engine's logger. Counts a line without a record as unknown.
    fn queue_records_of_line(&mut self, line: &LogLine<'_>, source: &mut LogSource, queue: &mut StatementQueue) {
        let records_before = self.record_count;
        if let Some(mark) = line.mark {
            let text = plain_text(line.text);
            // `plain_text` copies a line only to remove colour codes or replace invalid bytes, which may move the mark.
            let is_changed = matches!(text, Cow::Owned(_));
            let mark = if is_changed { self.recogniser.find_mark(text.as_bytes()) } else { Some(mark) };
            // If a collector added a timestamp, it is inside the line.
            let outer_time = None;
            self.queue_records_of_text(&text, mark, outer_time, MAX_JSON_IN_JSON, &mut ReadTarget { source, queue });
        }
        let records_in_line = self.record_count - records_before;
        if records_in_line == 0 {
            self.count_unknown_line(line.text);
        } else {
            // A line should have one record. Processes that write to one pipe may have joined further ones to it.
            self.stats.joined += records_in_line - 1;
        }
    }

    /// Queues the records of a text whose first mark is `mark`. `collector_time` is the timestamp that a log collector added. A string in
    /// JSON may itself contain JSON. Down to `json_levels` levels it is read as JSON, and below as a plain line.
    fn queue_records_of_text(
        &mut self,
        text: &str,
        mark: Option<MarkMatch>,
        collector_time: Option<LogTimestamp>,
        json_levels: usize,
        target: &mut ReadTarget<'_>,
    ) {
        // A text without a mark has no record.
        let Some(mark) = mark else { return };
        let json_start = if json_levels > 0 { find_json_start(text, mark.start) } else { None };
        match json_start {
            Some(start) => self.queue_records_of_text_with_json(text, start, collector_time, json_levels - 1, target),
            None => self.queue_records_of_plain_line(text, mark, collector_time, target),
        }
    }

    /// Queues the records in the JSON values that begin at `json_start`, and then those in the text behind them. `collector_time` is the
    /// timestamp that a log collector added. `inner_levels` limits how deep JSON in strings of JSON is read.
    fn queue_records_of_text_with_json(
        &mut self,
        text: &str,
        json_start: usize,
        collector_time: Option<LogTimestamp>,
        inner_levels: usize,
        target: &mut ReadTarget<'_>,
    ) {
        let time_before_json = first_timestamp(&text[..json_start], &mut target.source.parser);
        let stamp = more_precise_timestamp(collector_time, time_before_json);
        let mut values = serde_json::Deserializer::from_str(&text[json_start..]).into_iter::<&RawValue>();
        let mut json_bytes = 0;
        while let Some(Ok(value)) = values.next() {
            json_bytes = values.byte_offset();
            self.queue_records_of_json(value.get(), stamp, inner_levels, target);
        }
        // If no value could be read, the text is a line that merely looks like JSON.
        let is_json = json_bytes > 0;
        let rest = if is_json { &text[json_start + json_bytes..] } else { text };
        if let Some(mark_in_rest) = self.recogniser.find_mark(rest.as_bytes()) {
            self.queue_records_of_plain_line(rest, mark_in_rest, stamp, target);
        }
    }

    /// Queues all records within a JSON value. `enclosing_time` is the timestamp around it. `json_levels` limits how deep JSON is nested.
    fn queue_records_of_json(
        &mut self,
        json: &str,
        enclosing_time: Option<LogTimestamp>,
        json_levels: usize,
        target: &mut ReadTarget<'_>,
    ) {
        let recogniser = Rc::clone(&self.recogniser);
        let parser = &mut target.source.parser;
        let mut search = JsonSearch { recogniser: &recogniser, parser, found: Vec::new() };
        // No other value encloses this one.
        let enclosing_values = 0;
        search.search_value_for_records(json, enclosing_values);
        for found in search.found {
            let stamp = more_precise_timestamp(enclosing_time, found.stamp);
            match found.content {
                RecordContent::Line(text) => {
                    let text = plain_text(text.as_bytes());
                    let mark = recogniser.find_mark(text.as_bytes());
                    self.queue_records_of_text(&text, mark, stamp, json_levels, target);
                }
                RecordContent::EngineRecord(record) => {
                    let stamp = time_of_record(&record, stamp, &mut target.source.parser);
                    let mut sink = RecordSink::new(self, target, stamp, NO_RANK);
                    let form = recogniser.read_record(&record, &mut |item| sink.queue_or_store_statement(item));
                    if let Some(form) = form {
                        sink.count_record(form);
                    }
                }
            }
        }
    }

    /// Queues the records in a text that is no JSON. There may be several, because processes that write to one pipe may join their lines. A
    /// record has a timestamp, then a mark (a fixed text that shows its form), then its body. `first_mark` is the first one in the text.
    /// `collector_time` is the timestamp that a log collector added.
    fn queue_records_of_plain_line(
        &mut self,
        text: &str,
        first_mark: MarkMatch,
        collector_time: Option<LogTimestamp>,
        target: &mut ReadTarget<'_>,
    ) {
        let mut rest = text;
        let mut next = Some(first_mark);
        while let Some(mark) = next {
            // A mark without a form belongs to a JSON record, which could not be parsed. The rest of the line may be a prompt.
            let Some(form) = mark.form else { return };
            let before_mark = &rest[..mark.start];
            let behind_mark = &rest[mark.end..];
            let LogSource { prefix_memo, parser, .. } = &mut *target.source;
            let prefix = prefix_memo.read_prefix(before_mark, parser);
            let stamp = more_precise_timestamp(collector_time, prefix.stamp);
            let line_ns = stamp.map(|stamp| stamp.wall_ns);
            let next_mark = self.find_mark_of_next_record(&mark, behind_mark);
            // The body ends where the next record begins, which is at the timestamp before that record's mark.
            let end = next_mark.map_or(behind_mark.len(), |next| find_record_start(behind_mark, next.start));
            let body = &behind_mark[..end];
            let mut sink = RecordSink::new(self, target, stamp, prefix.rank);
            let parsed = (form.parse)(body, line_ns, &mut |item| sink.queue_or_store_statement(item));
            sink.count_record(parsed.map(|()| RecordForm { engine: mark.engine, form: form.name }));
            rest = &behind_mark[end..];
            // `next_mark` has indices in `behind_mark`. `rest` begins `end` bytes later.
            next = next_mark.map(|next| MarkMatch { start: next.start - end, end: next.end - end, ..next });
        }
    }

    /// Finds the mark of another record in the text behind a mark. `None` if the line has no further record.
    fn find_mark_of_next_record(&self, mark: &MarkMatch, text_behind: &str) -> Option<MarkMatch> {
        // A mark in free text may be quoted, so it begins no record.
        if mark.is_last || mark.has_free_text {
            return None;
        }
        self.recogniser.find_mark(text_behind.as_bytes())
    }

    /// Shared text of a statement's rid, which is empty for a statement about a process. Remembers complete rids only, because truncated
    /// ones are later completed from these.
    fn shared_rid(&mut self, rid: &str, is_truncated: bool) -> Rc<str> {
        let is_complete = !rid.is_empty() && !is_truncated;
        if is_complete { self.rids.add_and_share_rid(rid, &mut self.stats) } else { rid.into() }
    }

    /// Adds a derived UTC offset to those that the statistics list. `None` adds none.
    fn list_utc_offset_once(&mut self, offset_s: Option<i32>) {
        // Almost all lines have the offset of the line before, which is in the statistics.
        if self.counted_offset_s != offset_s
            && let Some(offset_s) = offset_s
        {
            self.counted_offset_s = Some(offset_s);
            self.stats.add_utc_offset(offset_s);
        }
    }

    /// Counts a record of this form.
    fn count_record_of_form(&mut self, form: &'static str) {
        // Compares addresses instead of texts, because each form's name is one constant.
        match self.form_counts.iter_mut().find(|count| std::ptr::eq(count.form, form)) {
            Some(count) => count.records += 1,
            None => self.form_counts.push(FormCount { form, records: 1 }),
        }
    }

    /// Whether further unknown lines are only counted.
    fn has_enough_unknown_lines(&self) -> bool {
        self.stats.first_unknown.is_some() && self.unread_lines.has_compared_enough()
    }

    /// Counts a line without a record. The shape of the first one is kept.
    fn count_unknown_line(&mut self, line: &[u8]) {
        self.stats.unknown += 1;
        self.unread_lines.count_line_for_file_kind(line);
        if self.stats.first_unknown.is_none() && !line.trim_ascii().is_empty() {
            self.stats.first_unknown = Some(describe_line_shape(&plain_text(line)));
        }
    }

    /// Passes an event that names the engine to `sink`, unless one has been passed before.
    fn emit_engine_name_once(&mut self, at: MonoNs, sink: &mut dyn FnMut(&Event<'_>)) {
        if self.is_engine_named {
            return;
        }
        self.is_engine_named = true;
        let engine = Engine { name: self.engine_name, ..Engine::default() };
        sink(&Event::new(at, What::Engine(engine)));
    }

    /// Converts a queued statement to an event and passes it to `sink`. Before the first event, passes an event that names the engine. A
    /// statement has the indices of its process and its stage, whose names are stored once.
    pub(super) fn emit_event(&mut self, queued: &QueuedStatement, sink: &mut dyn FnMut(&Event<'_>)) {
        let at = MonoNs(queued.at_ns);
        self.emit_engine_name_once(at, sink);
        let writer = &*self.writer_names[usize::from(queued.writer)];
        let rid = complete_truncated_rid(queued, &mut self.rids, &mut self.stats);
        // The prefill and the decode server log one request under two rids. Its events use that of the prefill server.
        let rid = match self.rooms.prefill_rid(&rid) {
            Some(prefill) => Cow::Borrowed(prefill),
            None => rid,
        };
        let what = match queued.kind {
            QueuedKind::Stage { name, tokens, pending, gap_ns } => {
                let name = &*self.stage_names[usize::from(name)];
                What::Stage(Stage { rid: &rid, name, by: writer, tokens, pending, gap_ns })
            }
            QueuedKind::ProcessState(ref state) => What::LoggedState(LoggedState { by: writer, ..**state }),
            QueuedKind::MergedChunks { chunks } => What::Merged(Merged { rid: &rid, by: writer, chunks }),
        };
        sink(&Event::new(at, what));
    }

    /// Passes the rejected requests to `sink`, if they are of one engine. Called at the end of the last file, which shows whether they are.
    /// So their events come after events of later times.
    pub(super) fn emit_rejections(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        for LoggedRejection { at_ns, status } in
            self.rejections.take_and_count_if_of_one_engine(self.is_engine_named, &mut self.stats)
        {
            self.stats.events += 1;
            sink(&Event::new(MonoNs(at_ns), What::Rejected(Rejection { status })));
        }
    }
}

/// Index of the start of the record whose mark is at `mark_index`. A record starts with the bracket of its timestamp, as in
/// `[2026-01-18 07:55:00 TP0] `. Without a timestamp, it starts with its mark.
fn find_record_start(text: &str, mark_index: usize) -> usize {
    let Some(bracket) = text[..mark_index].rfind('[') else { return mark_index };
    let begins_with_digit = text[bracket + 1..].starts_with(|c: char| c.is_ascii_digit());
    let is_timestamp = begins_with_digit && mark_index - bracket <= MAX_BRACKET_BYTES;
    if is_timestamp { bracket } else { mark_index }
}

/// Number of records of a form.
struct FormCount {
    form: &'static str,
    records: u64,
}

/// The log that is read, and where its statements go.
struct ReadTarget<'t> {
    source: &'t mut LogSource,
    queue: &'t mut StatementQueue,
}

/// Destination of the statements of one record.
struct RecordSink<'s, 't> {
    reader: &'s mut LogRecordReader,
    target: &'s mut ReadTarget<'t>,
    /// Timestamp of the line.
    stamp: Option<LogTimestamp>,
    /// Tag of the process in the line; empty if none.
    rank: &'s str,
    /// Whether any statement has a time.
    is_dated: bool,
    /// Latest time that the record itself states; 0 if it states none.
    latest_stated_ns: u64,
}

impl<'s, 't> RecordSink<'s, 't> {
    /// Creates a sink for the statements of one record. `stamp` is its line's timestamp, and `rank` the tag of its process, like `DP0 TP0`.
    fn new(
        reader: &'s mut LogRecordReader,
        target: &'s mut ReadTarget<'t>,
        stamp: Option<LogTimestamp>,
        rank: &'s str,
    ) -> Self {
        // 0 stands for a record that states no time.
        Self { reader, target, stamp, rank, is_dated: false, latest_stated_ns: 0 }
    }

    /// Queues a statement of the record for its time. A statement that needs no time is stored or counted at once.
    fn queue_or_store_statement(&mut self, statement: &Statement<'_>) {
        match statement.kind {
            StatementKind::RequestHalf(half) => self.reader.rooms.add_half_and_pair_rids(&half),
            StatementKind::ImpossibleDurations => self.reader.stats.impossible += 1,
            StatementKind::ServerAddress(address) => {
                // An address needs no time, so its line does not count as undated.
                self.is_dated = true;
                self.reader.rejections.add_address(address);
            }
            StatementKind::Rejected { status } => {
                // A rejection without a time is dropped, and its line counts as undated.
                let Some(at_ns) = self.stamp.map(|stamp| stamp.wall_ns) else { return };
                self.is_dated = true;
                self.reader.rejections.add_rejection(LoggedRejection { at_ns, status });
            }
            StatementKind::Stage(stage) => {
                let name = index_of_known_or_added_word(&mut self.reader.stage_names, stage.name);
                let Stage { tokens, pending, gap_ns, .. } = stage;
                self.queue_statement(
                    statement,
                    stage.rid,
                    stage.by,
                    QueuedKind::Stage { name, tokens, pending, gap_ns },
                );
            }
            StatementKind::ProcessState(state) => {
                // The name is empty, because the queued statement has the index of its writer.
                let kind = QueuedKind::ProcessState(Box::new(LoggedState { by: "", ..state }));
                self.queue_statement(statement, NO_RID, state.by, kind);
            }
            StatementKind::MergedChunks(merged) => {
                let kind = QueuedKind::MergedChunks { chunks: merged.chunks };
                self.queue_statement(statement, merged.rid, merged.by, kind);
            }
        }
    }

    /// Queues a statement that a process with this role has logged. Drops it if neither the statement nor its line has a time.
    fn queue_statement(&mut self, statement: &Statement<'_>, rid: &str, role: &str, kind: QueuedKind) {
        if let Some(stated_ns) = statement.wall_ns {
            self.latest_stated_ns = self.latest_stated_ns.max(stated_ns);
        }
        let Some(at_ns) = statement.wall_ns.or(self.stamp.map(|stamp| stamp.wall_ns)) else {
            return;
        };
        self.is_dated = true;
        let reader = &mut *self.reader;
        // A statement about a process has no rid.
        let is_rid_truncated = statement.is_rid_truncated && !rid.is_empty();
        let rid = reader.shared_rid(rid, is_rid_truncated);
        let source = &mut *self.target.source;
        // The frontier is the latest time that the file has reached. If the line has no timestamp, the statement's time counts.
        let line_ns = self.stamp.map_or(at_ns, |stamp| stamp.wall_ns);
        source.frontier_ns = source.frontier_ns.max(line_ns);
        let writer =
            index_of_known_or_added_writer(&mut reader.writer_names, source, role, self.rank, reader.has_several_logs);
        self.target.queue.push_statement(QueuedStatement { at_ns, writer, is_rid_truncated, rid, kind });
    }

    /// Counts the record, after all its statements were queued or stored. A record that could not be parsed counts as malformed only.
    fn count_record(self, found: RecordResult) {
        self.reader.record_count += 1;
        let stats = &mut self.reader.stats;
        let Ok(RecordForm { engine, form }) = found else {
            stats.malformed += 1;
            return;
        };
        // The first parsed record names the engine.
        self.reader.engine_name.get_or_insert(engine);
        stats.undated += u64::from(!self.is_dated);
        self.reader.count_record_of_form(form);
        if let Some(stamp) = self.stamp {
            self.count_timestamp_and_derive_offset(&stamp);
        }
    }

    /// Counts what was assumed about the line's timestamp. If the record itself states a time, derives the file's UTC offset from both.
    fn count_timestamp_and_derive_offset(self, stamp: &LogTimestamp) {
        // 0 means that the record states no time.
        let states_time = self.latest_stated_ns > 0;
        if states_time {
            self.target.source.parser.derive_offset_from_event(stamp, self.latest_stated_ns);
        }
        let stats = &mut self.reader.stats;
        stats.zone_assumed += u64::from(stamp.zone == ZoneSource::Assumed);
        stats.year_assumed += u64::from(stamp.is_year_assumed);
        stats.whole_seconds += u64::from(stamp.is_whole_second);
        let is_zone_derived = stamp.zone == ZoneSource::File;
        if is_zone_derived {
            stats.zone_derived += 1;
            self.reader.list_utc_offset_once(self.target.source.parser.derived_offset_s());
        }
    }
}

/// Returns the index of the process that wrote a line of `source`. A new process is added to `writers` under its name.
fn index_of_known_or_added_writer(
    writers: &mut Vec<Box<str>>,
    source: &mut LogSource,
    role: &str,
    rank: &str,
    has_several_logs: bool,
) -> u16 {
    if let Some(known) = source.writers.iter().find(|writer| *writer.role == *role && *writer.rank == *rank) {
        return known.index;
    }
    let name = name_of_writer(role, rank, &source.file.label, has_several_logs);
    let index = index_of_known_or_added_word(writers, &name);
    // The log may contain any number of ranks, so the length of this list is bounded.
    if source.writers.len() < MAX_WORDS {
        source.writers.push(LogWriter { role: role.into(), rank: rank.into(), index });
    }
    index
}

/// Name of a process: `scheduler TP0`, or `scheduler TP0 (decode.log)` if there are several logs. A process without role and rank has the
/// name of its log.
fn name_of_writer(role: &str, rank: &str, log: &str, has_several_logs: bool) -> String {
    let process = format!("{role} {rank}");
    let process = process.trim();
    if process.is_empty() {
        log.to_owned()
    } else if has_several_logs {
        format!("{process} ({log})")
    } else {
        process.to_owned()
    }
}

/// Index of a word, which is added if it is new. Stage names and ranks come from the log, so their number must be bounded.
fn index_of_known_or_added_word(words: &mut Vec<Box<str>>, word: &str) -> u16 {
    if let Some(known) = words.iter().position(|known| **known == *word) {
        return known as u16;
    }
    // A full list has `OTHER`, which stands for all further words.
    if words.len() >= MAX_WORDS {
        return words.iter().position(|known| &**known == OTHER).unwrap_or(MAX_WORDS - 1) as u16;
    }
    // The last free place is for `OTHER`.
    let added = if words.len() == MAX_WORDS - 1 { OTHER } else { word };
    words.push(added.into());
    (words.len() - 1) as u16
}

/// The whole rid of a statement. A truncated rid that cannot be completed is followed by `...`. Counts both cases in `stats`.
fn complete_truncated_rid<'r>(
    queued: &'r QueuedStatement,
    rids: &'r mut KnownRids,
    stats: &mut ImportStats,
) -> Cow<'r, str> {
    if !queued.is_rid_truncated {
        return Cow::Borrowed(&queued.rid);
    }
    match rids.complete_truncated_rid(&queued.rid, stats) {
        Some(whole) => Cow::Borrowed(whole),
        None => Cow::Owned(format!("{}...", queued.rid)),
    }
}
