//! Flags, each declared once and shared by the commands that have it.

mod limit;
mod live;
mod record;
mod telemetry;

use std::path::{Path, PathBuf};
use std::time::Duration;

use outputs::report::hostile::EscapeForm;
use trace::detect::Severity;

pub(crate) use limit::LimitArgs;
pub(crate) use live::{LiveArgs, OutcomeArgs, ReportArgs, ScreenArgs};
pub(crate) use record::{RecordArgs, RecordedTokens};
pub(crate) use telemetry::TelemetryArgs;

use crate::output;

/// Destination of a result.
#[derive(clap::Args)]
pub(crate) struct OutputArgs {
    /// Output file, written completely or not at all. Default: standard output.
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,

    /// Replace OUT if it exists.
    #[arg(long)]
    pub(crate) force: bool,
}

impl OutputArgs {
    /// Output file, if any.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.output.as_deref()
    }

    pub(crate) fn write(&self, text: &str, form: EscapeForm) -> anyhow::Result<()> {
        output::write_result(self.file(), text, form, self.force)
    }
}

/// Parses a number that is not 0.
pub(crate) fn parse_at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}; expected a whole number, for example 100000")),
    }
}

/// Heading of the flags that few people need; the last one in the help.
pub(crate) const TUNING: &str = "Tuning";

/// Parses a duration greater than zero, with its unit.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let hint = "write it like 5s, 500ms, 2m or 1h 30m";
    // A number alone has no unit.
    if text.parse::<f64>().is_ok() {
        return Err(format!("{text} has no unit; write {text}s, or {text}ms, {text}m or {text}h"));
    }
    let span: jiff::SignedDuration = text.parse().map_err(|error| format!("{error}; {hint}"))?;
    // A negative span cannot be converted: it becomes zero, and is refused like it.
    let duration = Duration::try_from(span).unwrap_or_default();
    if duration.is_zero() { Err(format!("must be greater than zero; {hint}")) } else { Ok(duration) }
}

/// `duration` in nanoseconds, or the largest number if it does not fit.
pub(crate) fn to_nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Parses the name of a severity.
pub(crate) fn parse_severity(text: &str) -> Result<Severity, String> {
    match text {
        "info" => Ok(Severity::Info),
        "warning" => Ok(Severity::Warning),
        "critical" => Ok(Severity::Critical),
        other => Err(format!("{other:?} is not a severity: use info, warning or critical")),
    }
}

/// Parses a size in bytes; units are binary with or without the `i`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    const HINT: &str = "expected a size like 64MiB, 500M or 2GiB";
    let digit_count = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (amount, unit) = text.split_at(digit_count);
    let amount: u64 = amount.parse().map_err(|_| format!("{text:?} is not a size; {HINT}"))?;
    let unit_bytes: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(format!("{unit:?} is not a unit of size; {HINT}")),
    };
    match amount.checked_mul(unit_bytes) {
        Some(0) | None => Err(format!("{text:?} is out of range for a file size; {HINT}")),
        Some(bytes) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_with_units() {
        for (text, bytes) in [("1", 1), ("64MiB", 64 << 20), ("2g", 2 << 30), ("10 kb", 10 << 10)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "0", "MiB", "5 parsecs", "99999999999999T", "-1"] {
            assert!(parse_size(text).is_err_and(|why| why.contains("64MiB")), "{text}");
        }
    }
}
