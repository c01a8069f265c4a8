//! Errors of recordings.

use std::io;
use std::path::{Path, PathBuf};

/// A recording could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file is there already.
    #[error("{path} exists already; name another file, or give --force to replace it")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Something is there that is no plain file and is not to be replaced.
    #[error("{path} is not a plain file; name another file")]
    NotAFile {
        /// Path of the existing file.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot {what} {path}: {error}")]
    Io {
        /// Failed operation: `create`, `write to`, ...
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// The file was unlinked, so nobody can read what is written to it.
    #[error("{path} was removed while it was written: nothing of it is left")]
    Removed {
        /// The file that was.
        path: PathBuf,
    },
    /// The ring cannot hold its own header and a block.
    #[error("a ring of {size} bytes is too small; give it at least {least}")]
    TooSmall {
        /// The size asked for.
        size: u64,
        /// The smallest one that works.
        least: u64,
    },
    /// The recording had ended before the run did.
    #[error("{0}")]
    Stopped(String),
    /// The disk did not answer in time; the file may lack its end.
    #[error("{path}: the disk has not answered for {seconds} s; its last blocks may be missing")]
    Silent {
        /// The file.
        path: PathBuf,
        /// How long it was waited for.
        seconds: u64,
    },
    /// There is nothing yet to dump.
    #[error("the ring holds nothing yet")]
    Empty,
}

impl RecordError {
    pub(super) fn io(what: &'static str, path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::AlreadyExists => Self::Exists { path },
            _ => Self::Io { what, path, error },
        }
    }
}

/// A file cannot be opened as a recording.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refused.
    #[error("cannot read {path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// It does not begin as recordings do.
    #[error("{path} is no recording of tokengap; give what --record or --hindsight wrote")]
    NotARecording {
        /// The file.
        path: PathBuf,
    },
    /// It ends before its first block, or its header is damaged.
    #[error(
        "{path} was cut or damaged in its first {bytes} bytes: nothing in it can be read; if it is a copy, copy it again"
    )]
    NoHeader {
        /// The file.
        path: PathBuf,
        /// How far the header goes.
        bytes: u64,
    },
    /// A later version wrote it.
    #[error(
        "{path} is of format {major}.{minor}; this version reads up to {}.x: use a newer tokengap",
        super::section::MAJOR
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        major: u16,
        /// Its format's additions.
        minor: u16,
    },
}

/// A part of a recording cannot be read. The reader goes on behind it at the next call.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system refused.
    #[error("cannot read {path} at byte {offset}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// The bytes are not those that were written.
    #[error("{path}: block {block} at byte {offset} is damaged ({why}); {records} records in it are lost")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which block.
        block: usize,
        /// Offset in the file.
        offset: u64,
        /// Evidence of the damage.
        why: String,
        /// How many records it had.
        records: u32,
    },
}
