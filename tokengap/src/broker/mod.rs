//! A process that stays root and creates the files of results for a tokengap that gave up root's user id.
//!
//! Requests and replies are messages of a socket pair. A request is a byte for the operation and two paths, separated by a zero byte. A
//! reply is an errno, or 0 with the descriptor of the created file, if any. The process ends when tokengap does.

mod rules;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use probe_user::discarded_output;
use recording::storage::Delegate;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

pub(crate) use self::rules::Rules;
pub(crate) use self::rules::or_working_folder;

/// Files that a run may write.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct ResultFiles {
    /// A file named on the command line.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Vec<PathBuf>,

    /// A folder for files whose names tokengap chooses.
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Vec<PathBuf>,

    /// Named files may replace existing ones.
    #[arg(long)]
    pub(crate) force: bool,
}

impl ResultFiles {
    pub(crate) fn is_empty(&self) -> bool {
        self.file.is_empty() && self.folder.is_empty()
    }
}

/// Maximum length of a request.
const MAX_REQUEST_BYTES: usize = 16 << 10;
const REPLY_BYTES: usize = size_of::<i32>();
/// Error number of a reply about an operation that succeeded.
const SUCCESS: i32 = 0;

// Operations.
const START: u8 = 0;
const CREATE: u8 = 1;
const RENAME: u8 = 2;
const REMOVE: u8 = 3;

/// Starts the process, which then creates, renames and removes files for this one. This process must still be root.
pub(crate) fn start(results: &ResultFiles) -> anyhow::Result<()> {
    let (our_end, child_end) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg("broker");
    for file in &results.file {
        command.arg("--file").arg(file);
    }
    for folder in &results.folder {
        command.arg("--folder").arg(or_working_folder(folder));
    }
    if results.force {
        command.arg("--force");
    }
    let started = command.stdin(child_end).stdout(discarded_output()?).spawn();
    // It holds the child's end, and while that is open, the child's exit goes unnoticed.
    drop(command);
    started.context("cannot start the process that creates files")?;
    let broker = Broker { socket: Mutex::new(our_end) };
    // Waits until the process has opened the folders, which this one may lose access to.
    broker.request(&FileRequest::new(START, Path::new("")))?;
    recording::storage::delegate(Box::new(broker));
    Ok(())
}

/// A request to the broker process.
struct FileRequest<'p> {
    operation: u8,
    path: &'p Path,
    /// New path of a renamed file; empty for other operations.
    new_path: &'p Path,
}

impl<'p> FileRequest<'p> {
    /// A request with one path.
    fn new(operation: u8, path: &'p Path) -> Self {
        Self { operation, path, new_path: Path::new("") }
    }

    /// The message: the operation, the path, a zero byte, which no path contains, and the new path.
    fn encode(&self) -> Vec<u8> {
        let mut message = vec![self.operation];
        message.extend_from_slice(self.path.as_os_str().as_bytes());
        message.push(0);
        message.extend_from_slice(self.new_path.as_os_str().as_bytes());
        message
    }

    /// Reads a message as [`Self::encode`] writes it.
    fn decode(message: &'p [u8]) -> io::Result<Self> {
        let (&operation, paths) = message.split_first().ok_or(Errno::INVAL)?;
        let separator = paths.iter().position(|&byte| byte == 0).ok_or(Errno::INVAL)?;
        let path = Path::new(OsStr::from_bytes(&paths[..separator]));
        let new_path = Path::new(OsStr::from_bytes(&paths[separator + 1..]));
        Ok(Self { operation, path, new_path })
    }

    /// Executes the request if the rules permit it. Returns the created file if it creates one.
    fn execute(&self, rules: &mut Rules) -> io::Result<Option<File>> {
        match self.operation {
            // The reply alone says that the process has started.
            START => Ok(None),
            CREATE => rules.create(self.path).map(Some),
            RENAME => rules.rename(self.path, self.new_path).map(|()| None),
            REMOVE => rules.remove(self.path).map(|()| None),
            _ => Err(Errno::INVAL.into()),
        }
    }
}

/// This side of the socket pair.
struct Broker {
    socket: Mutex<OwnedFd>,
}

