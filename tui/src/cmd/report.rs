//! `tokengap report`: summarises a finished run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use trace::detect::Severity;
use trace::report::{Clock, Report};

use crate::cmd::saved;
use crate::{cli, confinement, output};

/// Tell of a run that is over: as text, JSON, Markdown for an issue, or one HTML page for an incident.
///
/// The page is one file that loads nothing and runs nothing: distributions, backlog and CPU over time with the findings
/// marked, the worst requests, what was lost and how that is known, and what was not observed.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A recording, or a report's JSON as --json prints it; - reads a report from standard input.
    file: PathBuf,

    /// Requests to list as the slowest, when the file is a recording; 0 lists none.
    #[arg(long, value_name = "N", default_value_t = 10)]
    slowest: usize,

    #[command(flatten)]
    telling: Telling,
}

/// How a report is told, and where.
#[derive(clap::Args)]
pub(crate) struct Telling {
    /// How to tell it.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    /// Write to this file, whole or not at all; without it to standard output.
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,

    /// Replace a file that exists.
    #[arg(long)]
    pub(crate) force: bool,

    /// Exit with 1 when a finding is at least this severe.
    #[arg(long, value_name = "SEVERITY", value_parser = cli::severity)]
    fail_on: Option<Severity>,

    /// The zone of times of day, for example Europe/Berlin; UTC without it.
    #[arg(long, value_name = "ZONE", value_parser = zone)]
    zone: Option<jiff::tz::TimeZone>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For a terminal, at most 100 columns.
    Text,
    /// Schema tokengap.report/1.
    Json,
    /// For an issue or an incident channel: short, details after.
    Markdown,
    /// One page with drawings.
    Html,
}

/// Restricts the process to the access this command needs.
pub(crate) fn confine(args: &Args) {
    confinement::files(&[&args.file], &[args.telling.output()]);
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let report = saved::report(&args.file, args.slowest)?;
    args.telling.tell(&report)
}

impl Telling {
    /// Output file, if any.
    pub(crate) fn output(&self) -> Option<&Path> {
        self.output.as_deref()
    }

    /// Writes `report` in the requested format and returns the exit code for `--fail-on`.
    pub(crate) fn tell(&self, report: &Report) -> anyhow::Result<ExitCode> {
        let clock = Clock::of(report, self.zone.clone());
        let told = match self.format {
            Format::Text => report.to_text(),
            Format::Json => report.to_json() + "\n",
            Format::Markdown => report.to_markdown(&clock),
            Format::Html => report.to_html(&clock),
        };
        output::write(self.output.as_deref(), &told, self.force)?;
        Ok(self.verdict(report))
    }

    /// Exit code for `--fail-on`.
    pub(crate) fn verdict(&self, report: &Report) -> ExitCode {
        let failed = self.fail_on.is_some_and(|least| report.worst() >= Some(least));
        if failed { ExitCode::from(1) } else { ExitCode::SUCCESS }
    }
}

fn zone(text: &str) -> Result<jiff::tz::TimeZone, String> {
    jiff::tz::TimeZone::get(text)
        .map_err(|error| format!("{error}; a name of the zone database is meant, for example Europe/Berlin"))
}
