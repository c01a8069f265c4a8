//! The opener process of [`crate::opener_client`]: opens files of processes on request, for a process that may not.
//!
//! It reads the content of no file that another process wrote. Of the kernel's texts it uses the ids in `status`, and the names and
//! addresses in `maps` and `cmdline` that decide whether a process belongs to an engine. Paths that a process chose are resolved in the
//! process's own root with the rights of its user. It ends with its peer.

mod rights;
mod rules;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use adapter::discover::Engines;
use foreign::{ExpectedFile, ReadError, RegularFile, kernel};
use rustix::fs::stat;
use rustix::io::Errno;

use crate::channel;
use crate::message::encode_message;
use crate::opener_client::CONNECT;
use crate::opener_client::request::{
    MAX_PIECE_BYTES, OpenRequest, ProcessKey, ProcessRequest, REQUEST_BYTES, ReplyPiece,
};
use crate::proc::maps::{self, AddressRange};
use crate::proc::{FileStatus, ProcDir};

use rights::ProcessAccount;
use rules::{ExaminedProcesses, is_metadata_file, is_package_name, is_probed_library};

/// Maximum number of connections. Each has a thread, since a file may not answer for ever.
const MAX_CONNECTIONS: usize = 16;
/// Maximum number of requests a second; further ones wait.
const MAX_REQUESTS_PER_INTERVAL: u32 = 20_000;
const PACE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of descriptors of a process that are listed.
const MAX_DESCRIPTORS: usize = 65_536;
/// Maximum number of names read in a folder of packages, and the maximum size of those returned.
const MAX_NAMES: usize = 50_000;
const MAX_NAME_BYTES: usize = 4 << 20;
/// Maximum size of `/proc/PID/maps` and `status`.
const MAX_MAPPINGS_BYTES: usize = 64 << 20;

/// What the opener may open.
#[derive(Clone, Debug)]
pub struct Permitted {
    /// Engines whose processes are examined.
    pub engines: Engines,
    /// Processes that the user named.
    pub pids: Vec<u32>,
    /// Files that the user named.
    pub files: Vec<PathBuf>,
}

/// Runs the opener, a process that opens files for another process without the right to do so. Serves the connections that are passed
/// through `socket`, each on a thread of its own. Returns when the other end of `socket` is closed.
pub fn serve_connections(socket: BorrowedFd<'_>, permitted: Permitted) -> io::Result<()> {
    let server = Arc::new(OpenerServer {
        examined: ExaminedProcesses::new(permitted.engines, &permitted.pids),
        engines: permitted.engines,
        files: permitted.files,
        pace: Mutex::new(RequestPace { interval_start: Instant::now(), requests: 0 }),
    });
    let connection_count = Arc::new(AtomicUsize::new(0));
    let mut buffer = [0; CONNECT.len()];
    loop {
        let received = match channel::receive_message(socket, &mut buffer) {
            Ok(received) if received.bytes == 0 => return Ok(()),
            // A message that is too long is ignored.
            Err(Errno::MSGSIZE) => continue,
            received => received?,
        };
        // A message without exactly one descriptor is ignored.
        if let Some(connection) = only_descriptor(received.descriptors) {
            serve_connection_on_thread(Arc::clone(&server), connection, &connection_count);
        }
    }
}

/// The descriptor of a message that has exactly one. `None` for any other message, whose descriptors are closed.
fn only_descriptor(mut descriptors: Vec<OwnedFd>) -> Option<OwnedFd> {
    let descriptor = descriptors.pop()?;
    descriptors.is_empty().then_some(descriptor)
}

/// Serves a connection on a thread of its own. If [`MAX_CONNECTIONS`] are open, or if no thread can be started, closes it instead.
fn serve_connection_on_thread(server: Arc<OpenerServer>, connection: OwnedFd, connection_count: &Arc<AtomicUsize>) {
    // Only the caller's thread adds to the count.
    if connection_count.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
        connection_count.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let shared_count = Arc::clone(connection_count);
    let thread = thread::Builder::new().name("opener".into()).spawn(move || {
        if let Err(error) = server.serve_connection(&connection) {
            tracing::debug!("a connection of the opener ended: {error}");
        }
        shared_count.fetch_sub(1, Ordering::Relaxed);
    });
    // The thread that would take the connection from the count was not started.
    if thread.is_err() {
        connection_count.fetch_sub(1, Ordering::Relaxed);
    }
}

struct OpenerServer {
    examined: ExaminedProcesses,
    engines: Engines,
    files: Vec<PathBuf>,
    pace: Mutex<RequestPace>,
}

/// Requests of the current interval.
struct RequestPace {
    interval_start: Instant,
    requests: u32,
}