impl Broker {
    /// Sends a request to the broker process and waits for its reply, which has a descriptor if a file was created.
    fn request(&self, request: &FileRequest<'_>) -> io::Result<Option<OwnedFd>> {
        let message = request.encode();
        if message.len() > MAX_REQUEST_BYTES {
            return Err(Errno::NAMETOOLONG.into());
        }
        // Locked until the reply has arrived, so that it is the reply to this request.
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        retry_on_intr(|| {
            let mut no_files = SendAncillaryBuffer::default();
            sendmsg(&*socket, &[IoSlice::new(&message)], &mut no_files, SendFlags::NOSIGNAL)
        })
        // It fails if the other end is closed.
        .map_err(|_| exited_error())?;
        receive_reply(socket.as_fd())
    }
}

impl Delegate for Broker {
    fn create(&self, path: &Path) -> io::Result<File> {
        let file = self.request(&FileRequest::new(CREATE, path))?;
        file.map(File::from).ok_or_else(exited_error)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.request(&FileRequest { operation: RENAME, path: from, new_path: to }).map(drop)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.request(&FileRequest::new(REMOVE, path)).map(drop)
    }
}

/// Waits for the reply to a request: an error of the operation, or the descriptor of the file that it created, if any.
fn receive_reply(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut reply = [0; REPLY_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(&mut reply)], &mut control, RecvFlags::CMSG_CLOEXEC))?;
    if received.bytes != REPLY_BYTES {
        return Err(exited_error());
    }
    let errno = i32::from_le_bytes(reply);
    if errno != SUCCESS {
        return Err(io::Error::from_raw_os_error(errno));
    }
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut files) = message {
            return Ok(files.next());
        }
    }
    Ok(None)
}

fn exited_error() -> io::Error {
    io::Error::other("the process that creates files for tokengap has exited")
}

/// Serves requests on `socket` until its other end is closed.
pub(crate) fn serve(socket: BorrowedFd<'_>, mut rules: Rules) -> io::Result<()> {
    let mut request = vec![0; MAX_REQUEST_BYTES];
    loop {
        let received = retry_on_intr(|| {
            let mut no_files = RecvAncillaryBuffer::default();
            recvmsg(socket, &mut [IoSliceMut::new(&mut request)], &mut no_files, RecvFlags::empty())
        })?;
        // The other end is closed.
        if received.bytes == 0 {
            return Ok(());
        }
        let request = FileRequest::decode(&request[..received.bytes]);
        match request.and_then(|request| request.execute(&mut rules)) {
            Ok(created_file) => send_reply(socket, SUCCESS, created_file.as_ref())?,
            Err(error) => {
                // An error without a number counts as one of input and output.
                let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
                send_reply(socket, errno, None)?;
            }
        }
    }
}

/// Sends the error number of an operation and, if it created a file, a copy of its descriptor.
fn send_reply(socket: BorrowedFd<'_>, errno: i32, created_file: Option<&File>) -> io::Result<()> {
    let files: Vec<BorrowedFd<'_>> = created_file.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    sendmsg(socket, &[IoSlice::new(&errno.to_le_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn files_are_created_renamed_and_removed_through_the_socket() {
        let folder = tempfile::tempdir().expect("a folder");
        let (run, new) = (folder.path().join("run.tgap"), folder.path().join(".run.tgap.7.new"));
        let flags = SocketFlags::CLOEXEC;
        let (our_end, child_end) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
        let results = ResultFiles { file: vec![run.clone()], ..ResultFiles::default() };
        let served = std::thread::spawn(move || serve(child_end.as_fd(), Rules::new(results)));
        let broker = Broker { socket: Mutex::new(our_end) };
        broker.create(&new).expect("created").write_all(b"whole").expect("written");
        broker.rename(&new, &run).expect("renamed");
        assert_eq!(std::fs::read(&run).expect("there"), b"whole");
        let other = broker.create(&folder.path().join("beside")).expect_err("not a result");
        assert_eq!(other.kind(), io::ErrorKind::PermissionDenied);
        broker.remove(&run).expect("removed");
        assert!(!run.exists());
        for invalid in [&[9, 0][..], &[CREATE]] {
            let socket = broker.socket.lock().expect("free");
            let mut none = SendAncillaryBuffer::default();
            sendmsg(&*socket, &[IoSlice::new(invalid)], &mut none, SendFlags::empty()).expect("sent");
            let mut reply = [0; REPLY_BYTES];
            rustix::net::recv(&*socket, &mut reply, RecvFlags::empty()).expect("a reply");
            assert_eq!(i32::from_le_bytes(reply), Errno::INVAL.raw_os_error());
        }
        drop(broker);
        served.join().expect("it ends").expect("without an error");
    }
}
