//! Messages with descriptors over a socket pair.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Maximum number of descriptors in a message: a library, and a pipe for the answer.
const MAX_DESCRIPTORS: usize = 2;

/// Both ends of a new connection for messages.
pub fn message_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Sends one message with descriptors. Fails with `MSGSIZE` if there are too many descriptors.
pub fn send_message(socket: BorrowedFd<'_>, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    retry_on_intr(|| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Errno::MSGSIZE);
        }
        // A peer that has exited must not end this process by SIGPIPE.
        sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)
    })
    // The kernel sends a message as a whole, so the number of sent bytes says nothing more.
    .map(drop)
}

/// A message that was received.
pub struct ReceivedMessage {
    /// Its length; 0 at the end.
    pub bytes: usize,
    /// Descriptors that came with it.
    pub descriptors: Vec<OwnedFd>,
}

/// Receives a message into `buffer`. Fails with `MSGSIZE` if it is longer or has too many descriptors.
pub fn receive_message(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<ReceivedMessage, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC))?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    // Checked only now, because the descriptors of a refused message are closed when the vector is dropped.
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok(ReceivedMessage { bytes: received.bytes, descriptors })
}
