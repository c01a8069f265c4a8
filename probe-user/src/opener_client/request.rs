//! Requests to the opener and its replies: messages of bounded size.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use foreign::ReadError;
use serde::{Deserialize, Serialize};

use crate::message::{byte_string, decode_message};

const MAX_PATH: usize = 4096;
/// Maximum size of a request.
pub(crate) const REQUEST_BYTES: usize = MAX_PATH + 128;

/// Maximum size of the content of one message. Content beyond it follows in further messages.
pub(crate) const MAX_PIECE_BYTES: usize = 32 << 10;
/// Maximum size of a message of a reply.
pub(crate) const REPLY_BYTES: usize = MAX_PIECE_BYTES + 128;

/// A process: its id, and the inode of its directory in `/proc`, which another process with this id does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessKey {
    pub(crate) pid: u32,
    pub(crate) inode: u64,
}

/// A link of a process to a file, of which only the path is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProcessLink {
    Program,
    WorkingFolder,
}

impl ProcessLink {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 2] = [Self::Program, Self::WorkingFolder];

    /// Name of the link in `/proc/PID`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Program => "exe",
            Self::WorkingFolder => "cwd",
        }
    }
}

/// A file about a thread that shows nothing without the right to trace it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ThreadFile {
    /// The system call that it waits in.
    SystemCall,
    /// The kernel function that it waits in.
    WaitFunction,
}

impl ThreadFile {
    /// Name of the file in `/proc/PID/task/TID`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::SystemCall => "syscall",
            Self::WaitFunction => "wchan",
        }
    }
}

/// A request about a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProcessRequest {
    /// `maps` (descriptor).
    Mappings,
    /// `environ` (descriptor).
    Environment,
    /// Its sockets, and whether it uses `io_uring`, of at most this many descriptors (content).
    Descriptors { limit: u32 },
    /// Path that a link leads to (content).
    Link(ProcessLink),
    /// Inode of its network namespace (number).
    NetworkNamespace,
    /// A file about a thread (content).
    ThreadFile { tid: u32, file: ThreadFile },
    /// The library mapped at these addresses (descriptor).
    Library { start: u64, end: u64 },
    /// The file at a path in its root that states the release of a package, or is a tokenizer (descriptor).
    MetadataFile(#[serde(with = "byte_string")] PathBuf),
    /// Names of packages in a folder in its root (content).
    PackageNames(#[serde(with = "byte_string")] PathBuf),
    /// The file that it has as standard output or error (descriptor).
    Output { descriptor: u32 },
    /// Device, inode and size of that file (numbers).
    OutputStatus { descriptor: u32 },
}

/// A request to the opener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OpenRequest {
    Process(ProcessKey, ProcessRequest),
    /// A file that the user named, by its index (descriptor).
    Named(u32),
    /// Device, inode and size of that file (numbers).
    NamedStatus(u32),
}

impl OpenRequest {
    /// Parses a message. `None` if it is no request, or one that is never permitted.
    pub(crate) fn parse_permitted(bytes: &[u8]) -> Option<Self> {
        let request: Self = decode_message(bytes)?;
        // The process that asks is not trusted, so its values are checked.
        let is_permitted = match &request {
            // Only a path from the root, of bounded length.
            Self::Process(_, ProcessRequest::MetadataFile(path) | ProcessRequest::PackageNames(path)) => {
                fits_request(path)
            }
            // Standard output and error only.
            Self::Process(_, ProcessRequest::Output { descriptor } | ProcessRequest::OutputStatus { descriptor }) => {
                (1..=2).contains(descriptor)
            }
            _ => true,
        };
        is_permitted.then_some(request)
    }
}

/// A message of a reply.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReplyPiece {
    pub(crate) result: Result<(), ReadError>,
    /// Whether no further message of the reply follows.
    pub(crate) is_last: bool,
    /// Meaning by request ([`ProcessRequest`]); unused ones are 0. Of a list of descriptors, the first is 1 if it is truncated.
    pub(crate) numbers: [u64; 3],
    #[serde(with = "byte_string")]
    pub(crate) content: Vec<u8>,
}

