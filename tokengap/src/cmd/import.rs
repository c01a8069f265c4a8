//! `tokengap import`: reads engine log files as a source.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use jiff::tz::TimeZone;
use logs::{Import, ImportOptions, ImportStats};
use outputs::report::Report;
use recording::{RecordError, RecordOptions, Recorder, RecordingHeader};
use serde_json::{Value, json};
use trace::clock::Anchor;
use trace::event::Event;
use trace::words::{bytes, count, plural};
use trace::{Analysis, Config, MonoNs, ReportInput};

use crate::args::{LimitArgs, ReportArgs};
use crate::cmd::report::ReportOutput;
use crate::progress::Progress;
use crate::{app, args, confinement};

/// Analyse an engine's log files: shows where first tokens waited, according to the engine's own log lines.
///
/// Reads plain, gzip and zstd files, joins rotated files, searches folders recursively, and sorts lines by time. Recognises
/// [TRACE ..] and [TOK ..] lines, streaming backlog warnings, request logs, request metrics, time stats and failed health checks (docs/reference/import.md).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Log files, and folders with log files.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Time zone of timestamps without one: an IANA name such as Europe/Berlin, an offset such as +01:00, or system [default: the offset
    /// that the files themselves show, or UTC].
    #[arg(long, value_name = "ZONE", value_parser = parse_zone)]
    timezone: Option<TimeZone>,

    /// Year of timestamps without one [default: the year of the file's last modification].
    #[arg(long, value_name = "YEAR", value_parser = clap::value_parser!(i16).range(1970..=2100))]
    year: Option<i16>,

    /// Sort lines within this span of log time.
    #[arg(long, value_name = "T", default_value = "2m", value_parser = args::parse_duration)]
    reorder: Duration,

    /// Maximum number of lines buffered for sorting.
    #[arg(long, value_name = "N", default_value_t = ImportOptions::default().max_held_lines)]
    max_held: usize,

    /// Maximum number of files read.
    #[arg(long, value_name = "N", default_value_t = ImportOptions::default().max_files)]
    max_files: usize,

    /// Write a recording to this file instead of printing the report.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    #[command(flatten)]
    report_output: ReportOutput,

    #[command(flatten)]
    limits: LimitArgs,

    #[command(flatten)]
    report: ReportArgs,
}

/// Log time between detector runs. The detectors that apply to logs judge lasting conditions.
const TICK_NS: u64 = 5_000_000_000;

/// `tokengap import`: reads engine logs, and prints a report or writes a recording.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let paths: Vec<&Path> = args.paths.iter().map(PathBuf::as_path).collect();
    confinement::confine_to_files(&paths, &[args.record.as_deref(), args.report_output.output.file()]);
    import_files(args)
}

/// Imports the files, and refuses to replace a recording before it reads them.
fn import_files(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(path) = args.record.as_ref().filter(|path| path.exists() && !args.report_output.output.force) {
        return Err(RecordError::Exists(path.clone()).into());
    }
    let ReadLogs { analysis, input, recorder } = read_logs(args)?;
    let report = Report::of(&analysis, &input);
    let Some(recorder) = recorder else {
        return args.report_output.write(&report);
    };
    let path = recorder.path().to_owned();
    let written = recorder.finish(&input)?;
    if let Some(why) = written.stopped {
        bail!("{why}");
    }
    let events = plural(report.own.events, "event");
    let path = path.display();
    errln!("tokengap: {events} written to {path} ({})", bytes(written.bytes));
    Ok(app::exit_code(report.severity, args.report_output.fail_on))
}

/// What was read from all files.
struct ReadLogs {
    analysis: Analysis,
    input: ReportInput,
    /// The recording, if one was asked for and the files have an event.
    recorder: Option<Recorder>,
}

/// The analysis of the events, with ticks at intervals of their own time.
struct ImportedRun<'a> {
    args: &'a Args,
    config: Config,
    analysis: Analysis,
    recorder: Option<Recorder>,
    next_tick: Option<MonoNs>,
}

