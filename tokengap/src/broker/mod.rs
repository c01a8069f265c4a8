//! A process that stays root and creates the files of results for a tokengap that gave up root's user id.
//!
//! Requests and replies are messages of a socket pair. A reply is an errno, or 0 with the descriptor of the created file, if any. The
//! process ends when tokengap does.

mod rules;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use probe_user::channel;
use probe_user::message::{byte_string, decode_message, encode_message};
use recording::storage::Delegate;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::spawn::spawn_with_socket;

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
const MAX_REPLY_BYTES: usize = 8;

#[derive(Serialize, Deserialize)]
enum FileRequest {
    /// The first request, which is answered once the folders are open.
    Start,
    Create(#[serde(with = "byte_string")] PathBuf),
    Rename {
        #[serde(with = "byte_string")]
        from: PathBuf,
        #[serde(with = "byte_string")]
        to: PathBuf,
    },
    Remove(#[serde(with = "byte_string")] PathBuf),
}

/// Starts the broker process, which then creates, renames and removes files for this one. This process must still be root.
pub(crate) fn start_broker(results: &ResultFiles) -> anyhow::Result<()> {
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
    let socket = spawn_with_socket(command, "the process that creates files")?;
    let broker = Broker { socket: Mutex::new(socket) };
    // Waits until the process has opened the folders, which this one may lose access to.
    broker.send_request(&FileRequest::Start)?;
    recording::storage::delegate(Box::new(broker));
    Ok(())
}

/// The broker process, as this process sees it.
struct Broker {
    /// This side of the socket pair.
    socket: Mutex<OwnedFd>,
}

impl Broker {
    /// Sends a request to the broker process and waits for its reply. Returns the descriptor of the created file; `None` if the request
    /// creates none.
    fn send_request(&self, request: &FileRequest) -> io::Result<Option<OwnedFd>> {
        let request = encode_message(request);
        if request.len() > MAX_REQUEST_BYTES {
            return Err(Errno::NAMETOOLONG.into());
        }
        // Held until the reply has arrived, so that it is the reply to this request.
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        channel::send_message(socket.as_fd(), &request, &[]).map_err(|_| exited_error())?;
        let mut reply = [0; MAX_REPLY_BYTES];
        let mut received = channel::receive_message(socket.as_fd(), &mut reply)?;
        match decode_message(&reply[..received.bytes]) {
            // Zero means success. A reply has at most one descriptor.
            Some(0) => Ok(received.descriptors.pop()),
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Err(exited_error()),
        }
    }
}

impl Delegate for Broker {
    fn create(&self, path: &Path) -> io::Result<File> {
        let file = self.send_request(&FileRequest::Create(path.to_owned()))?;
        file.map(File::from).ok_or_else(exited_error)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.send_request(&FileRequest::Rename { from: from.to_owned(), to: to.to_owned() }).map(drop)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.send_request(&FileRequest::Remove(path.to_owned())).map(drop)
    }
}

fn exited_error() -> io::Error {
    io::Error::other("the process that creates files for tokengap has exited")
}

/// Serves requests on `socket` until its other end is closed.
pub(crate) fn serve_requests(socket: BorrowedFd<'_>, mut rules: Rules) -> io::Result<()> {
    let mut buffer = vec![0; MAX_REQUEST_BYTES];
    loop {
        let outcome = match channel::receive_message(socket, &mut buffer) {
            // The other end is closed.
            Ok(received) if received.bytes == 0 => return Ok(()),
            Ok(received) => execute_request(&mut rules, &buffer[..received.bytes]),
            // A longer message than any request is refused, but the next one may be valid.
            Err(Errno::MSGSIZE) => Err(Errno::INVAL.into()),
            // Any other error of the socket ends the service.
            Err(error) => return Err(error.into()),
        };
        let reply_number = match &outcome {
            // Zero means success.
            Ok(_) => 0,
            // An error without an errno is sent as EIO.
            Err(error) => error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
        };
        let created_file = outcome.ok().flatten();
        let descriptor = created_file.as_ref().map(AsFd::as_fd);
        channel::send_message(socket, &encode_message(&reply_number), descriptor.as_slice())?;
    }
}

/// Executes a request, if the rules permit it. Returns the created file; `None` for a request that creates none.
fn execute_request(rules: &mut Rules, encoded_request: &[u8]) -> io::Result<Option<File>> {
    match decode_message(encoded_request).ok_or(Errno::INVAL)? {
        FileRequest::Start => Ok(None),
        FileRequest::Create(path) => rules.create_result_file(&path).map(Some),
        FileRequest::Rename { from, to } => rules.rename_to_result(&from, &to).map(|()| None),
        FileRequest::Remove(path) => rules.remove_created_file(&path).map(|()| None),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn files_are_created_renamed_and_removed_through_the_socket() {
        let folder = tempfile::tempdir().expect("a folder");
        let (run, new) = (folder.path().join("run.tgap"), folder.path().join(".run.tgap.7.new"));
        let (our_end, child_end) = channel::message_pair().expect("a pair");
        let results = ResultFiles { file: vec![run.clone()], ..ResultFiles::default() };
        let served = std::thread::spawn(move || serve_requests(child_end.as_fd(), Rules::new(results)));
        let broker = Broker { socket: Mutex::new(our_end) };
        broker.create(&new).expect("created").write_all(b"whole").expect("written");
        broker.rename(&new, &run).expect("renamed");
        assert_eq!(std::fs::read(&run).expect("there"), b"whole");
        let other = broker.create(&folder.path().join("beside")).expect_err("not a result");
        assert_eq!(other.kind(), io::ErrorKind::PermissionDenied);
        broker.remove(&run).expect("removed");
        assert!(!run.exists());
        for invalid in [b"not a request".to_vec(), vec![0; MAX_REQUEST_BYTES + 1]] {
            let socket = broker.socket.lock().expect("free");
            channel::send_message(socket.as_fd(), &invalid, &[]).expect("sent");
            let mut reply = [0; MAX_REPLY_BYTES];
            let received = channel::receive_message(socket.as_fd(), &mut reply).expect("a reply");
            assert_eq!(decode_message(&reply[..received.bytes]), Some(Errno::INVAL.raw_os_error()));
        }
        drop(broker);
        served.join().expect("it ends").expect("without an error");
    }
}
