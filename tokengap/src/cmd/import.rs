//! `tokengap import`: reads engine log files as a source.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use jiff::tz::TimeZone;
use logs::ImportOptions;
use outputs::report::Report;
use recording::RecordError;
use replay::import::{self, ImportedRun, RecordingTarget};
use trace::Config;
use trace::words::{bytes, plural};

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

/// `tokengap import`: reads engine logs, and prints a report or writes a recording.
pub(crate) fn run_import(args: &Args) -> anyhow::Result<ExitCode> {
    let paths: Vec<&Path> = args.paths.iter().map(PathBuf::as_path).collect();
    confinement::confine_to_files(&paths, &[args.record.as_deref(), args.report_output.output.file()]);
    import_files_and_report(args)
}

/// Imports the files, then prints the report or completes the recording.
fn import_files_and_report(args: &Args) -> anyhow::Result<ExitCode> {
    // Checked before the files are read, which may take long.
    if let Some(path) = &args.record
        && path.exists()
        && !args.report_output.output.force
    {
        return Err(RecordError::Exists(path.clone()).into());
    }
    let ImportedRun { analysis, input, recorder, .. } = read_logs_and_record(args)?;
    let report = Report::of(&analysis, &input);
    // Without --record, the report is the result.
    let Some(recorder) = recorder else { return args.report_output.write(&report) };
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

/// Reads all files, and writes a recording if requested.
fn read_logs_and_record(args: &Args) -> anyhow::Result<ImportedRun> {
    let options = ImportOptions {
        zone: args.timezone.clone(),
        year: args.year,
        window_ns: u64::try_from(args.reorder.as_nanos()).context("--reorder is too long")?,
        max_held_lines: args.max_held,
        max_files: args.max_files,
        ..ImportOptions::default()
    };
    let config = Config { limits: args.limits.limits(), engines: engines::FACTS, ..Config::default() };
    let force = args.report_output.output.force;
    let target = args.record.clone().map(|path| RecordingTarget { path, force, config });
    let mut progress = Progress::labelled("importing");
    let mut run = import::import_logs(&args.paths, options, config, target, &mut |done| {
        progress.draw_position_if_due(done.read_bytes, done.total_bytes);
    })?;
    run.input.slowest = args.report.slowest;
    Ok(run)
}

/// Parses the name of a time zone, an offset such as `+01:00`, or `system`.
fn parse_zone(text: &str) -> Result<TimeZone, String> {
    if text == "system" {
        return Ok(TimeZone::system());
    }
    if let Some(offset) = parse_offset(text) {
        return Ok(TimeZone::fixed(offset));
    }
    TimeZone::get(text).map_err(|error| format!("{error}; expected an IANA name, an offset such as +01:00, or system"))
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
    use trace::clock::Anchor;

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
        let ImportedRun { analysis, input, recorder, .. } = read_logs_and_record(&line).expect("read");
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
        assert!(import_files_and_report(&args(&[&log, "--record", &old, "--force"])).is_err());
        assert!(import_files_and_report(&args(&[LOG, "--record", &old])).is_err(), "not without --force");
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
