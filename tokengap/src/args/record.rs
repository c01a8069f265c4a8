//! Recording flags, shared by all live sources.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use recording::{RecordOptions, RecordedPayload};
use session::sink::{DumpRules, OutputFiles, RingOptions};
use trace::detect::Severity;

use super::{parse_duration, parse_severity, parse_size, to_nanoseconds};

/// Flags for recordings.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Recording")]
pub(crate) struct RecordArgs {
    /// Record the run to FILE for `tokengap replay`. Never contains text; contains token ids only with --payload tokens.
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// Maximum size of a recording, for example 500MiB or 2GiB. At the limit, the recording ends or continues in the next file.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) record_max_size: Option<u64>,

    /// Start a new file at --record-max-size and keep the newest N files.
    #[arg(long, value_name = "N", requires = "record_max_size", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) record_files: Option<u32>,

    /// Keep the most recent events in a ring file of this size. It is saved on a key press, on SIGUSR1, or when a finding
    /// begins (--hindsight-on).
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) hindsight: Option<u64>,

    /// Path of the ring file. It survives a crash of tokengap and opens like a recording. By default a file in the current
    /// directory, removed on a clean exit.
    #[arg(long, value_name = "FILE", requires = "hindsight")]
    pub(crate) hindsight_file: Option<PathBuf>,

    /// Save the ring when a finding of at least this severity begins, once for each kind of finding.
    #[arg(long, value_name = "SEVERITY", value_parser = parse_severity, default_value = "critical")]
    pub(crate) hindsight_on: Severity,

    /// Save the ring again while a finding lasts or when it returns, at most once per interval.
    #[arg(long, value_name = "T", requires = "hindsight", value_parser = parse_duration)]
    pub(crate) hindsight_every: Option<Duration>,

    /// Save automatically only while fewer than N copies exist beside the ring, including those of earlier runs. Limits disk use
    /// to N times the ring's size; moving copies away makes room.
    #[arg(long, value_name = "N", requires = "hindsight")]
    pub(crate) hindsight_max_copies: Option<u32>,

    /// How generated tokens are recorded.
    #[arg(long, value_enum, default_value_t = RecordedTokens::Lengths)]
    pub(crate) payload: RecordedTokens,

    /// Replace files that exist.
    #[arg(long)]
    pub(crate) force: bool,
}

impl RecordArgs {
    /// Files to write, by the options.
    pub(crate) fn recording_files(&self) -> OutputFiles {
        OutputFiles {
            record: self.record.clone(),
            options: RecordOptions {
                max_bytes: self.record_max_size,
                rotate: self.record_files,
                force: self.force,
                ..RecordOptions::default()
            },
            payload: self.payload.into(),
            ring: self.hindsight.map(|size| RingOptions {
                size,
                file: self.hindsight_file.clone(),
                rules: self.dump_rules(),
                // The only run so far.
                run: None,
            }),
        }
    }

    /// Conditions of automatic dumps.
    pub(crate) fn dump_rules(&self) -> DumpRules {
        DumpRules {
            min_severity: self.hindsight_on,
            min_interval_ns: self.hindsight_every.map(to_nanoseconds),
            max_dumps: self.hindsight_max_copies,
        }
    }
}

/// How generated tokens may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RecordedTokens {
    /// Only their number.
    Lengths,
    /// Token ids too. With the model's vocabulary, they reveal the text of the answers.
    Tokens,
}

impl From<RecordedTokens> for RecordedPayload {
    fn from(tokens: RecordedTokens) -> Self {
        match tokens {
            RecordedTokens::Lengths => Self::Lengths,
            RecordedTokens::Tokens => Self::Tokens,
        }
    }
}
