//! `tokengap diff`: comparison of two runs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use outputs::diff::{Diff, DiffOptions, NamedRun};
use outputs::report::hostile::EscapeForm;

use crate::args::OutputArgs;
use crate::cmd::saved;
use crate::confinement;

/// Compare two runs: findings, changes beyond noise, and their known causes.
///
/// Each measure is computed in every time slot under load. A change is reported if it exceeds the noise, corrected for the number of
/// measures, and is large enough to matter. The result states the method.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run before: a recording or a report's JSON.
    a: PathBuf,

    /// The run after.
    b: PathBuf,

    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    #[command(flatten)]
    output: OutputArgs,

    /// Exit with status 1 if a finding became critical, or else if the most severe change is for the worse. If neither a problem nor a
    /// finding changed, any worse measure counts.
    #[arg(long)]
    fail_on_worse: bool,

    /// Probability of a false alarm, over all measures together.
    #[arg(long, value_name = "P", default_value_t = DiffOptions::default().alpha, value_parser = parse_share)]
    alpha: f64,

    /// Minimum relative change of rates, sizes and shares to report; 0.1 is 10 %.
    #[arg(long, value_name = "SHARE", default_value_t = DiffOptions::default().least_change, value_parser = parse_share)]
    least_change: f64,

    /// Minimum number of time slots under load in each run.
    #[arg(long, value_name = "N", default_value_t = DiffOptions::default().least_slots)]
    least_slots: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Text for a terminal.
    Text,
    /// JSON, schema tokengap.diff/1.
    Json,
    /// Markdown for an issue.
    Markdown,
}

/// A comparison lists no requests.
const SLOWEST: usize = 0;

/// `tokengap diff`: compares two reports or recordings. Exit code 1 if `--fail-on-worse` is given and the second one is worse.
pub(crate) fn run_diff(args: &Args) -> anyhow::Result<ExitCode> {
    confinement::confine_to_files(&[&args.a, &args.b], &[args.output.file()]);
    let options = DiffOptions {
        alpha: args.alpha,
        least_change: args.least_change,
        least_slots: args.least_slots,
        ..DiffOptions::default()
    };
    let a = saved::load_report(&args.a, SLOWEST)?;
    let b = saved::load_report(&args.b, SLOWEST)?;
    let run_a = NamedRun { name: &file_name(&args.a), report: &a };
    let run_b = NamedRun { name: &file_name(&args.b), report: &b };
    let diff = Diff::of_runs(run_a, run_b, &options);
    let form = if args.format == Format::Json { EscapeForm::Json } else { EscapeForm::Text };
    let text = match args.format {
        Format::Text => diff.to_text(),
        Format::Json => diff.to_json() + "\n",
        Format::Markdown => diff.to_markdown(),
    };
    args.output.write(&text, form)?;
    Ok(ExitCode::from(u8::from(args.fail_on_worse && diff.is_worse())))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Parses a number that is greater than 0 and less than 1.
fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share < 1.0 => Ok(share),
        _ => Err(String::from("expected a number between 0 and 1, for example 0.05")),
    }
}