impl ImportedRun<'_> {
    fn apply(&mut self, event: &Event<'_>) -> Result<(), RecordError> {
        // The file is created at the first event, so that an empty import does not overwrite an older recording.
        if let Some(path) = &self.args.record
            && self.recorder.is_none()
        {
            self.recorder = Some(create_recording(path, &self.config, self.args.report_output.output.force)?);
        }
        let following_tick = MonoNs(event.at.0.saturating_add(TICK_NS));
        if event.at >= *self.next_tick.get_or_insert(following_tick) {
            // Before the event, as in a live run.
            self.tick(event.at);
            self.next_tick = Some(following_tick);
        }
        self.analysis.apply(event);
        if let Some(recorder) = &mut self.recorder {
            recorder.event(event);
        }
        Ok(())
    }

    fn tick(&mut self, now: MonoNs) {
        self.analysis.tick(now);
        if let Some(recorder) = &mut self.recorder {
            recorder.tick(now);
        }
    }
}

/// Reads all files, and writes a recording if requested.
fn read_logs(args: &Args) -> anyhow::Result<ReadLogs> {
    let options = ImportOptions {
        zone: args.timezone.clone(),
        year: args.year,
        window_ns: u64::try_from(args.reorder.as_nanos()).context("--reorder is too long")?,
        max_held_lines: args.max_held,
        max_files: args.max_files,
        ..ImportOptions::default()
    };
    let mut import = Import::open(&args.paths, engines::LOGS, options)?;
    let config = Config { limits: args.limits.limits(), engines: engines::FACTS, ..Config::default() };
    let mut run = ImportedRun { args, config, analysis: Analysis::new(config), recorder: None, next_tick: None };
    let mut failed = None;
    let mut progress = Progress::labelled("importing");
    let mut has_more = true;
    while has_more && failed.is_none() {
        has_more = import.read_some(&mut |event| {
            // One step passes several events, and cannot be ended by an error of the first.
            if failed.is_none() {
                failed = run.apply(event).err();
            }
        });
        let done = import.progress();
        progress.set_position(done.read_bytes, done.total_bytes);
    }
    drop(progress);
    if let Some(error) = failed {
        return Err(error.into());
    }
    import.check_any_recognised()?;
    run.tick(run.analysis.ledger().now());
    let ImportedRun { analysis, recorder, .. } = run;
    let mut notes = import_notes(import.stats(), args);
    notes.extend(import.describe_unread_kinds().into_iter().map(|kind| format!("log: {kind}")));
    if analysis.ledger().totals().requests.finished == 0 {
        notes.push(String::from(
            "log: no line for the end of a request; requests of its last ten minutes count as live",
        ));
    }
    let input = ReportInput {
        slowest: args.report.slowest,
        cpu_ns: Some(session::own::cpu_ns()),
        rss_bytes: session::own::rss_bytes(),
        degraded: notes.into_iter().map(Value::from).collect(),
        wire: Some(json!({ "log": import.stats() })),
        wall: Some(Anchor::default()),
        ..ReportInput::for_source("import")
    };
    Ok(ReadLogs { analysis, input, recorder })
}

/// Creates a recording on the log's clock, which starts at the epoch.
fn create_recording(path: &Path, config: &Config, force: bool) -> Result<Recorder, RecordError> {
    let header = RecordingHeader { anchor: Anchor::default(), ..RecordingHeader::for_source("import", *config) };
    let options = RecordOptions { force, ..RecordOptions::offline() };
    Recorder::create(path, &header, options)
}

