//! Errors of recordings.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the end of a recording waits for the disk.
pub(super) const DISK_TIMEOUT: Duration = Duration::from_secs(30);

/// Errors of writing a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file already exists.
    #[error("{0} already exists; choose another file, or use --force to replace it")]
    Exists(PathBuf),
    /// The path exists and is not a plain file.
    #[error("{0} is not a regular file; choose another file")]
    NotAFile(PathBuf),
    /// An I/O error.
    #[error("cannot {what} {path}: {error}")]
    Io {
        /// Failed operation: `create`, `write to`, ...
        what: &'static str,
        /// Affected file.
        path: PathBuf,
        /// Cause.
        #[source]
        error: io::Error,
    },
    /// The file was deleted during the recording, so its data is lost.
    #[error("{0} was removed while it was being written: nothing was saved")]
    Removed(PathBuf),
    /// The ring cannot hold its own header and a block.
    #[error("a ring of {size} bytes is too small; the minimum is {min}")]
    TooSmall {
        /// Requested size in bytes.
        size: u64,
        /// Minimum size in bytes.
        min: u64,
    },
    /// The recording ended before the run did.
    #[error("{0}")]
    Stopped(String),
    /// The disk did not answer in time; the file may lack its end.
    #[error("{0}: no response from the disk for {s} s; its last blocks may be missing", s = DISK_TIMEOUT.as_secs())]
    Silent(PathBuf),
    /// The ring has no data yet.
    #[error("the ring is still empty")]
    Empty,
}

impl RecordError {
    /// An error of a system call on a file. `failed_action` names the call in the message. An existing file has a variant of its own.
    pub(super) fn io(failed_action: &'static str, path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::AlreadyExists => Self::Exists(path),
            _ => Self::Io { what: failed_action, path, error },
        }
    }
}

impl OpenError {
    /// An error of a system call on the file.
    pub(super) fn io(path: &Path, error: io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }

    /// Error of a file without a valid header in its first `bytes` bytes.
    pub(super) fn no_header_within(path: &Path, bytes: u64) -> Self {
        Self::NoHeader { path: path.to_owned(), bytes }
    }
}

/// Errors of opening a recording.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An I/O error.
    #[error("cannot read {path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        error: io::Error,
    },
    /// The file does not start with the magic number of recordings.
    #[error("{0} is not a tokengap recording; use a file written by --record or --hindsight")]
    NotARecording(PathBuf),
    /// The file ends before its first block, or its header is damaged.
    #[error(
        "{path} is truncated or damaged in its first {bytes} bytes and cannot be read; if it is a copy, copy it again"
    )]
    NoHeader {
        /// The file.
        path: PathBuf,
        /// Length of the header, in bytes.
        bytes: u64,
    },
    /// The file has another major version of the format.
    #[error(
        "{path} has format {major}.{minor}; this tokengap reads {}.x: use the version that wrote the file",
        super::section::MAJOR
    )]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// Major version of its format.
        major: u16,
        /// Minor version of its format.
        minor: u16,
    },
}

/// Errors of reading a part of a recording. The next call of the reader continues after that part.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// An I/O error.
    #[error("cannot read {path} at byte {offset}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Offset in the file.
        offset: u64,
        /// Cause.
        #[source]
        error: io::Error,
    },
    /// The block is damaged.
    #[error("{path}: block {block} at byte {offset} is damaged ({why}); {records} records in it are lost")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Index of the block.
        block: usize,
        /// Offset in the file.
        offset: u64,
        /// Evidence of the damage.
        why: String,
        /// Number of its records.
        records: u32,
    },
}
