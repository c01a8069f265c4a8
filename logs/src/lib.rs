//! Engine log files as a source: converts lines to events, ordered by timestamp (docs/reference/import.md).
//!
//! All memory is bounded: lines queued for sorting, rids kept to complete those truncated in a log, and open files.
//! [`ImportStats`] counts the losses at each limit.

mod bootstrap_rooms;
mod import;
mod import_stats;
mod json_record;
mod json_search;
mod known_rids;
mod line_prefix;
mod line_reader;
mod line_shape;
mod log_files;
mod log_source;
mod logged_rejections;
mod recogniser;
mod record_reader;
mod split_lines;
mod statement_queue;
pub mod text;
mod timestamp;
mod unread_lines;

use std::path::PathBuf;

use jiff::tz::TimeZone;

pub use import::{Import, ImportProgress};
pub use import_stats::ImportStats;
pub use json_record::{FieldUse, JsonRecord};
pub use recogniser::{
    LineForm, LogLines, LoggedRid, MalformedLine, ParseLine, RequestHalf, Statement, StatementKind, UnreadFileKind,
};

/// Options for reading log files.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// Time zone of timestamps without one; `None` takes the offset of other files, or else UTC. The offset that a file's own lines show
    /// takes precedence.
    pub zone: Option<TimeZone>,
    /// Year of timestamps without one; `None` takes it from the file's modification time.
    pub year: Option<i16>,
    /// Span of log time over which lines are sorted, in nanoseconds.
    pub window_ns: u64,
    /// Maximum number of recognised lines queued for sorting.
    pub max_held_lines: usize,
    /// Maximum length of a line in bytes; longer lines are truncated.
    pub max_line_bytes: usize,
    /// Maximum number of files.
    pub max_files: usize,
    /// Maximum number of open files.
    pub max_open_files: usize,
    /// Maximum number of complete rids kept, to complete those truncated in the log.
    pub max_rids: usize,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self {
            zone: None,
            year: None,
            // Two minutes.
            window_ns: 120_000_000_000,
            max_held_lines: 500_000,
            max_line_bytes: 1024 * 1024,
            max_files: 10_000,
            max_open_files: 256,
            max_rids: 262_144,
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
