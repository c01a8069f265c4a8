//! Reads recordings and reports. The format is detected from the content, not the file name.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use outputs::report::{Report, SCHEMA, Series};
use recording::{OpenError, Recording};
use trace::ReportInput;

use crate::progress;

/// Maximum size of a report file; the largest possible report has about ten megabytes.
const LARGEST_JSON: u64 = 256 << 20;

/// Report of `file`: parsed from JSON, or computed from a recording with at most `slowest_count` requests listed. `-` reads JSON from
/// standard input.
#[expect(clippy::disallowed_methods, reason = "a recording or report that the user named")]
pub(crate) fn load_report(file: &Path, slowest_count: usize) -> anyhow::Result<Report> {
    let name = file.display();
    if file == Path::new("-") {
        let text = read_report_within_limit(std::io::stdin().lock()).context("cannot read standard input")?;
        return parse_named_report(&text, "standard input");
    }
    // The format is that of the content, whatever the name of the file.
    if begins_like_json(file).with_context(|| format!("cannot read {name}"))? {
        let text = File::open(file).map_err(anyhow::Error::from).and_then(read_report_within_limit);
        let text = text.with_context(|| format!("cannot read {name}"))?;
        return parse_named_report(&text, &name.to_string());
    }
    match Recording::open(file) {
        Ok(recording) => replay_report(&recording, slowest_count),
        Err(OpenError::NotARecording { .. }) => {
            bail!(
                "{name} is neither a tokengap recording nor a report: use a file written by --record or printed by --json"
            )
        }
        Err(error) => Err(error.into()),
    }
}

fn replay_report(recording: &Recording, slowest: usize) -> anyhow::Result<Report> {
    let (analysis, input) = progress::analyse_recording(recording)?;
    Ok(Report::of(&analysis, &ReportInput { wall: Some(recording.header().anchor), slowest, ..input }))
}

fn parse_named_report(text: &[u8], name: &str) -> anyhow::Result<Report> {
    ensure!(!text.trim_ascii().is_empty(), "{name} is empty: the run that wrote it may have failed");
    parse_report(text).with_context(|| format!("{name} is not a tokengap report"))
}

/// Whether the first character of the file is that of a JSON object. An empty file counts as JSON, so that the error says that it is empty.
#[expect(clippy::disallowed_methods, reason = "a recording or report that the user named")]
fn begins_like_json(file: &Path) -> std::io::Result<bool> {
    /// Number of bytes in which the first character is searched.
    const START_BYTES: usize = 64;
    let mut start = [0; START_BYTES];
    let length = File::open(file)?.read(&mut start)?;
    Ok(length == 0 || start[..length].trim_ascii_start().starts_with(b"{"))
}

/// Reads a report of at most `LARGEST_JSON` bytes.
fn read_report_within_limit(reader: impl Read) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more shows that the limit is exceeded.
    reader.take(LARGEST_JSON + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= LARGEST_JSON, "it is larger than the limit for reports of {LARGEST_JSON} bytes");
    Ok(bytes)
}

/// Parses a JSON report of the schema that this program writes.
fn parse_report(text: &[u8]) -> anyhow::Result<Report> {
    #[derive(serde::Deserialize)]
    struct FileHead {
        schema: Option<String>,
    }
    // The schema first: a report of another one would fail at some field, with an error that helps nobody.
    let head: FileHead = serde_json::from_slice(text).map_err(explain_json_error)?;
    match head.schema.as_deref() {
        Some(SCHEMA) => {
            let report: Report = serde_json::from_slice(text).map_err(explain_json_error)?;
            let is_whole = report.series.as_ref().is_none_or(Series::has_equal_columns);
            ensure!(is_whole, "the columns of its time series have different lengths; print or copy it again");
            Ok(report)
        }
        Some(other) => bail!("its schema is {other:?}; this tokengap reads {SCHEMA}"),
        None => bail!("it has no schema; use the output of --json or report --format json"),
    }
}

/// Adds advice about a report that ends too early.
fn explain_json_error(error: serde_json::Error) -> anyhow::Error {
    if error.is_eof() {
        anyhow::Error::from(error).context("it is truncated; print or copy it again")
    } else {
        error.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(content: &[u8]) -> String {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        std::io::Write::write_all(&mut file, content).expect("written");
        format!("{:#}", load_report(file.path(), 10).expect_err("no report"))
    }

    #[test]
    fn files_that_are_not_reports_are_refused() {
        for (content, expected) in [
            (&b""[..], "is empty"),
            (b"\x00\x01", "neither a tokengap recording nor a report"),
            (b"{\"schema\": \"x/2\"}", "its schema is \"x/2\"; this tokengap reads tokengap.report/2"),
            (b"{}", "it has no schema"),
            (b"{\"schema\": \"tokengap.report/2\"}", "missing field"),
            (b"{\"schema\": ", "it is truncated; print or copy it again"),
        ] {
            let error = error_of(content);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_report_with_unequal_columns_is_refused() {
        let mut analysis = trace::Analysis::new(trace::Config::default());
        for second in [1, 2, 3] {
            analysis.tick(trace::MonoNs(second * 1_000_000_000));
        }
        let mut value = serde_json::to_value(Report::of(&analysis, &ReportInput::for_source("tap"))).expect("JSON");
        assert!(parse_report(value.to_string().as_bytes()).is_ok());
        value["series"]["requests"]["live"].as_array_mut().expect("a column").clear();
        let error = parse_report(value.to_string().as_bytes()).expect_err("a column is missing");
        assert!(error.to_string().contains("different lengths"), "{error}");
    }

    #[test]
    fn a_report_without_time_series_parses() {
        let report = Report::of(&trace::Analysis::new(trace::Config::default()), &ReportInput::for_source("tap"));
        let mut value = serde_json::to_value(report).expect("JSON");
        for added in ["series", "window_wall_ns"] {
            value.as_object_mut().expect("an object").remove(added);
        }
        let report = parse_report(value.to_string().as_bytes()).expect("newer fields may be missing");
        assert!(report.series.is_none() && report.window_wall_ns.is_none());
    }
}
