//! Log files of an engine as a source: their events are analysed, with ticks at intervals of their own time.

use std::path::PathBuf;

use jiff::tz::TimeZone;
use logs::{Import, ImportOptions, ImportProgress, ImportStats};
use recording::{RecordError, RecordOptions, Recorder, RecordingHeader};
use serde_json::{Value, json};
use trace::clock::Anchor;
use trace::event::Event;
use trace::words::{count, plural};
use trace::{Analysis, Config, MonoNs, ReportInput};

/// Log time between detector runs. The detectors that apply to logs judge lasting conditions.
const TICK_NS: u64 = 5_000_000_000;

/// What was read from the files.
pub struct ImportedRun {
    /// The analysis of their events.
    pub analysis: Analysis,
    /// Statements for the report, complete at the end.
    pub input: ReportInput,
    /// The recording, if one was asked for and the files have an event.
    pub recorder: Option<Recorder>,
    /// The recording until its first event.
    target: Option<RecordingTarget>,
    next_tick: Option<MonoNs>,
}

/// A recording to be made.
pub struct RecordingTarget {
    /// Its path.
    pub path: PathBuf,
    /// Whether it replaces an existing file.
    pub force: bool,
    /// Limits of the analysis.
    pub config: Config,
}

impl ImportedRun {
    /// Analyses an event of a log and writes it to the recording, if there is one. If a tick is due, which looks for findings, it comes
    /// first. Fails if the recording cannot be created.
    fn analyse_and_record_event(&mut self, event: &Event<'_>) -> Result<(), RecordError> {
        self.create_recording_at_first_event()?;
        // The tick comes before the event, as in a live run.
        self.analyse_and_record_tick_if_due(event.at);
        self.analysis.apply(event);
        if let Some(recorder) = &mut self.recorder {
            recorder.record_event(event);
        }
        Ok(())
    }

    /// Creates the recording, if one was asked for. It is not created before the first event, so that an empty import does not overwrite an
    /// older recording. Does nothing at later events.
    fn create_recording_at_first_event(&mut self) -> Result<(), RecordError> {
        let Some(RecordingTarget { path, force, config }) = self.target.take() else { return Ok(()) };
        // The log's clock starts at the epoch.
        let header = RecordingHeader { anchor: Anchor::default(), ..RecordingHeader::for_source("import", config) };
        let options = RecordOptions { force, ..RecordOptions::offline() };
        self.recorder = Some(Recorder::create(&path, &header, options)?);
        Ok(())
    }

    /// Looks for findings if the interval since the last tick is over at `now`. The first event only sets the time of the first tick.
    fn analyse_and_record_tick_if_due(&mut self, now: MonoNs) {
        let following_tick = MonoNs(now.0.saturating_add(TICK_NS));
        let next_tick = *self.next_tick.get_or_insert(following_tick);
        if now >= next_tick {
            self.analyse_and_record_tick(now);
            self.next_tick = Some(following_tick);
        }
    }

    /// Lets the analysis look for findings at this time, and writes the tick to the recording, if there is one.
    fn analyse_and_record_tick(&mut self, now: MonoNs) {
        self.analysis.tick(now);
        if let Some(recorder) = &mut self.recorder {
            recorder.record_tick(now);
        }
    }
}

/// Reads all files to their end, and applies their events to the run. Fails if the recording cannot be created.
fn apply_all_events(
    import: &mut Import,
    run: &mut ImportedRun,
    show_progress: &mut dyn FnMut(ImportProgress),
) -> Result<(), RecordError> {
    let mut applied = Ok(());
    let mut has_more = true;
    while has_more && applied.is_ok() {
        has_more = import.read_some_lines_and_pass_events(&mut |event| {
            // One step passes several events and does not end at an error. The events after an error are ignored.
            if applied.is_ok() {
                applied = run.analyse_and_record_event(event);
            }
        });
        show_progress(import.progress());
    }
    applied
}

/// Analyses all files, and writes a recording if there is a `target`. Calls `show_progress` after each step. Fails if the import cannot
/// start, the recording cannot be created, or no line was recognised.
pub fn import_logs(
    paths: &[PathBuf],
    options: ImportOptions,
    config: Config,
    target: Option<RecordingTarget>,
    show_progress: &mut dyn FnMut(ImportProgress),
) -> anyhow::Result<ImportedRun> {
    let zone = options.zone.clone();
    let mut import = Import::open(paths, engines::LOGS, options)?;
    let input = ReportInput::for_source("import");
    let mut run = ImportedRun { analysis: Analysis::new(config), input, target, recorder: None, next_tick: None };
    apply_all_events(&mut import, &mut run, show_progress)?;
    import.fail_if_nothing_recognised()?;
    // The events after the last tick are judged, too.
    run.analyse_and_record_tick(run.analysis.ledger().now());
    let notes = notes_for_report(&import, &run.analysis, zone.as_ref());
    run.input = ReportInput {
        cpu_ns: Some(session::own::cpu_ns()),
        rss_bytes: session::own::rss_bytes(),
        degraded: notes.into_iter().map(Value::from).collect(),
        wire: Some(json!({ "log": import.stats() })),
        // The log's clock starts at the epoch.
        wall: Some(Anchor::default()),
        ..run.input
    };
    Ok(run)
}

