//! Errors of an import.

use std::path::PathBuf;

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
    #[error("no log file in {paths}; .pkl, .pstats and .tgap files are skipped")]
    NoFiles {
        /// Searched paths.
        paths: String,
    },
    /// Too many files.
    #[error("more than {limit} files in {paths}; name fewer, or raise --max-files")]
    TooManyFiles {
        /// The limit.
        limit: usize,
        /// Searched paths.
        paths: String,
    },
    /// No line has a known form.
    #[error(
        "{lines} lines in {files} and none of a known form ([TRACE ..] and [TOK ..] lines, streaming backlog warnings, \
         request logs, request metrics and time stats){undated}{first}"
    )]
    NothingRecognised {
        /// Lines read.
        lines: u64,
        /// `1 file`, `12 files`.
        files: String,
        /// `; 12 lines of a known form have no time`, or empty.
        undated: String,
        /// Shape of the first unknown line, without possible prompt text; or empty.
        first: String,
    },
}
