//! `tokengap import`: engine log files as a source.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use jiff::tz::TimeZone;
use serde_json::{Value, json};
use trace::detect::Severity;
use trace::import::{Import, Options, Stats};
use trace::ledger::Limits;
use trace::report::ReportInput;
use trace::words::{count, plural};
use trace::{Analysis, Config, MonoNs};

use crate::{app, cli, own};

/// Read an engine's log files: where its requests' first tokens waited, from what the engine itself wrote.
///
/// Files may be plain, gzip or zstd, folders are walked, rotated sets belong together, lines may come out of order. Known are
/// [TRACE ..] and [TOK ..] lines, streaming backlog warnings, request logs, request metrics and time stats (docs/IMPORT.md).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Log files, and folders that hold them.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// The zone of stamps that name none: an IANA name such as Europe/Berlin, an offset such as +01:00, or system.
    #[arg(long, value_name = "ZONE", default_value = "UTC", value_parser = zone)]
    timezone: TimeZone,

    /// The year of stamps that name none [default: that of the file's last change].
    #[arg(long, value_name = "YEAR", value_parser = clap::value_parser!(i16).range(1970..=2100))]
    year: Option<i16>,

    /// Put lines in order over this much log time.
    #[arg(long, value_name = "T", default_value = "2m", value_parser = cli::duration)]
    reorder: Duration,

    /// Lines held back for that at most.
    #[arg(long, value_name = "N", default_value_t = Options::default().held_lines)]
    max_held: usize,

    /// Files read at most.
    #[arg(long, value_name = "N", default_value_t = Options::default().files)]
    max_files: usize,

    /// Print the report as JSON, schema tokengap.report/1.
    #[arg(long)]
    json: bool,

    /// Exit with 1 when a finding is at least this severe.
    #[arg(long, value_name = "SEVERITY", value_parser = cli::severity)]
    fail_on: Option<Severity>,

    /// Requests followed at once; the oldest are given up, and counted, beyond it.
    #[arg(long, value_name = "N", default_value_t = Limits::default().live_rids, value_parser = cli::at_least_one)]
    max_live: usize,

    /// Requests to list in the report as the slowest; 0 lists none.
    #[arg(long, value_name = "N", default_value_t = 10)]
    slowest: usize,
}

/// Log time between two looks of the detectors: those that matter to logs judge what lasts.
const TICK_NS: u64 = 5_000_000_000;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let options = Options {
        zone: args.timezone.clone(),
        year: args.year,
        window_ns: u64::try_from(args.reorder.as_nanos()).context("--reorder is too long")?,
        held_lines: args.max_held,
        files: args.max_files,
        ..Options::default()
    };
    let mut import = Import::open(&args.paths, options)?;
    let mut analysis = Analysis::new(Config {
        limits: Limits {
            live_rids: args.max_live,
            ..Limits::default()
        },
        ..Config::default()
    });
    let mut next_tick = None;
    let mut more = true;
    while more {
        more = import.next(&mut |event| {
            let due = *next_tick.get_or_insert(MonoNs(event.at.0 + TICK_NS));
            if event.at >= due {
                analysis.tick(event.at);
                next_tick = Some(MonoNs(event.at.0 + TICK_NS));
            }
            analysis.apply(event);
        });
    }
    import.check()?;
    let end = analysis.ledger().now();
    analysis.tick(end);
    let stats = import.stats();
    let mut notes = notes(stats, args);
    if analysis.ledger().totals().requests.finished == 0 {
        notes.push(String::from(
            "log: tells of no request's end: those of its last ten minutes count as live",
        ));
    }
    let report = analysis.report(&ReportInput {
        slowest: args.slowest,
        cpu_ns: Some(own::cpu_ns()),
        rss_bytes: own::rss_bytes(),
        degraded: notes.into_iter().map(Value::from).collect(),
        wire: Some(json!({ "log": stats })),
        ..ReportInput::of("import")
    });
    app::print(&report, args.json)?;
    let failed = args.fail_on.is_some_and(|least| report.worst() >= Some(least));
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// What was assumed and what was not read, in words.
fn notes(stats: &Stats, args: &Args) -> Vec<String> {
    let mut notes = vec![format!(
        "log: {} in {}, {} of a known form, {} of none",
        plural(stats.lines, "line"),
        plural(stats.files, "file"),
        count(stats.known()),
        count(stats.unknown)
    )];
    let zone = args
        .timezone
        .iana_name()
        .map_or_else(|| String::from("the given zone"), str::to_owned);
    for (n, what) in [
        (
            stats.zone_assumed,
            format!("name no zone and were read as {zone} (--timezone)"),
        ),
        (stats.year_assumed, String::from("name no year (--year)")),
        (
            stats.whole_seconds,
            String::from("are dated in whole seconds: what lies between them is known to a second only"),
        ),
        (
            stats.malformed,
            String::from("begin like a known form and do not go on like it"),
        ),
        (stats.undated, String::from("have a known form and no time: left out")),
        (stats.cut, String::from("were longer than 64 KiB and cut there")),
        (stats.late, String::from("came too late to be put in order (--reorder)")),
        (
            stats.hurried,
            String::from("were not waited for: too many were held (--max-held)"),
        ),
        (
            stats.rids_ambiguous,
            String::from("have a rid that is cut short and fits several: kept apart"),
        ),
        (
            stats.rids_incomplete,
            String::from("have a rid that is cut short and is nowhere whole: requests that begin alike count as one"),
        ),
        (
            stats.rids_forgotten,
            String::from("whole rids were forgotten to make room"),
        ),
    ] {
        if n > 0 {
            notes.push(format!("log: {} {what}", count(n)));
        }
    }
    if stats.files_skipped > 0 {
        notes.push(format!(
            "log: {} passed over: {}{}",
            plural(stats.files_skipped, "file"),
            stats.skipped.join("; "),
            if stats.files_skipped > stats.skipped.len() as u64 {
                "; .."
            } else {
                ""
            }
        ));
    }
    notes.extend(
        stats
            .broken
            .iter()
            .map(|why| format!("log: {why}; what was read before it counts")),
    );
    notes
}

fn zone(text: &str) -> Result<TimeZone, String> {
    if text == "system" {
        return Ok(TimeZone::system());
    }
    let offset = format!("2000-01-01T00:00:00{text}");
    if text.starts_with(['+', '-'])
        && let Ok(pieces) = jiff::fmt::temporal::DateTimeParser::new().parse_timestamp(&offset)
    {
        let seconds = 946_684_800 - pieces.as_second();
        let offset = jiff::tz::Offset::from_seconds(i32::try_from(seconds).map_err(|e| e.to_string())?);
        return offset.map(TimeZone::fixed).map_err(|e| e.to_string());
    }
    TimeZone::get(text).map_err(|e| format!("{e}; an IANA name, an offset such as +01:00, or system is meant"))
}