/// Describes the assumptions made and the lines not read.
fn import_notes(stats: &ImportStats, args: &Args) -> Vec<String> {
    let mut notes = vec![format!(
        "log: {} in {}, {} of a known form, {} of unknown form",
        plural(stats.lines, "line"),
        plural(stats.files, "file"),
        count(stats.known_records()),
        count(stats.unknown)
    )];
    let cut = stats.rids_completed + stats.rids_ambiguous + stats.rids_incomplete;
    let evicted = if cut > 0 { stats.rids_evicted } else { 0 };
    let zone = match &args.timezone {
        Some(zone) => zone.iana_name().map_or_else(|| String::from("the given zone"), str::to_owned),
        None => String::from("UTC"),
    };
    let offsets = stats.offsets.iter().map(String::as_str).collect::<Vec<_>>().join(" and ");
    for (n, what) in [
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
    ] {
        if n > 0 {
            notes.push(format!("log: {} {what}", count(n)));
        }
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

/// Parses the name of a time zone, an offset such as `+01:00`, or `system`.
fn parse_zone(text: &str) -> Result<TimeZone, String> {
    if text == "system" {
        return Ok(TimeZone::system());
    }
    if let Some(offset) = parse_offset(text) {
        return Ok(TimeZone::fixed(offset));
    }
    TimeZone::get(text).map_err(|e| format!("{e}; expected an IANA name, an offset such as +01:00, or system"))
}

/// Parses an offset such as `+01:00`; `None` for anything else.
fn parse_offset(text: &str) -> Option<jiff::tz::Offset> {
    /// Midnight of 2000-01-01 in UTC, in seconds since the epoch.
    const MIDNIGHT_S: i64 = 946_684_800;
    if !text.starts_with(['+', '-']) {
        return None;
    }
    // The library has no parser of an offset alone, so it is read behind a date. Midnight is earlier in the east.
    let date = format!("2000-01-01T00:00:00{text}");
    let midnight_there = jiff::fmt::temporal::DateTimeParser::new().parse_timestamp(&date).ok()?;
    let seconds_east = MIDNIGHT_S - midnight_there.as_second();
    jiff::tz::Offset::from_seconds(i32::try_from(seconds_east).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &[&str]) -> Args {
        Line::parse_from(["import"].iter().chain(line)).args
    }

    const LOG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../engines/tests/logs/report/decode.log");

    #[test]
    fn a_recording_of_an_import_gives_the_same_report() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.tgap");
        let line = args(&[LOG, "--max-finished", "2", "--record", &path.to_string_lossy()]);
        let ReadLogs { analysis, input, recorder } = read_logs(&line).expect("read");
        let report = Report::of(&analysis, &input);
        recorder.expect("made").finish(&input).expect("finished");
        let recording = recording::Recording::open(&path).expect("opened");
        let (replayed, closing) = recording::analyse(&recording, engines::FACTS, &mut |_, _| {}).expect("replayed");
        let mut replayed = Report::of(&replayed, &closing);
        assert_eq!(recording.header().config.limits.finished_kept, 2);
        // Wall-clock times derive from the header's anchor, which is the epoch itself.
        assert_eq!(recording.header().anchor, Anchor::default());
        replayed.window_wall_ns = report.window_wall_ns;
        assert_eq!(replayed.to_json(), report.to_json());
    }

    #[test]
    fn a_failed_import_does_not_overwrite_a_recording() {
        let folder = tempfile::tempdir().expect("a folder");
        let (log, old) = (folder.path().join("x.log"), folder.path().join("old.tgap"));
        std::fs::write(&log, "nothing known\n").expect("written");
        std::fs::write(&old, "precious").expect("written");
        let (log, old) = (log.to_string_lossy(), old.to_string_lossy());
        assert!(import_files(&args(&[&log, "--record", &old, "--force"])).is_err());
        assert!(import_files(&args(&[LOG, "--record", &old])).is_err(), "not without --force");
        assert_eq!(std::fs::read_to_string(&*old).expect("there"), "precious");
    }

    #[test]
    fn time_zones_parse_from_names_and_offsets() {
        for (text, seconds) in [("+01:00", 3_600), ("-08:30", -30_600), ("UTC", 0), ("Asia/Tokyo", 32_400)] {
            let at = jiff::Timestamp::UNIX_EPOCH;
            let zone = parse_zone(text).expect(text);
            assert_eq!(zone.to_offset(at).seconds(), seconds, "{text}");
        }
        assert!(parse_zone("Nowhere").is_err() && parse_zone("+99:00").is_err());
    }
}
