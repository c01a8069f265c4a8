//! `tokengap report`: summarises a finished run.

use std::path::PathBuf;
use std::process::ExitCode;

use outputs::report::hostile::EscapeForm;
use outputs::report::{Clock, Report};
use trace::detect::Severity;

use crate::args::{OutputArgs, ReportArgs};
use crate::cmd::saved;
use crate::{app, args, confinement};

/// Summarise a finished run as text, JSON, Markdown for an issue, or one HTML page for an incident.
///
/// The HTML page is one file without scripts or external resources: distributions, backlog and CPU over time with findings,
/// the slowest requests, lost tokens with their evidence, and missing observations.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A recording, or a JSON report as printed by --json, which keeps its list of slowest requests; - reads a report from
    /// standard input.
    file: PathBuf,

    #[command(flatten)]
    report: ReportArgs,

    #[command(flatten)]
    report_output: ReportOutput,
}

/// Format and destination of a report.
#[derive(clap::Args)]
pub(crate) struct ReportOutput {
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    /// Exit with status 1 if a finding has at least this severity.
    #[arg(long, value_name = "SEVERITY", value_parser = args::parse_severity)]
    pub(crate) fail_on: Option<Severity>,

    /// Time zone for times of day, for example Europe/Berlin. Default: UTC.
    #[arg(long, value_name = "ZONE", value_parser = parse_zone)]
    zone: Option<jiff::tz::TimeZone>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Text for a terminal, at most 100 columns.
    Text,
    /// JSON, schema tokengap.report/2.
    Json,
    /// Markdown for an issue or an incident channel: summary first, then details.
    Markdown,
    /// One HTML page with charts.
    Html,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    confinement::confine_to_files(&[&args.file], &[args.report_output.output.file()]);
    let report = saved::load_report(&args.file, args.report.slowest)?;
    args.report_output.write(&report)
}

impl ReportOutput {
    /// Writes `report` in the requested format and returns the exit code for `--fail-on`.
    pub(crate) fn write(&self, report: &Report) -> anyhow::Result<ExitCode> {
        let clock = Clock::of(report, self.zone.clone());
        let form = if self.format == Format::Json { EscapeForm::Json } else { EscapeForm::Text };
        let text = match self.format {
            Format::Text => report.to_text(),
            Format::Json => report.to_json() + "\n",
            Format::Markdown => report.to_markdown(&clock),
            Format::Html => report.to_html(&clock),
        };
        self.output.write(&text, form)?;
        Ok(app::exit_code(report.worst(), self.fail_on))
    }
}

fn parse_zone(text: &str) -> Result<jiff::tz::TimeZone, String> {
    jiff::tz::TimeZone::get(text)
        .map_err(|error| format!("{error}; expected a time zone name, for example Europe/Berlin"))
}
