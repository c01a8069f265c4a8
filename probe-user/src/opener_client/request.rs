//! Requests to the opener and its replies: messages of bounded size.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use foreign::ReadError;
use rustix::io::Errno;

/// Operation, process id, inode of its directory in `/proc`, and two numbers. A path of at most [`MAX_PATH`] bytes may follow.
const HEAD_BYTES: usize = 32;
const MAX_PATH: usize = 4096;
pub(crate) const REQUEST_BYTES: usize = HEAD_BYTES + MAX_PATH;

/// Status, whether it is the last message, and three numbers. Up to [`MAX_PIECE_BYTES`] bytes of content follow.
const REPLY_HEAD_BYTES: usize = 32;
/// Maximum size of the content of one message. Content beyond it follows in further messages.
pub(crate) const MAX_PIECE_BYTES: usize = 32 << 10;
pub(crate) const REPLY_BYTES: usize = REPLY_HEAD_BYTES + MAX_PIECE_BYTES;

// Operations.
const MAPPINGS: u32 = 1;
const ENVIRONMENT: u32 = 2;
const DESCRIPTORS: u32 = 3;
const LINK: u32 = 4;
const NAMESPACE: u32 = 5;
const THREAD_FILE: u32 = 6;
const LIBRARY: u32 = 7;
const METADATA_FILE: u32 = 8;
const PACKAGE_NAMES: u32 = 9;
const OUTPUT: u32 = 10;
const OUTPUT_STATUS: u32 = 11;
const NAMED: u32 = 12;
const NAMED_STATUS: u32 = 13;

/// A process: its id, and the inode of its directory in `/proc`, which another process with this id does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessKey {
    pub(crate) pid: u32,
    pub(crate) inode: u64,
}

/// A link of a process to a file, of which only the path is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessLink {
    Program = 1,
    WorkingFolder = 2,
}

impl ProcessLink {
    pub(crate) const ALL: [Self; 2] = [Self::Program, Self::WorkingFolder];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Program => "exe",
            Self::WorkingFolder => "cwd",
        }
    }
}

/// A file about a thread that shows nothing without the right to trace it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadFile {
    /// The system call that it waits in.
    SystemCall = 1,
    /// The kernel function that it waits in.
    WaitFunction = 2,
}

impl ThreadFile {
    pub(crate) const ALL: [Self; 2] = [Self::SystemCall, Self::WaitFunction];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::SystemCall => "syscall",
            Self::WaitFunction => "wchan",
        }
    }
}

/// A request about a process.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    MetadataFile(PathBuf),
    /// Names of packages in a folder in its root (content).
    PackageNames(PathBuf),
    /// The file that it has as standard output or error (descriptor).
    Output { descriptor: u32 },
    /// Device, inode and size of that file (numbers).
    OutputStatus { descriptor: u32 },
}

impl ProcessRequest {
    /// Its operation and numbers; the process and a path are encoded separately.
    fn to_head(&self) -> RequestHead {
        match self {
            Self::Mappings => RequestHead::new(MAPPINGS, 0, 0),
            Self::Environment => RequestHead::new(ENVIRONMENT, 0, 0),
            Self::Descriptors { limit } => RequestHead::new(DESCRIPTORS, (*limit).into(), 0),
            Self::Link(link) => RequestHead::new(LINK, *link as u64, 0),
            Self::NetworkNamespace => RequestHead::new(NAMESPACE, 0, 0),
            Self::ThreadFile { tid, file } => RequestHead::new(THREAD_FILE, (*tid).into(), *file as u64),
            Self::Library { start, end } => RequestHead::new(LIBRARY, *start, *end),
            Self::MetadataFile(_) => RequestHead::new(METADATA_FILE, 0, 0),
            Self::PackageNames(_) => RequestHead::new(PACKAGE_NAMES, 0, 0),
            Self::Output { descriptor } => RequestHead::new(OUTPUT, (*descriptor).into(), 0),
            Self::OutputStatus { descriptor } => RequestHead::new(OUTPUT_STATUS, (*descriptor).into(), 0),
        }
    }
}

/// A request to the opener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OpenRequest {
    Process(ProcessKey, ProcessRequest),
    /// A file that the user named, by its index (descriptor).
    Named(u32),
    /// Device, inode and size of that file (numbers).
    NamedStatus(u32),
}