impl ReplyPiece {
    /// The only message of a reply without content.
    pub(crate) fn single(result: Result<(), ReadError>) -> Self {
        Self { result, is_last: true, numbers: [0; 3], content: Vec::new() }
    }
}

/// An open descriptor of a process of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OpenDescriptor {
    /// A socket, with its inode.
    Socket { fd: u32, inode: u64 },
    /// The process uses `io_uring`.
    IoUring,
}

/// Whether a path fits a request. A longer one cannot be opened by the kernel, either.
pub(crate) fn fits_request(path: &Path) -> bool {
    path.is_absolute() && path.as_os_str().len() <= MAX_PATH && !path.as_os_str().as_bytes().contains(&0)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use rustix::io::Errno;

    use super::*;
    use crate::message::encode_message;

    const PROCESS: ProcessKey = ProcessKey { pid: u32::MAX, inode: u64::MAX };

    fn parse(request: ProcessRequest) -> Option<OpenRequest> {
        OpenRequest::parse_permitted(&encode_message(&OpenRequest::Process(PROCESS, request)))
    }

    #[test]
    fn the_longest_requests_fit_and_are_read_as_they_were_sent() {
        let path = PathBuf::from(OsStr::from_bytes(&[&b"/\xff"[..], &[b'a'; MAX_PATH - 2]].concat()));
        for request in [
            ProcessRequest::MetadataFile(path),
            ProcessRequest::ThreadFile { tid: u32::MAX, file: ThreadFile::WaitFunction },
            ProcessRequest::Library { start: u64::MAX, end: u64::MAX },
        ] {
            let request = OpenRequest::Process(PROCESS, request);
            let bytes = encode_message(&request);
            assert!(bytes.len() <= REQUEST_BYTES, "{}", bytes.len());
            assert_eq!(OpenRequest::parse_permitted(&bytes), Some(request));
        }
    }

    #[test]
    fn requests_outside_the_list_are_refused() {
        let output = |descriptor| parse(ProcessRequest::Output { descriptor });
        assert!(output(2).is_some() && output(3).is_none() && output(0).is_none());
        let file = |path: String| parse(ProcessRequest::MetadataFile(path.into()));
        assert!(file("/a".to_owned()).is_some());
        for path in ["a".to_owned(), String::new(), "/a\0b".to_owned(), format!("/{}", "a".repeat(MAX_PATH))] {
            assert_eq!(file(path), None);
        }
        let more = [&encode_message(&OpenRequest::Named(0))[..], b"/"].concat();
        assert_eq!(OpenRequest::parse_permitted(&more), None);
    }

    #[test]
    fn errors_are_read_as_they_were_sent_and_impossible_ones_refused() {
        for error in [ReadError::TooLong(usize::MAX), ReadError::NotExamined, ReadError::Os(Errno::PROTO)] {
            let piece = ReplyPiece::single(Err(error));
            assert_eq!(decode_message(&encode_message(&piece)), Some(piece));
        }
        // The kernel's numbers have 12 bits.
        for number in [i32::MIN, 0, 4096] {
            let error = encode_message(&("Os", number));
            // A variant is a map of its name to its content.
            assert_eq!(decode_message::<ReadError>(&[&[0x81], &error[1..]].concat()), None, "{number}");
        }
    }

    #[test]
    fn content_of_the_greatest_length_fits_a_message() {
        let content = vec![0xff; MAX_PIECE_BYTES];
        let piece = ReplyPiece { result: Ok(()), is_last: true, numbers: [u64::MAX; 3], content };
        let bytes = encode_message(&piece);
        assert!(bytes.len() <= REPLY_BYTES, "{}", bytes.len());
        assert_eq!(decode_message(&bytes), Some(piece));
    }
}
