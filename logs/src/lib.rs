//! Engine log files as a source: converts lines to events, ordered by timestamp (docs/reference/import.md).
//!
//! All memory is bounded: lines queued for sorting, rids kept to complete those truncated in a log, and open files.
//! [`Stats`] counts the losses at each limit.

mod clock;
mod envelope;
mod files;
mod json;
mod lines;
mod merge;
mod parts;
mod queue;
mod reader;
mod recognise;
mod rids;
mod rooms;
mod shape;
mod source;
mod stats;
mod structure;
pub mod text;
mod unread;

use std::path::PathBuf;

use jiff::tz::TimeZone;

pub use json::{Field, Record};
pub use merge::Import;
pub use recognise::{Form, Half, Item, LogLines, Logged, Malformed, Read, Rid, Unread};
pub use stats::Stats;

/// Options for reading log files.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time zone of timestamps without one; `None` takes the offset of other files, or else UTC. The offset that a file's own lines show
    /// takes precedence.
    pub zone: Option<TimeZone>,
    /// Year of timestamps without one; `None` takes it from the file's modification time.
    pub year: Option<i16>,
    /// Span of log time over which lines are sorted, in nanoseconds.
    pub window_ns: u64,
    /// Maximum number of recognised lines queued for sorting.
    pub held_lines: usize,
    /// Maximum length of a line in bytes; longer lines are truncated.
    pub line_bytes: usize,
    /// Maximum number of files.
    pub files: usize,
    /// Maximum number of open files.
    pub open_files: usize,
    /// Maximum number of complete rids kept, to complete those truncated in the log.
    pub rids: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            zone: None,
            year: None,
            window_ns: 120_000_000_000,
            held_lines: 500_000,
            line_bytes: 1024 * 1024,
            files: 10_000,
            open_files: 256,
            rids: 262_144,
        }
    }
}

/// Errors of an import.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A path does not exist or is not readable.
    #[error("cannot read {}: {source}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// There is no file to read.
    #[error("no log file in {0}; .pkl, .pstats and .tgap files are skipped")]
    NoFiles(String),
    /// Too many files.
    #[error("more than {limit} files in {paths}; name fewer, or raise --max-files")]
    TooManyFiles {
        /// The limit.
        limit: usize,
        /// Searched paths.
        paths: String,
    },
    /// No line has a known form: the message, with the known forms.
    #[error("{0}")]
    NothingRecognised(String),
}