impl OpenRequest {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let head = match self {
            Self::Named(index) => RequestHead::new(NAMED, (*index).into(), 0),
            Self::NamedStatus(index) => RequestHead::new(NAMED_STATUS, (*index).into(), 0),
            Self::Process(process, request) => {
                RequestHead { pid: process.pid, inode: process.inode, ..request.to_head() }
            }
        };
        let mut bytes = head.to_bytes();
        if let Self::Process(_, ProcessRequest::MetadataFile(path) | ProcessRequest::PackageNames(path)) = self {
            bytes.extend_from_slice(path.as_os_str().as_bytes());
        }
        bytes
    }

    /// Parses a message; `None` if it is no request.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (head, path) = bytes.split_at_checked(HEAD_BYTES)?;
        let RequestHead { operation, pid, inode, first, second } = RequestHead::parse(head)?;
        let needs_path = matches!(operation, METADATA_FILE | PACKAGE_NAMES);
        // The process that asks is not trusted.
        let is_valid_path = path.first() == Some(&b'/') && path.len() <= MAX_PATH && !path.contains(&0);
        let is_valid = if needs_path { is_valid_path } else { path.is_empty() };
        if !is_valid {
            return None;
        }
        let path = PathBuf::from(OsStr::from_bytes(path));
        let number = u32::try_from(first).ok();
        let request = match operation {
            NAMED => return Some(Self::Named(number?)),
            NAMED_STATUS => return Some(Self::NamedStatus(number?)),
            MAPPINGS => ProcessRequest::Mappings,
            ENVIRONMENT => ProcessRequest::Environment,
            DESCRIPTORS => ProcessRequest::Descriptors { limit: number? },
            LINK => ProcessRequest::Link(ProcessLink::ALL.into_iter().find(|link| *link as u64 == first)?),
            NAMESPACE => ProcessRequest::NetworkNamespace,
            THREAD_FILE => {
                let file = ThreadFile::ALL.into_iter().find(|file| *file as u64 == second)?;
                ProcessRequest::ThreadFile { tid: number?, file }
            }
            LIBRARY => ProcessRequest::Library { start: first, end: second },
            METADATA_FILE => ProcessRequest::MetadataFile(path),
            PACKAGE_NAMES => ProcessRequest::PackageNames(path),
            // Standard output and error only.
            OUTPUT => ProcessRequest::Output { descriptor: standard_output(number?)? },
            OUTPUT_STATUS => ProcessRequest::OutputStatus { descriptor: standard_output(number?)? },
            _ => return None,
        };
        Some(Self::Process(ProcessKey { pid, inode }, request))
    }
}

/// The descriptor if it is that of standard output (1) or error (2).
fn standard_output(descriptor: u32) -> Option<u32> {
    (1..=2).contains(&descriptor).then_some(descriptor)
}

/// The part of fixed size of a request.
struct RequestHead {
    operation: u32,
    pid: u32,
    inode: u64,
    first: u64,
    second: u64,
}

impl RequestHead {
    const fn new(operation: u32, first: u64, second: u64) -> Self {
        Self { operation, pid: 0, inode: 0, first, second }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(REQUEST_BYTES);
        bytes.extend_from_slice(&self.operation.to_le_bytes());
        bytes.extend_from_slice(&self.pid.to_le_bytes());
        for number in [self.inode, self.first, self.second] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            operation: u32_at(bytes, 0)?,
            pid: u32_at(bytes, 4)?,
            inode: u64_at(bytes, 8)?,
            first: u64_at(bytes, 16)?,
            second: u64_at(bytes, 24)?,
        })
    }
}

/// A message of a reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReplyPiece {
    pub(crate) result: Result<(), ReadError>,
    /// Whether no further message of the reply follows.
    pub(crate) is_last: bool,
    pub(crate) numbers: [u64; 3],
    pub(crate) content: Vec<u8>,
}

impl ReplyPiece {
    /// The only message of a reply without content.
    pub(crate) fn single(result: Result<(), ReadError>) -> Self {
        Self { result, is_last: true, numbers: [0; 3], content: Vec::new() }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut numbers = self.numbers;
        let status = match self.result {
            Ok(()) => 0,
            Err(error) => {
                let coded = CodedError::encode(error);
                numbers[0] = coded.detail;
                coded.status
            }
        };
        let mut bytes = Vec::with_capacity(REPLY_HEAD_BYTES + self.content.len());
        bytes.extend_from_slice(&status.to_le_bytes());
        bytes.extend_from_slice(&u32::from(self.is_last).to_le_bytes());
        for number in numbers {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.content[..self.content.len().min(MAX_PIECE_BYTES)]);
        bytes
    }

