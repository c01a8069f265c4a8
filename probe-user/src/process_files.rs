//! Files of processes that an attached run reads beside those of discovery, and files that the user named.

use std::fs::File;
use std::io;
use std::path::Path;

use foreign::{ExpectedFile, ReadError, RegularFile};

use crate::opener_client::request::{OpenDescriptor, OpenRequest};
use crate::opener_client::{self, OpenerReply};
use crate::proc::ProcDir;

pub use crate::proc::FileStatus;

/// Maximum number of descriptors of a process that are examined.
pub(crate) const MAX_DESCRIPTORS: usize = 65_536;

/// Whether the process reads sockets without system calls of its own. False if that cannot be read.
pub fn uses_io_uring(pid: u32) -> bool {
    let descriptors = ProcDir::open(pid).and_then(|process| process.list_sockets_and_io_urings(MAX_DESCRIPTORS));
    descriptors.is_ok_and(|descriptors| descriptors.items.contains(&OpenDescriptor::IoUring))
}

/// Opens the regular file that a process has as standard output (1) or error (2).
pub fn open_output(pid: u32, descriptor: u32) -> Result<RegularFile, ReadError> {
    ProcDir::open(pid)?.open_output(descriptor)
}

/// The file that a process has as standard output (1) or error (2).
pub fn output_status(pid: u32, descriptor: u32) -> Result<FileStatus, ReadError> {
    ProcDir::open(pid)?.output_status(descriptor)
}

/// Opens a file that the user named, if it is a regular one. If this process may not open it, asks the opener process, which may.
pub fn open_user_named_regular(path: &Path, expected: ExpectedFile) -> Result<RegularFile, ReadError> {
    match RegularFile::open(path, expected) {
        Err(ReadError::Denied) => ask_opener_about_named_file(path, OpenRequest::Named)?.into_regular_file(expected),
        opened => opened,
    }
}

/// Opens a regular file that the user named. If this process may not open it, asks the opener process, which may.
pub fn open_user_named_file(path: &Path) -> io::Result<File> {
    match trace::named_file::open_regular(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let reply = ask_opener_about_named_file(path, OpenRequest::Named)?;
            Ok(reply.into_file()?.into())
        }
        opened => opened,
    }
}

/// Device, inode and size of the file that a path of the user leads to. If this process may not read them, asks the opener process.
pub fn user_named_file_status(path: &Path) -> Result<FileStatus, ReadError> {
    match rustix::fs::stat(path).map_err(ReadError::from) {
        Err(ReadError::Denied) => {
            let reply = ask_opener_about_named_file(path, OpenRequest::NamedStatus)?;
            Ok(FileStatus::from_numbers(reply.numbers))
        }
        found => Ok(FileStatus::from_stat(&found?)),
    }
}

/// Asks the opener process about a file that the user named and that this process may not read. `to_request` makes the request from the
/// index of the file among the named ones. An error if there is no opener, or if the user did not name the file.
fn ask_opener_about_named_file(path: &Path, to_request: fn(u32) -> OpenRequest) -> Result<OpenerReply, ReadError> {
    let opener = opener_client::connected_opener().ok_or(ReadError::Denied)?;
    let index = opener.index_of_named(path).ok_or(ReadError::Denied)?;
    opener.send_request(&to_request(index))
}