impl RequestPace {
    /// Counts a request. If there were too many in this interval, returns how long it must wait. `None` if it need not wait.
    fn count_request_and_find_delay(&mut self) -> Option<Duration> {
        if self.interval_start.elapsed() >= PACE_INTERVAL {
            *self = Self { interval_start: Instant::now(), requests: 0 };
        }
        self.requests += 1;
        if self.requests <= MAX_REQUESTS_PER_INTERVAL {
            return None;
        }
        // Until the interval ends.
        Some(PACE_INTERVAL.saturating_sub(self.interval_start.elapsed()))
    }
}

/// Answer to a request.
#[derive(Default)]
struct OpenerAnswer {
    numbers: [u64; 3],
    content: Vec<u8>,
    file: Option<OwnedFd>,
}

impl OpenerAnswer {
    fn with_file(file: impl Into<OwnedFd>) -> Self {
        Self { file: Some(file.into()), ..Self::default() }
    }

    fn with_content(content: Vec<u8>) -> Self {
        Self { content, ..Self::default() }
    }

    /// A reply whose only number is this one.
    fn with_number(number: u64) -> Self {
        Self::with_numbers([number, 0, 0])
    }

    fn with_numbers(numbers: [u64; 3]) -> Self {
        Self { numbers, ..Self::default() }
    }
}

impl OpenerServer {
    /// Answers requests until the connection is closed. Delays requests that come too fast. A malformed request ends the connection.
    fn serve_connection(&self, connection: &OwnedFd) -> io::Result<()> {
        let mut buffer = vec![0; REQUEST_BYTES];
        loop {
            let received = channel::receive_message(connection.as_fd(), &mut buffer)?;
            if received.bytes == 0 {
                return Ok(());
            }
            let delay = self.pace.lock().unwrap_or_else(PoisonError::into_inner).count_request_and_find_delay();
            if let Some(delay) = delay {
                thread::sleep(delay);
            }
            let Some(request) = OpenRequest::parse_permitted(&buffer[..received.bytes]) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            send_reply(connection.as_fd(), self.answer_request(&request))?;
        }
    }

    /// Answers a request about a process, or about a file that the user named.
    fn answer_request(&self, request: &OpenRequest) -> Result<OpenerAnswer, ReadError> {
        match request {
            OpenRequest::Process(process, request) => self.answer_process_request(*process, request),
            OpenRequest::Named(index) => {
                let file = RegularFile::open(self.path_of_named(*index)?, ExpectedFile::ANY)?;
                Ok(OpenerAnswer::with_file(file.into_file()))
            }
            OpenRequest::NamedStatus(index) => {
                let status = FileStatus::from_stat(&stat(self.path_of_named(*index)?)?);
                Ok(OpenerAnswer::with_numbers(status.to_numbers()))
            }
        }
    }

    /// Path of the file that the user named, by its index. Any other index is refused.
    fn path_of_named(&self, index: u32) -> Result<&PathBuf, ReadError> {
        self.files.get(index as usize).ok_or(ReadError::Denied)
    }

    /// Answers a request about a process of an engine. Any other process is refused.
    fn answer_process_request(&self, key: ProcessKey, request: &ProcessRequest) -> Result<OpenerAnswer, ReadError> {
        // This process is the opener, so it opens the files itself.
        let process = ProcDir::with_opener(key.pid, None)?;
        // Another process has the id now.
        if process.inode()? != key.inode {
            return Err(ReadError::Gone);
        }
        if !self.examined.may_open_files_of(&process)? {
            return Err(ReadError::NotExamined);
        }
        Ok(match request {
            ProcessRequest::Mappings => OpenerAnswer::with_file(process.open_mappings()?),
            ProcessRequest::Environment => OpenerAnswer::with_file(process.open_environment()?),
            ProcessRequest::Descriptors { limit } => answer_with_socket_list(&process, *limit)?,
            ProcessRequest::Link(link) => {
                OpenerAnswer::with_content(process.read_process_link(*link)?.as_os_str().as_bytes().to_vec())
            }
            ProcessRequest::NetworkNamespace => OpenerAnswer::with_number(process.network_namespace_inode()?),
            ProcessRequest::ThreadFile { tid, file } => {
                OpenerAnswer::with_content(process.read_thread_file(*tid, *file)?)
            }
            // The process chose these files, so they are opened with the rights of its user only.
            _ => return self.answer_with_rights_of_its_user(&process, request),
        })
    }