    /// Parses a message; `None` if it is none.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (head, content) = bytes.split_at_checked(REPLY_HEAD_BYTES)?;
        let mut numbers = [u64_at(head, 8)?, u64_at(head, 16)?, u64_at(head, 24)?];
        let result = match u32_at(head, 0)? {
            0 => Ok(()),
            status => {
                // In place of the first number, an error has its detail.
                let detail = std::mem::take(&mut numbers[0]);
                Err(CodedError { status, detail }.decode()?)
            }
        };
        Some(Self { result, is_last: u32_at(head, 4)? != 0, numbers, content: content.to_vec() })
    }
}

/// An error in a message.
struct CodedError {
    status: u32,
    detail: u64,
}

impl CodedError {
    fn encode(error: ReadError) -> Self {
        let mut detail = 0;
        let status = match error {
            ReadError::Denied => 1,
            ReadError::Gone => 2,
            ReadError::TooLong(limit) => {
                detail = limit as u64;
                3
            }
            ReadError::TooMany(limit) => {
                detail = limit as u64;
                4
            }
            ReadError::NotRegular => 5,
            ReadError::UnexpectedFileSystem => 6,
            ReadError::Replaced => 7,
            ReadError::NotExamined => 8,
            ReadError::OpenerEnded => 9,
            ReadError::Os(errno) => {
                detail = errno.raw_os_error().unsigned_abs().into();
                10
            }
        };
        Self { status, detail }
    }

    fn decode(&self) -> Option<ReadError> {
        let limit = usize::try_from(self.detail).ok()?;
        // The numbers of `encode`.
        Some(match self.status {
            1 => ReadError::Denied,
            2 => ReadError::Gone,
            3 => ReadError::TooLong(limit),
            4 => ReadError::TooMany(limit),
            5 => ReadError::NotRegular,
            6 => ReadError::UnexpectedFileSystem,
            7 => ReadError::Replaced,
            8 => ReadError::NotExamined,
            9 => ReadError::OpenerEnded,
            10 => ReadError::Os(parse_errno(limit)?),
            _ => return None,
        })
    }
}

/// The error with this number; `None` if no error can have it.
fn parse_errno(number: usize) -> Option<Errno> {
    let number = i32::try_from(number).ok()?;
    // Numbers of errors have 12 bits.
    (1..1 << 12).contains(&number).then(|| Errno::from_raw_os_error(number))
}

/// An open descriptor of a process of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenDescriptor {
    /// A socket, with its inode.
    Socket { fd: u32, inode: u64 },
    /// The process uses `io_uring`.
    IoUring,
}

/// Bytes of a descriptor in a message: number and inode, which is 0 for `io_uring`.
const DESCRIPTOR_BYTES: usize = 12;

/// Encodes open descriptors, in the form that [`parse_descriptors`] reads.
pub(crate) fn descriptors_to_bytes(descriptors: &[OpenDescriptor]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(descriptors.len() * DESCRIPTOR_BYTES);
    for descriptor in descriptors {
        let (fd, inode) = match *descriptor {
            OpenDescriptor::Socket { fd, inode } => (fd, inode),
            OpenDescriptor::IoUring => (0, 0),
        };
        bytes.extend_from_slice(&fd.to_le_bytes());
        bytes.extend_from_slice(&inode.to_le_bytes());
    }
    bytes
}