/// Notes for the report: the assumptions made, the lines and the kinds of line that were not read, and whether the files lack the ends of
/// requests. `given_zone` is the time zone that the user gave for times without one.
fn notes_for_report(import: &Import, analysis: &Analysis, given_zone: Option<&TimeZone>) -> Vec<String> {
    let mut notes = describe_assumptions_and_unread_lines(import.stats(), given_zone);
    notes.extend(import.describe_unread_kinds().into_iter().map(|kind| format!("log: {kind}")));
    let shows_no_end = analysis.ledger().totals().requests.finished == 0;
    if shows_no_end {
        notes.push(String::from(
            "log: no line for the end of a request; requests of its last ten minutes count as live",
        ));
    }
    notes
}

/// Describes the assumptions made and the lines not read. Each kind of line is mentioned only if there are any.
fn describe_assumptions_and_unread_lines(stats: &ImportStats, given_zone: Option<&TimeZone>) -> Vec<String> {
    let mut notes = vec![format!(
        "log: {} in {}, {} of a known form, {} of unknown form",
        plural(stats.lines, "line"),
        plural(stats.files, "file"),
        count(stats.known_records()),
        count(stats.unknown)
    )];
    for CountedNote { lines, description } in notes_with_line_counts(stats, given_zone) {
        if lines > 0 {
            notes.push(format!("log: {} {description}", count(lines)));
        }
    }
    if let Some(why) = stats.rejected_uncounted_why {
        notes.push(format!(
            "log: {} of requests with an error status, which name no engine, are not counted: {why}",
            plural(stats.rejected_uncounted, "access line")
        ));
    }
    if stats.files_skipped > 0 {
        notes.push(format!(
            "log: {} skipped: {}{}",
            plural(stats.files_skipped, "file"),
            stats.skipped.join("; "),
            if stats.files_skipped > stats.skipped.len() as u64 { "; .." } else { "" }
        ));
    }
    notes.extend(stats.broken.iter().map(|why| format!("log: {why}; the lines before it are included")));
    notes
}

/// A note about a number of lines.
struct CountedNote {
    /// Number of lines, or of request ids in the note about these. May be 0.
    lines: u64,
    /// What the note says of them.
    description: String,
}

impl CountedNote {
    fn new(lines: u64, description: impl Into<String>) -> Self {
        Self { lines, description: description.into() }
    }
}

/// A note for each kind of line that needs one, with the number of such lines, which may be 0. `given_zone` is the time zone that the user
/// gave for times without one.
fn notes_with_line_counts(stats: &ImportStats, given_zone: Option<&TimeZone>) -> Vec<CountedNote> {
    // Full rids (ids of requests) are needed only to complete truncated ones.
    let truncated_rids = stats.rids_completed + stats.rids_ambiguous + stats.rids_incomplete;
    let evicted = if truncated_rids > 0 { stats.rids_evicted } else { 0 };
    let zone = match given_zone {
        Some(zone) => zone.iana_name().unwrap_or("the given zone"),
        None => "UTC",
    };
    let offsets = stats.offsets.iter().map(String::as_str).collect::<Vec<_>>().join(" and ");
    vec![
        CountedNote::new(stats.zone_assumed, format!("have no time zone and were read as {zone} (--timezone)")),
        CountedNote::new(
            stats.zone_derived,
            format!("have no time zone and were read at {offsets}, which other times in the files show"),
        ),
        CountedNote::new(stats.year_assumed, "have no year (--year)"),
        CountedNote::new(stats.whole_seconds, "have times in whole seconds: intervals are accurate to one second only"),
        CountedNote::new(stats.malformed, "begin like a known form but continue differently"),
        CountedNote::new(
            stats.impossible,
            "have durations that cannot be, such as one since 1970: only the time of their end is used",
        ),
        CountedNote::new(stats.undated, "have a known form but no timestamp: skipped"),
        CountedNote::new(stats.cut, "were longer than 1 MiB and truncated"),
        CountedNote::new(stats.late, "were too late to be sorted (--reorder)"),
        CountedNote::new(stats.passed_early, "were processed early because the sort buffer was full (--max-held)"),
        CountedNote::new(stats.rids_ambiguous, "have a truncated rid that matches several: kept separate"),
        CountedNote::new(
            stats.rids_incomplete,
            "have a truncated rid whose full form is not in the log: requests with the same prefix count as one",
        ),
        CountedNote::new(evicted, "full rids were evicted before truncated ones could be matched"),
    ]
}
