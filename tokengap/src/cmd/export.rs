//! `tokengap export`: converts a recording into the formats of other tools.

use std::io::{IsTerminal, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use flate2::Compression;
use flate2::write::GzEncoder;
use outputs::export::{self, Format};
use recording::{RecordedPayload, Recording};
use trace::words::missing_feature_error;

use crate::args::{OutputArgs, RecordedTokens, to_nanoseconds};
use crate::progress::Progress;
use crate::{args, confinement, output};

/// Write a recording in the format of another tool: Perfetto's UI, OpenTelemetry, a database or a spreadsheet.
///
/// docs/reference/exports.md describes each format, with example queries. Text is never written; token ids only with --payload tokens.
#[derive(clap::Args)]
#[command(
    mut_arg("output", |arg| arg.help("Output file, written completely or not at all; gzip if its name ends in .gz. Default, or with -: standard output")),
    after_help = "Examples:\n  tokengap export run.tgap --format perfetto -o trace.json.gz    (open it at ui.perfetto.dev)\n  tokengap export run.tgap --format csv | head"
)]
pub(crate) struct Args {
    /// The recording, or a hindsight ring.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Output format.
    #[arg(long, value_name = "FORMAT", value_parser = format_parser())]
    format: Format,

    #[command(flatten)]
    output: OutputArgs,

    /// Only this request. Repeatable.
    #[arg(long = "rid", value_name = "RID")]
    rids: Vec<String>,

    /// Only requests whose first token waited at least this long between scheduler and tokenizer: 500ms, 5s.
    #[arg(long, value_name = "GAP", value_parser = args::parse_duration)]
    slow_only: Option<Duration>,

    /// Start at this time of the recording, for example 90s.
    #[arg(long, value_name = "TIME", value_parser = args::parse_duration)]
    from: Option<Duration>,

    /// End at this time of the recording, for example 2m. Requests that overlap the range are exported completely.
    #[arg(long, value_name = "TIME", value_parser = args::parse_duration)]
    to: Option<Duration>,

    /// Maximum number of chunks and deliveries drawn for each request with --format perfetto; the last ones are always drawn.
    #[arg(long, value_name = "N", default_value_t = 64)]
    chunks: u32,

    /// Write the number of generated tokens, or with --format events their ids if the recording contains them.
    #[arg(long, value_enum, default_value_t = RecordedTokens::Lengths)]
    payload: RecordedTokens,
}

/// Parser of `--format`: the names of all formats.
fn format_parser() -> impl TypedValueParser<Value = Format> {
    let values = Format::ALL.iter().map(|format| PossibleValue::new(format.as_str()).help(format.about()));
    PossibleValuesParser::new(values).map(|name| {
        let named = Format::ALL.iter().copied().find(|format| format.as_str() == name);
        named.expect("only names of formats are accepted")
    })
}

/// `tokengap export`: converts a recording to another format.
pub(crate) fn run_export(args: &Args) -> anyhow::Result<ExitCode> {
    confinement::confine_to_files(&[&args.file], &[args.output.file()]);
    check_selection_is_possible(args)?;
    if args.format == Format::Parquet {
        check_parquet_output(args)?;
    }
    let recording = Recording::open(&args.file)?;
    check_has_wanted_ids(args, &recording)?;
    if let Some(missing) = recording.missing() {
        errln!("tokengap: {}: {missing}", args.file.display());
    }
    if let Some(path) = output::destination_file(args.output.file()) {
        write_export_file(&recording, args, path)?;
    } else {
        write_export_to_stdout(&recording, args)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails if the arguments select requests that the format cannot select, or an empty range of time.
fn check_selection_is_possible(args: &Args) -> anyhow::Result<()> {
    ensure!(
        args.format != Format::Events || args.slow_only.is_none(),
        "--slow-only does not work with --format events, which writes events before a request's gap is known: use --rid"
    );
    let is_range_empty = exported_range_ns(args).is_some_and(|range| range.is_empty());
    ensure!(!is_range_empty, "--from must not be later than --to");
    Ok(())
}

/// Fails if the arguments ask for token ids that the recording does not contain.
fn check_has_wanted_ids(args: &Args, recording: &Recording) -> anyhow::Result<()> {
    let wants_ids = args.payload == RecordedTokens::Tokens;
    let has_ids = recording.header().payload == RecordedPayload::Tokens;
    ensure!(
        has_ids || !wants_ids,
        "{} holds no token ids: record with --payload tokens to keep them",
        args.file.display()
    );
    Ok(())
}

/// Writes the export to standard output, as it is: the exporter escapes it.
fn write_export_to_stdout(recording: &Recording, args: &Args) -> anyhow::Result<()> {
    let out = output::raw_stdout();
    // On a terminal, the progress would appear between the lines of the output.
    let progress = if out.is_terminal() { None } else { Some(Progress::labelled("exporting")) };
    write_export(recording, args, out, progress)
}

/// Writes the export to the file at `path`, compressed if the name ends with `.gz`.
fn write_export_file(recording: &Recording, args: &Args, path: &Path) -> anyhow::Result<()> {
    let mut target = output::ResultFile::open(path, args.output.force)?;
    let progress = Some(Progress::labelled("exporting"));
    if is_gzip(path) {
        let mut gzip = GzEncoder::new(target.writer(), Compression::default());
        write_export(recording, args, &mut gzip, progress)?;
        gzip.finish()?;
    } else {
        write_export(recording, args, target.writer(), progress)?;
    }
    target.finish()
}

/// Fails if this build cannot write Parquet, or if the output would be a terminal or compressed twice.
fn check_parquet_output(args: &Args) -> anyhow::Result<()> {
    ensure!(cfg!(feature = "parquet"), "cannot write Parquet: {}", missing_feature_error("parquet"));
    let path = output::destination_file(args.output.file());
    ensure!(path.is_some() || !output::is_terminal(), "Parquet is binary: name the output file with -o");
    ensure!(!path.is_some_and(is_gzip), "Parquet is compressed already: name OUT without .gz");
    Ok(())
}

fn is_gzip(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gz")
}

/// Exported part of the recording, in nanoseconds from its start. `None` for all of it.
fn exported_range_ns(args: &Args) -> Option<RangeInclusive<u64>> {
    let from = args.from.map(to_nanoseconds);
    let to = args.to.map(to_nanoseconds);
    if from.is_none() && to.is_none() {
        return None;
    }
    Some(from.unwrap_or(0)..=to.unwrap_or(u64::MAX))
}

/// Converts a recording to the format of the arguments. Shows the progress, and reports damaged parts of the recording on stderr.
fn write_export(
    recording: &Recording,
    args: &Args,
    out: impl Write,
    mut progress: Option<Progress>,
) -> anyhow::Result<()> {
    let options = export::Options {
        rids: args.rids.clone(),
        slow_ns: args.slow_only.map(to_nanoseconds),
        range_ns: exported_range_ns(args),
        chunks: args.chunks,
        tokens: args.payload == RecordedTokens::Tokens,
        // Also requests that lost no tokens.
        losing: false,
        recording: args.file.file_name().map(|name| name.to_string_lossy().into_owned()),
    };
    let total_bytes = recording.bytes();
    export::export_recording(recording, engines::FACTS, args.format, options, out, &mut |done, damaged| {
        if let Some(error) = damaged {
            errln!("tokengap: {error}");
        }
        if let Some(progress) = &mut progress {
            progress.draw_position_if_due(done, total_bytes);
        }
    })?;
    Ok(())
}
