//! A process of its own that opens files of other processes. The process that parses these files holds no capability: it asks the opener,
//! which parses none of them, for a descriptor or a few bytes.
//!
//! This is the side that asks; [`crate::opener`] is the opener. Without one, this process opens the files itself.

pub(crate) mod request;

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use foreign::{ExpectedFile, ReadError, RegularFile};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::channel;
use crate::message::{decode_message, encode_message};
use request::{OpenRequest, REPLY_BYTES, ReplyPiece};

/// Message that brings a new connection.
pub(crate) const CONNECT: &[u8] = b"connect";
/// Maximum size of a reply's content.
const MAX_REPLY_BYTES: usize = 8 << 20;

/// The opener of this process.
static OPENER: OnceLock<Opener> = OnceLock::new();

/// Opens all files of other processes through the opener at the other end of `socket` from now on, and those of `named` that this process
/// may not read. A second call has no effect.
pub fn connect_opener(socket: OwnedFd, named: Vec<PathBuf>) {
    // An error means that there is an opener already.
    let _ = OPENER.set(Opener::new(socket, named));
}

/// The opener of this process, if it has one.
pub(crate) fn connected_opener() -> Option<&'static Opener> {
    OPENER.get()
}

/// Whether the opener of this process has exited.
pub(crate) fn has_ended() -> bool {
    connected_opener().is_some_and(Opener::has_ended)
}

/// This end of the sockets to an opener.
#[derive(Debug)]
pub(crate) struct Opener {
    /// Announces new connections.
    control: Mutex<OwnedFd>,
    /// Connections without a request. A thread that waits for a file keeps its own, so that it delays no other thread.
    idle: Mutex<Vec<OwnedFd>>,
    named: Vec<PathBuf>,
}

/// Result of a request.
#[derive(Debug, Default)]
pub(crate) struct OpenerReply {
    pub(crate) numbers: [u64; 3],
    pub(crate) content: Vec<u8>,
    descriptor: Option<OwnedFd>,
}

impl OpenerReply {
    /// The number of a reply that has one only.
    pub(crate) fn number(&self) -> u64 {
        self.numbers[0]
    }

    /// The descriptor of the reply. An error if the opener sent none.
    pub(crate) fn into_file(self) -> Result<OwnedFd, ReadError> {
        self.descriptor.ok_or(ReadError::Os(Errno::PROTO))
    }

    pub(crate) fn into_regular_file(self, expected: ExpectedFile) -> Result<RegularFile, ReadError> {
        RegularFile::check_received(self.into_file()?, expected)
    }
}

impl Opener {
    pub(crate) fn new(socket: OwnedFd, named: Vec<PathBuf>) -> Self {
        Self { control: Mutex::new(socket), idle: Mutex::default(), named }
    }

    /// Index of a file that the user named.
    pub(crate) fn index_of_named(&self, path: &Path) -> Option<u32> {
        self.named.iter().position(|named| named == path).and_then(|index| u32::try_from(index).ok())
    }

    /// Sends a request on a free connection, or on a new one, and returns the reply. A connection that fails is closed.
    pub(crate) fn send_request(&self, request: &OpenRequest) -> Result<OpenerReply, ReadError> {
        let idle_connection = lock(&self.idle).pop();
        let connection = match idle_connection {
            Some(connection) => connection,
            None => self.open_connection()?,
        };
        match send_request_and_receive_reply(&connection, request) {
            Ok(result) => {
                lock(&self.idle).push(connection);
                result
            }
            Err(_) if self.has_ended() => Err(ReadError::OpenerEnded),
            // The opener runs, but closes connections beyond its limit.
            Err(_) => Err(ReadError::Os(Errno::BUSY)),
        }
    }

    /// Creates a connection and passes its other end to the opener.
    fn open_connection(&self) -> Result<OwnedFd, ReadError> {
        let (ours, theirs) = channel::message_pair()?;
        let control = lock(&self.control);
        channel::send_message(control.as_fd(), CONNECT, &[theirs.as_fd()]).map_err(|_| ReadError::OpenerEnded)?;
        Ok(ours)
    }

    /// Returns whether the opener has exited.
    fn has_ended(&self) -> bool {
        let control = lock(&self.control);
        let mut state = [PollFd::new(&*control, PollFlags::empty())];
        let ready_count = poll(&mut state, Some(&Timespec::default()));
        // Without requested events, only the end of the connection makes it ready.
        ready_count.is_ok_and(|ready| ready > 0) && state[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

/// Sends a request and receives its whole reply. An outer error means that the connection has failed. An inner error is the opener's
/// answer.
fn send_request_and_receive_reply(
    connection: &OwnedFd,
    request: &OpenRequest,
) -> Result<Result<OpenerReply, ReadError>, Errno> {
    channel::send_message(connection.as_fd(), &encode_message(request), &[])?;
    let mut buffer = vec![0; REPLY_BYTES];
    let mut reply = OpenerReply::default();
    loop {
        let mut received = channel::receive_message(connection.as_fd(), &mut buffer)?;
        let piece: ReplyPiece = decode_message(&buffer[..received.bytes]).ok_or(Errno::PROTO)?;
        if let Err(error) = piece.result {
            return Ok(Err(error));
        }
        reply.numbers = piece.numbers;
        // Only the first piece has a descriptor.
        reply.descriptor = received.descriptors.pop().or(reply.descriptor);
        reply.content.extend_from_slice(&piece.content);
        // A limit, so that a faulty opener cannot fill the memory.
        if reply.content.len() > MAX_REPLY_BYTES {
            return Err(Errno::MSGSIZE);
        }
        if piece.is_last {
            return Ok(Ok(reply));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