    /// Answers a request about files that the process chose. They are opened with the rights of the process's user, so that it cannot name
    /// files that it may not read itself. The process that asks is not trusted either, and gets only files that discovery and the probe
    /// need.
    fn answer_with_rights_of_its_user(
        &self,
        process: &ProcDir,
        request: &ProcessRequest,
    ) -> Result<OpenerAnswer, ReadError> {
        let account = rights::parse_account(&process.read("status", kernel::MAX_STATUS_BYTES)?)?;
        match request {
            ProcessRequest::Library { start, end } => {
                let range = AddressRange { start: *start, end: *end };
                let library = self.open_probed_library(process, range, &account)?;
                Ok(OpenerAnswer::with_file(library.into_file()))
            }
            ProcessRequest::MetadataFile(path) => {
                if !is_metadata_file(path, self.engines) {
                    return Err(ReadError::Denied);
                }
                let metadata = open_with_rights_of(&account, || process.root()?.open_metadata(path))?;
                Ok(OpenerAnswer::with_file(metadata.into_file()))
            }
            ProcessRequest::PackageNames(folder) => {
                let names = open_with_rights_of(&account, || process.root()?.package_names(folder, MAX_NAMES))?;
                Ok(OpenerAnswer::with_content(self.join_package_names(&names)))
            }
            ProcessRequest::Output { descriptor } => {
                let output = open_with_rights_of(&account, || process.open_output(*descriptor))?;
                Ok(OpenerAnswer::with_file(output.into_file()))
            }
            ProcessRequest::OutputStatus { descriptor } => {
                let status = open_with_rights_of(&account, || process.output_status(*descriptor))?;
                Ok(OpenerAnswer::with_numbers(status.to_numbers()))
            }
            // The kernel's own files: see `answer_process_request`.
            _ => Err(ReadError::Denied),
        }
    }

    /// Opens the library that the process has mapped at these addresses, if probes may need it.
    fn open_probed_library(
        &self,
        process: &ProcDir,
        range: AddressRange,
        account: &ProcessAccount,
    ) -> Result<RegularFile, ReadError> {
        let files = maps::parse_mapped_files(&process.mappings(MAX_MAPPINGS_BYTES)?);
        let file = files.iter().find(|file| file.range == range).ok_or(ReadError::Gone)?;
        if !is_probed_library(file, self.engines) {
            return Err(ReadError::Denied);
        }
        open_with_rights_of(account, || process.open_library(file))
    }

    /// Joins the names, each with a NUL behind it. Leaves out names that are not those of packages, and names for which
    /// [`MAX_NAME_BYTES`] leaves no room.
    fn join_package_names(&self, names: &[OsString]) -> Vec<u8> {
        let mut joined = Vec::new();
        for name in names {
            let name = name.as_bytes();
            if is_package_name(name, self.engines) && joined.len() + name.len() < MAX_NAME_BYTES {
                joined.extend_from_slice(name);
                joined.push(0);
            }
        }
        joined
    }
}

/// Calls `open` with the rights of an account. Fails if `open` does, or if the rights cannot be taken.
fn open_with_rights_of<T>(
    account: &ProcessAccount,
    open: impl FnOnce() -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    rights::call_with_rights_of(account, open)?
}

/// Lists the sockets of a process, and whether it uses `io_uring`. Reads at most `max_descriptors`. The number in the answer is 1 if the
/// list is truncated.
fn answer_with_socket_list(process: &ProcDir, max_descriptors: u32) -> Result<OpenerAnswer, ReadError> {
    let descriptors = process.list_sockets_and_io_urings(MAX_DESCRIPTORS.min(max_descriptors as usize))?;
    let content = encode_message(&descriptors.items);
    let is_truncated = u64::from(descriptors.is_truncated);
    Ok(OpenerAnswer { content, ..OpenerAnswer::with_number(is_truncated) })
}

/// Sends an answer in as many messages as it needs, or a refusal in one.
fn send_reply(connection: BorrowedFd<'_>, answer: Result<OpenerAnswer, ReadError>) -> io::Result<()> {
    match answer {
        Ok(answer) => send_answer(connection, &answer),
        Err(error) => {
            let refusal = ReplyPiece::single(Err(error));
            Ok(channel::send_message(connection, &encode_message(&refusal), &[])?)
        }
    }
}

/// Sends the content of an answer in pieces of bounded size. The descriptor goes with the first piece, and the last one is marked.
fn send_answer(connection: BorrowedFd<'_>, answer: &OpenerAnswer) -> io::Result<()> {
    let mut rest = answer.content.as_slice();
    let mut file = answer.file.as_ref().map(|file| file.as_fd());
    loop {
        let (content, after) = rest.split_at(rest.len().min(MAX_PIECE_BYTES));
        rest = after;
        let piece =
            ReplyPiece { result: Ok(()), is_last: rest.is_empty(), numbers: answer.numbers, content: content.to_vec() };
        // Only the first message takes the descriptor along.
        channel::send_message(connection, &encode_message(&piece), file.take().as_slice())?;
        if piece.is_last {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;
