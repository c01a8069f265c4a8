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
    /// Analyses an event and writes it to the recording, if there is one. Before it comes a tick if one is due. Fails if the recording
    /// cannot be created.
    fn apply_event(&mut self, event: &Event<'_>) -> Result<(), RecordError> {
        self.create_recording_at_first_event()?;
        // The tick comes before the event, as in a live run.
        self.tick_if_due(event.at);
        self.analysis.apply(event);
        if let Some(recorder) = &mut self.recorder {
            recorder.event(event);
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
    fn tick_if_due(&mut self, now: MonoNs) {
        let following_tick = MonoNs(now.0.saturating_add(TICK_NS));
        let next_tick = *self.next_tick.get_or_insert(following_tick);
        if now >= next_tick {
            self.tick(now);
            self.next_tick = Some(following_tick);
        }
    }

    /// Lets the analysis look for findings at this time, and writes the tick to the recording, if there is one.
    fn tick(&mut self, now: MonoNs) {
        self.analysis.tick(now);
        if let Some(recorder) = &mut self.recorder {
            recorder.tick(now);
        }
    }
}

/// Reads all files to their end, and applies their events to the run. Fails if the recording cannot be created.
fn apply_all_events(
    import: &mut Import,
    run: &mut ImportedRun,
    show_progress: &mut dyn FnMut(ImportProgress),
) -> Result<(), RecordError> {
    let mut failed = None;
    let mut has_more = true;
    while has_more && failed.is_none() {
        has_more = import.read_some(&mut |event| {
            // One step passes several events, and cannot be ended by an error of the first.
            if failed.is_none() {
                failed = run.apply_event(event).err();
            }
        });
        show_progress(import.progress());
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(()),
    }
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
    import.check_any_recognised()?;
    // The events after the last tick are judged, too.
    run.tick(run.analysis.ledger().now());
    let mut notes = import_notes(import.stats(), zone.as_ref());
    notes.extend(import.describe_unread_kinds().into_iter().map(|kind| format!("log: {kind}")));
    let shows_no_end = run.analysis.ledger().totals().requests.finished == 0;
    if shows_no_end {
        notes.push(String::from(
            "log: no line for the end of a request; requests of its last ten minutes count as live",
        ));
    }
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

/// Describes the assumptions made and the lines not read. Each kind of line is mentioned only if there are any.
fn import_notes(stats: &ImportStats, zone: Option<&TimeZone>) -> Vec<String> {
    let mut notes = vec![format!(
        "log: {} in {}, {} of a known form, {} of unknown form",
        plural(stats.lines, "line"),
        plural(stats.files, "file"),
        count(stats.known_records()),
        count(stats.unknown)
    )];
    for (amount, description) in counted_notes(stats, zone) {
        if amount > 0 {
            notes.push(format!("log: {} {description}", count(amount)));
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

/// Number of lines of each kind that needs a note, or of evicted rids, with what the note says of them. A number may be 0.
fn counted_notes(stats: &ImportStats, zone: Option<&TimeZone>) -> Vec<(u64, String)> {
    // Full rids are needed only for truncated ones.
    let truncated_rids = stats.rids_completed + stats.rids_ambiguous + stats.rids_incomplete;
    let evicted = if truncated_rids > 0 { stats.rids_evicted } else { 0 };
    let zone = match zone {
        Some(zone) => zone.iana_name().map_or_else(|| String::from("the given zone"), str::to_owned),
        None => String::from("UTC"),
    };
    let offsets = stats.offsets.iter().map(String::as_str).collect::<Vec<_>>().join(" and ");
    vec![
        (stats.zone_assumed, format!("have no time zone and were read as {zone} (--timezone)")),
        (
            stats.zone_derived,
            format!("have no time zone and were read at {offsets}, which other times in the files show"),
        ),
        (stats.year_assumed, String::from("have no year (--year)")),
        (stats.whole_seconds, String::from("have times in whole seconds: intervals are accurate to one second only")),
        (stats.malformed, String::from("begin like a known form but continue differently")),
        (
            stats.impossible,
            String::from("have durations that cannot be, such as one since 1970: only the time of their end is used"),
        ),
        (stats.undated, String::from("have a known form but no timestamp: skipped")),
        (stats.cut, String::from("were longer than 1 MiB and truncated")),
        (stats.late, String::from("were too late to be sorted (--reorder)")),
        (stats.passed_early, String::from("were processed early because the sort buffer was full (--max-held)")),
        (stats.rids_ambiguous, String::from("have a truncated rid that matches several: kept separate")),
        (
            stats.rids_incomplete,
            String::from(
                "have a truncated rid whose full form is not in the log: requests with the same prefix count as one",
            ),
        ),
        (evicted, String::from("full rids were evicted before truncated ones could be matched")),
    ]
}
