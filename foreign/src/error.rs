//! Why a file was not opened or read.

use rustix::io::Errno;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Error of opening or reading a file of another process or of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum ReadError {
    /// Permission denied: another user's process, or a hardened `/proc`.
    #[error("not permitted")]
    Denied,
    /// The process or file does not exist, or no longer exists.
    #[error("not there")]
    Gone,
    /// Longer than the limit for this file.
    #[error("longer than {0} bytes")]
    TooLong(usize),
    /// More files than the limit in place of one.
    #[error("more than {0} files in place of one")]
    TooMany(usize),
    /// A device, pipe or directory in place of a regular file.
    #[error("not a regular file")]
    NotRegular,
    /// On another kind of file system than expected: a file of the kernel, such as `/proc/kmsg`, in place of one on a disk.
    #[error("on an unexpected file system")]
    UnexpectedFileSystem,
    /// A file other than the expected one: another inode or owner.
    #[error("another file has its name")]
    Replaced,
    /// The process that opens files for this one does so only for processes of engines.
    #[error("not a process of an engine")]
    NotExamined,
    /// The process that opens files for this one has exited.
    #[error("the process that opens files for tokengap has exited")]
    OpenerEnded,
    /// Any other error from the kernel.
    #[error("{0}")]
    Os(#[serde(serialize_with = "serialize_errno", deserialize_with = "deserialize_errno")] Errno),
}

/// Writes an error as its number.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn serialize_errno<S: Serializer>(errno: &Errno, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i32(errno.raw_os_error())
}

/// Reads an error's number, and refuses one that the kernel cannot return.
fn deserialize_errno<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Errno, D::Error> {
    // The kernel's numbers have 12 bits.
    const NUMBER_END: i32 = 1 << 12;
    let number = i32::deserialize(deserializer)?;
    if !(1..NUMBER_END).contains(&number) {
        return Err(serde::de::Error::custom("no error's number"));
    }
    Ok(Errno::from_raw_os_error(number))
}

impl From<Errno> for ReadError {
    /// Names the usual errors, and keeps the number of any other.
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::ACCESS | Errno::PERM => Self::Denied,
            Errno::NOENT | Errno::SRCH | Errno::NOTDIR => Self::Gone,
            other => Self::Os(other),
        }
    }
}

impl From<std::io::Error> for ReadError {
    fn from(error: std::io::Error) -> Self {
        Errno::from_io_error(&error).unwrap_or(Errno::IO).into()
    }
}

impl From<ReadError> for std::io::Error {
    /// The error of the same meaning, with the kind that the standard library gives it.
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Os(errno) => errno.into(),
            ReadError::Denied => Self::new(std::io::ErrorKind::PermissionDenied, error),
            ReadError::Gone => Self::new(std::io::ErrorKind::NotFound, error),
            other => Self::other(other),
        }
    }
}
