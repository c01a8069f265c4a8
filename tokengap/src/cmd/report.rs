//! `tokengap report`: summarises a finished run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use outputs::report::hostile::EscapeForm;
use outputs::report::{Clock, Report};
use trace::detect::Severity;

use crate::args::{OutputArgs, ReportArgs};
use crate::cmd::bundle::{self, Bundle};
use crate::cmd::pair;
use crate::cmd::saved;
use crate::output::{ResultFile, destination_file};
use crate::{app, args, confinement};

/// Summarise a finished run as text, JSON, Markdown for an issue, or one HTML page for an incident.
///
/// The HTML page is one file without scripts or external resources: distributions, backlog and CPU over time with findings,
/// the slowest requests, lost tokens with their evidence, and missing observations.
///
/// Two recordings, of a prefill and a decode server, give the decode server's report with the way of its requests through both.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A recording, or a JSON report, which keeps its list of slowest requests; - reads a report from standard input.
    file: PathBuf,

    /// The recording of the other server of a prefill/decode pair.
    #[arg(conflicts_with = "bundle")]
    other: Option<PathBuf>,

    #[command(flatten)]
    report: ReportArgs,

    /// Write one archive for a vendor instead (tar, zstd): the report as JSON and Markdown, the recording without token ids, the output of
    /// `tokengap doctor` on this machine, and a manifest with versions and sizes.
    #[arg(long, value_name = "OUT", conflicts_with_all = ["format", "json", "output"])]
    bundle: Option<PathBuf>,

    #[command(flatten)]
    report_output: ReportOutput,
}

/// Format and destination of a report.
#[derive(clap::Args)]
pub(crate) struct ReportOutput {
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    /// Short for --format json.
    #[arg(long, conflicts_with = "format")]
    json: bool,

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

/// `tokengap report`: prints the report of a recording or of a pair of them, or writes an archive.
pub(crate) fn run_report(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(archive) = &args.bundle {
        return write_bundle(args, archive);
    }
    let files: Vec<&Path> = [&args.file].into_iter().chain(&args.other).map(PathBuf::as_path).collect();
    confinement::confine_to_files(&files, &[args.report_output.output.file()]);
    let report = match &args.other {
        Some(other) => pair::join_recordings_into_report([&args.file, other], args.report.slowest)?,
        None => saved::load_report(&args.file, args.report.slowest)?,
    };
    args.report_output.write(&report)
}

/// Writes an archive with the recording without content, its report and the output of `doctor`.
fn write_bundle(args: &Args, archive: &Path) -> anyhow::Result<ExitCode> {
    ensure!(
        destination_file(Some(archive)).is_some(),
        "--bundle writes a file: name one, for example incident.tar.zst"
    );
    // It tests what this machine permits, so it runs before the confinement.
    let doctor = bundle::doctor_output();
    confinement::confine_to_files(&[&args.file], &[Some(archive)]);
    let output = &args.report_output;
    let mut target = ResultFile::open(archive, output.output.force)?;
    let bundle = Bundle::of_recording(&args.file, archive, args.report.slowest, doctor)?;
    let written = bundle.write_archive(output.zone.clone(), target.writer());
    written.with_context(|| format!("cannot write {}", archive.display()))?;
    target.finish()?;
    errln!(
        "tokengap: {} written: it names request ids and endpoints, and holds no text and no token ids",
        archive.display()
    );
    Ok(app::exit_code(bundle.report.severity, output.fail_on))
}

impl ReportOutput {
    /// Writes `report` in the requested format and returns the exit code for `--fail-on`.
    pub(crate) fn write(&self, report: &Report) -> anyhow::Result<ExitCode> {
        let clock = Clock::of(report, self.zone.clone());
        let format = if self.json { Format::Json } else { self.format };
        let form = if format == Format::Json { EscapeForm::Json } else { EscapeForm::Text };
        let text = match format {
            Format::Text => report.to_text(&clock),
            Format::Json => report.to_json() + "\n",
            Format::Markdown => report.to_markdown(&clock),
            Format::Html => report.to_html(&clock),
        };
        self.output.write(&text, form)?;
        Ok(app::exit_code(report.severity, self.fail_on))
    }
}

fn parse_zone(text: &str) -> Result<jiff::tz::TimeZone, String> {
    jiff::tz::TimeZone::get(text)
        .map_err(|error| format!("{error}; expected a time zone name, for example Europe/Berlin"))
}
