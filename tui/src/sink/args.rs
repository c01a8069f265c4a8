//! Recording flags, shared by all live sources.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use trace::detect::Severity;
use trace::record::Payload;

use crate::cli::{duration, severity};

/// What to write of the run.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Recording")]
pub(crate) struct RecordArgs {
    /// Write the run to FILE, to be looked at again with replay. Never holds text, and token ids only with --payload.
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// Largest size of a recording: 500MiB, 2GiB. When it is reached the recording ends, or the next file begins.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) record_max_size: Option<u64>,

    /// Begin a new file when --record-max-size is reached, and keep the newest N.
    #[arg(long, value_name = "N", requires = "record_max_size", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) record_files: Option<u32>,

    /// Keep the newest past in a ring of this size on disk, to be written out when something has happened: on a key,
    /// on SIGUSR1, or by itself (--hindsight-on).
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) hindsight: Option<u64>,

    /// Where the ring is. It survives a crash of tokengap and opens like a recording. By default a file in the working
    /// folder that is gone after a clean end.
    #[arg(long, value_name = "FILE", requires = "hindsight")]
    pub(crate) hindsight_file: Option<PathBuf>,

    /// Write the ring out, once for each kind of trouble, when a finding at least this severe begins.
    #[arg(long, value_name = "SEVERITY", value_parser = severity, default_value = "critical")]
    pub(crate) hindsight_on: Severity,

    /// Write it out again for trouble that lasts or comes back, at most once in this time.
    #[arg(long, value_name = "T", requires = "hindsight", value_parser = duration)]
    pub(crate) hindsight_every: Option<Duration>,

    /// Write it out by itself only while fewer than N copies lie beside it, those of earlier runs included: with the ring's
    /// size the most disk that is used. What is moved away makes room.
    #[arg(long, value_name = "N", requires = "hindsight")]
    pub(crate) hindsight_most: Option<u32>,

    /// What of the generated tokens recordings keep.
    #[arg(long, value_enum, default_value_t = Tokens::Lengths)]
    pub(crate) payload: Tokens,

    /// Replace files that exist.
    #[arg(long)]
    pub(crate) force: bool,
}

/// What of the generated tokens may be written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Tokens {
    /// How many there are.
    Lengths,
    /// Their ids, too: with the model's vocabulary these are the answers' text.
    Tokens,
}

impl From<Tokens> for Payload {
    fn from(tokens: Tokens) -> Self {
        match tokens {
            Tokens::Lengths => Self::Lengths,
            Tokens::Tokens => Self::Tokens,
        }
    }
}

/// Parses a size in bytes; units are binary with or without the `i`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    const HINT: &str = "write it like 64MiB, 500M or 2GiB";
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (amount, unit) = text.split_at(digits);
    let amount: u64 = amount.parse().map_err(|_| format!("{text:?} is no size; {HINT}"))?;
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("{unit:?} is no unit of size; {HINT}")),
    };
    match amount.checked_shl(shift).filter(|bytes| bytes >> shift == amount) {
        Some(0) | None => Err(format!("{text:?} cannot be a file's size; {HINT}")),
        Some(bytes) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, bytes) in [("1", 1), ("64MiB", 64 << 20), ("2g", 2 << 30), ("10 kb", 10 << 10)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "0", "MiB", "5 parsecs", "99999999999999T", "-1"] {
            assert!(size(text).is_err_and(|why| why.contains("64MiB")), "{text}");
        }
    }
}