/// Decodes open descriptors.
pub(crate) fn parse_descriptors(bytes: &[u8]) -> Vec<OpenDescriptor> {
    let descriptors = bytes.chunks_exact(DESCRIPTOR_BYTES).filter_map(|entry| {
        let fd = u32_at(entry, 0)?;
        let inode = u64_at(entry, 4)?;
        Some(if inode == 0 { OpenDescriptor::IoUring } else { OpenDescriptor::Socket { fd, inode } })
    });
    descriptors.collect()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Whether a path fits a request. A longer one cannot be opened by the kernel, either.
pub(crate) fn fits_request(path: &Path) -> bool {
    path.is_absolute() && path.as_os_str().len() <= MAX_PATH && !path.as_os_str().as_bytes().contains(&0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_request() -> impl Strategy<Value = OpenRequest> {
        let path = || "/[a-z/.]{0,40}".prop_map(PathBuf::from);
        let about = prop_oneof![
            Just(ProcessRequest::Mappings),
            Just(ProcessRequest::Environment),
            Just(ProcessRequest::NetworkNamespace),
            any::<u32>().prop_map(|limit| ProcessRequest::Descriptors { limit }),
            prop::sample::select(ProcessLink::ALL.to_vec()).prop_map(ProcessRequest::Link),
            (any::<u32>(), prop::sample::select(ThreadFile::ALL.to_vec()))
                .prop_map(|(tid, file)| ProcessRequest::ThreadFile { tid, file }),
            (any::<u64>(), any::<u64>()).prop_map(|(start, end)| ProcessRequest::Library { start, end }),
            path().prop_map(ProcessRequest::MetadataFile),
            path().prop_map(ProcessRequest::PackageNames),
            (1..=2_u32).prop_map(|descriptor| ProcessRequest::Output { descriptor }),
            (1..=2_u32).prop_map(|descriptor| ProcessRequest::OutputStatus { descriptor }),
        ];
        prop_oneof![
            any::<u32>().prop_map(OpenRequest::Named),
            any::<u32>().prop_map(OpenRequest::NamedStatus),
            (any::<u32>(), any::<u64>(), about)
                .prop_map(|(pid, inode, about)| OpenRequest::Process(ProcessKey { pid, inode }, about)),
        ]
    }

    fn any_error() -> impl Strategy<Value = ReadError> {
        prop_oneof![
            prop::sample::select(vec![
                ReadError::Denied,
                ReadError::Gone,
                ReadError::NotRegular,
                ReadError::UnexpectedFileSystem,
                ReadError::Replaced,
                ReadError::NotExamined,
                ReadError::OpenerEnded,
            ]),
            any::<u32>().prop_map(|limit| ReadError::TooLong(limit as usize)),
            any::<u32>().prop_map(|limit| ReadError::TooMany(limit as usize)),
            (1..4096_i32).prop_map(|number| ReadError::Os(Errno::from_raw_os_error(number))),
        ]
    }

    proptest! {
        #[test]
        fn requests_round_trip(request in any_request()) {
            prop_assert_eq!(OpenRequest::parse(&request.to_bytes()), Some(request));
        }

        #[test]
        fn any_message_is_a_bounded_request_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..200), operation in 0_u8..16) {
            for (byte, value) in bytes.iter_mut().zip([operation, 0, 0, 0]) {
                *byte = value;
            }
            match OpenRequest::parse(&bytes) {
                Some(OpenRequest::Process(_, ProcessRequest::MetadataFile(path) | ProcessRequest::PackageNames(path))) => {
                    prop_assert!(fits_request(&path));
                }
                Some(OpenRequest::Process(_, ProcessRequest::Output { descriptor })) => {
                    prop_assert!(standard_output(descriptor).is_some());
                }
                _ => {}
            }
            let _ = ReplyPiece::parse(&bytes);
            let _ = parse_descriptors(&bytes);
        }

        #[test]
        fn replies_round_trip(numbers: [u64; 3], content in prop::collection::vec(any::<u8>(), 0..100), is_last: bool, error in any_error()) {
            let success = ReplyPiece { result: Ok(()), is_last, numbers, content };
            prop_assert_eq!(ReplyPiece::parse(&success.to_bytes()), Some(success));
            let failure = ReplyPiece::single(Err(error));
            prop_assert_eq!(ReplyPiece::parse(&failure.to_bytes()), Some(failure));
        }
    }

    #[test]
    fn requests_outside_the_list_are_refused() {
        let process = ProcessKey { pid: 1, inode: 2 };
        let output = |descriptor| OpenRequest::Process(process, ProcessRequest::Output { descriptor }).to_bytes();
        assert!(OpenRequest::parse(&output(2)).is_some() && OpenRequest::parse(&output(3)).is_none());
        let file = |path: String| OpenRequest::Process(process, ProcessRequest::MetadataFile(path.into())).to_bytes();
        assert!(OpenRequest::parse(&file("/a".to_owned())).is_some());
        for path in ["a".to_owned(), String::new(), "/a\0b".to_owned(), format!("/{}", "a".repeat(MAX_PATH))] {
            assert!(OpenRequest::parse(&file(path)).is_none());
        }
        let mut with_path = OpenRequest::Process(process, ProcessRequest::Mappings).to_bytes();
        with_path.push(b'/');
        assert!(OpenRequest::parse(&with_path).is_none());
        assert!(OpenRequest::parse(&[0; HEAD_BYTES]).is_none());
    }

    #[test]
    fn descriptors_round_trip() {
        let descriptors = [OpenDescriptor::Socket { fd: 3, inode: 99 }, OpenDescriptor::IoUring];
        assert_eq!(parse_descriptors(&descriptors_to_bytes(&descriptors)), descriptors);
    }
}
