//! A separate table of open files for the relay thread. When a process is killed, a table closes once the last thread that shares it has
//! been scheduled to exit. Until then senders write into sockets without a reader.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::iter;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Faults raised by the thread itself, which must not be blocked.
const FAULTS: [libc::c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// Highest number of standard input, output and error.
const LAST_STANDARD_STREAM: i32 = 2;

/// Unshares the file table like `unshare(CLONE_FILES)`, by a call that the seccomp profiles of containers allow without `SYS_ADMIN`. Needs
/// Linux 5.9.
#[allow(unsafe_code)]
fn unshare_file_table() -> io::Result<()> {
    // No open file has this number, so the range from it to itself closes none.
    let unused_number = libc::c_uint::MAX;
    // SAFETY: the call takes three numbers and accesses no memory.
    match unsafe { libc::syscall(libc::SYS_close_range, unused_number, unused_number, libc::CLOSE_RANGE_UNSHARE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Blocks all signals but [`FAULTS`] in the calling thread.
#[allow(unsafe_code)]
fn block_signals() -> io::Result<()> {
    let mut blocked = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initialises the set, which the other calls only access.
    let error = unsafe {
        libc::sigfillset(blocked.as_mut_ptr());
        for fault in FAULTS {
            libc::sigdelset(blocked.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), std::ptr::null_mut())
    };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Gives the calling thread, and threads that it starts, a separate file table. The table has only the standard streams, the runtime's
/// event files and the socket of `receiver`, each under its old number. A container may refuse this; then only the signal mask has changed.
#[allow(unsafe_code)]
pub(super) fn separate_file_table(receiver: &ListenerReceiver) -> io::Result<()> {
    // Signal handlers write to pipes by number. In the new table that number may become a peer's socket.
    block_signals()?;
    unshare_file_table()?;
    // The new table is a copy. It must keep no file open that another thread closes later, so all other files are closed in it.
    for file in descriptors_without_event_files()? {
        if file > LAST_STANDARD_STREAM && file != receiver.stream.as_raw_fd() {
            // The list includes the descriptor of the folder it was read from, which is closed by now.
            // SAFETY: nothing in this table uses the file. Its owner uses the other table.
            unsafe { libc::close(file) };
        }
    }
    Ok(())
}

/// Descriptors of the open files of the calling thread, without the epoll and eventfd descriptors of the runtime. Collects them first,
/// because closing a file would change the list while it is read.
fn descriptors_without_event_files() -> io::Result<Vec<i32>> {
    let mut files = Vec::new();
    for entry in fs::read_dir("/proc/thread-self/fd")?.flatten() {
        let target = fs::read_link(entry.path());
        // `anon_inode:[eventpoll]` or `anon_inode:[eventfd]`.
        if target.is_ok_and(|target| target.to_string_lossy().starts_with("anon_inode:[event")) {
            continue;
        }
        if let Some(number) = entry.file_name().to_str().and_then(|number| number.parse::<i32>().ok()) {
            files.push(number);
        }
    }
    Ok(files)
}

/// Open files of a pair.
#[derive(Debug)]
pub struct PairSockets {
    /// The bound listener.
    pub listener: OwnedFd,
    /// The upstream's socket file, open as `O_PATH`. Without it, each connection opens the upstream's path.
    pub upstream: Option<OwnedFd>,
}

/// Limit of descriptors that one pair has.
const MAX_SOCKETS: usize = 2;

/// Sends the files of pairs from one file table to another.
#[derive(Debug)]
pub(super) struct ListenerSender {
    stream: UnixStream,
}

/// Receives the files of pairs, in the order in which they were sent.
#[derive(Debug)]
pub(super) struct ListenerReceiver {
    stream: UnixStream,
}

/// Creates both ends of the channel that takes the files of pairs to the relay's thread. Call this before the file tables are separated.
pub(super) fn listener_channel() -> io::Result<(ListenerSender, ListenerReceiver)> {
    let (sending, receiving) = UnixStream::pair()?;
    receiving.set_nonblocking(true)?;
    Ok((ListenerSender { stream: sending }, ListenerReceiver { stream: receiving }))
}

impl ListenerSender {
    /// Sends the sockets of a pair to the relay's thread.
    pub(super) fn send_sockets(&self, sockets: &PairSockets) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        // The listener first, then the upstream if there is one: the receiver tells them apart by this order.
        let files: Vec<_> = iter::once(&sockets.listener).chain(&sockets.upstream).map(AsFd::as_fd).collect();
        rights.push(SendAncillaryMessage::ScmRights(&files));
        // The kernel passes descriptors only with at least one byte.
        sendmsg(&self.stream, &[IoSlice::new(&[0])], &mut rights, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

impl ListenerReceiver {
    /// Receives the files of the next pair, which the kernel opens in the file table of this thread. Fails if none were sent.
    pub(super) fn receive_sockets(&self) -> io::Result<PairSockets> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        // The kernel passes files only together with at least one byte. Its value has no meaning.
        let mut byte = [0];
        recvmsg(&self.stream, &mut [IoSliceMut::new(&mut byte)], &mut rights, RecvFlags::CMSG_CLOEXEC)?;
        let mut listener = None;
        let mut upstream = None;
        for message in rights.drain() {
            // In the order in which they were sent: the listener, then the upstream's socket file if there is one.
            if let RecvAncillaryMessage::ScmRights(mut files) = message {
                listener = files.next();
                upstream = files.next();
            }
        }
        // The kernel drops files that exceed the receiver's limit of open files.
        let listener =
            listener.ok_or_else(|| io::Error::other("no listener was passed: the limit of open files is reached"))?;
        Ok(PairSockets { listener, upstream })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_thread_with_its_own_file_table_receives_a_listener() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let (sender, receiver) = listener_channel().expect("a pair");
        let other_file = fs::File::open("/dev/null").expect("it exists");
        let number = other_file.as_raw_fd();
        let (separated_channel, go) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            let separated = separate_file_table(&receiver);
            let own = |fd: i32| fs::read_link(format!("/proc/thread-self/fd/{fd}")).ok();
            assert_eq!(own(number).is_some(), separated.is_err(), "no other file is open");
            separated_channel.0.send(()).expect("received");
            go.1.recv().expect("sent");
            let listener = receiver.receive_sockets().map(|sockets| UnixListener::from(sockets.listener));
            let shown = listener.as_ref().ok().and_then(|listener| own(listener.as_raw_fd()));
            (separated, shown, listener.map(|listener| listener.local_addr()))
        });
        separated_channel.1.recv().expect("the thread runs");
        let listener = UnixListener::bind(&path).expect("bound");
        let sockets = PairSockets { listener: listener.try_clone().expect("cloned").into(), upstream: None };
        sender.send_sockets(&sockets).expect("sent");
        drop(sockets);
        go.0.send(()).expect("sent");
        let (separated, shown, address) = thread.join().expect("the thread ends");
        if let Err(error) = separated {
            println!("SKIPPED: no separate file table here: {error}");
            return;
        }
        let expected = fs::read_link(format!("/proc/thread-self/fd/{}", listener.as_raw_fd())).expect("open");
        assert_eq!(shown, Some(expected), "one socket in two tables");
        drop(other_file);
        let address = address.expect("received").expect("bound");
        assert_eq!(address.as_pathname(), Some(path.as_path()));
    }

    #[test]
    fn receiving_without_a_sent_listener_fails() {
        let (_sender, receiver) = listener_channel().expect("a pair");
        assert_eq!(
            receiver.receive_sockets().map_err(|error| error.kind()).expect_err("none"),
            io::ErrorKind::WouldBlock
        );
    }
}
