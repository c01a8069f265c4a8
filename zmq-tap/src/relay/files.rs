//! A separate table of open files for the relay thread. When a process is killed, a table closes once the last thread that shares it has
//! been scheduled to exit. Until then senders write into sockets that nobody reads.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::close;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Faults raised by the thread itself, which must not be blocked.
const FAULTS: [Signal; 7] = [
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGILL,
    Signal::SIGFPE,
    Signal::SIGTRAP,
    Signal::SIGSYS,
    Signal::SIGABRT,
];

/// Highest number of standard input, output and error.
const STANDARD: i32 = 2;

/// Unshares the file table like `unshare(CLONE_FILES)`, by a call that the seccomp profiles of containers allow without `SYS_ADMIN`. Needs
/// Linux 5.9.
#[allow(unsafe_code)]
fn unshare() -> io::Result<()> {
    // No open file has this number, so no file is closed.
    let none = libc::c_uint::MAX;
    // SAFETY: the call takes three numbers and accesses no memory.
    match unsafe { libc::syscall(libc::SYS_close_range, none, none, libc::CLOSE_RANGE_UNSHARE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives the calling thread, and threads that it starts, a separate file table. The table keeps, under their numbers, the standard streams,
/// the runtime's event files and the socket of `taker`. A container may refuse the call; then nothing has changed but the signal mask.
pub(super) fn separate(taker: &Taker) -> io::Result<()> {
    // Signal handlers write to pipes by number. In the new table that number may become a peer's socket.
    let mut handled = SigSet::all();
    for fault in FAULTS {
        handled.remove(fault);
    }
    handled.thread_block()?;
    unshare()?;
    // A file that another thread closes must really close, so this table must not keep it open.
    let held = fs::read_dir("/proc/thread-self/fd")?.flatten();
    let held = held.filter(|file| {
        let what = fs::read_link(file.path());
        !what.is_ok_and(|what| what.to_string_lossy().starts_with("anon_inode:[event"))
    });
    let held: Vec<i32> = held
        .filter_map(|file| file.file_name().to_str()?.parse().ok())
        .collect();
    for file in held {
        if file > STANDARD && file != taker.0.as_raw_fd() {
            // The list includes the descriptor of the folder it was read from, which is closed by now.
            let _ = close(file);
        }
    }
    Ok(())
}

/// Sends listeners from one file table to another.
#[derive(Debug)]
pub(super) struct Giver(UnixStream);

/// Receives listeners, in the order in which they were sent.
#[derive(Debug)]
pub(super) struct Taker(UnixStream);

/// Creates both ends. Call this before the file tables are separated.
pub(super) fn handover() -> io::Result<(Giver, Taker)> {
    let (give, take) = UnixStream::pair()?;
    take.set_nonblocking(true)?;
    Ok((Giver(give), Taker(take)))
}

impl Giver {
    pub(super) fn give(&self, listener: &UnixListener) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let files = [listener.as_fd()];
        rights.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(&self.0, &[IoSlice::new(&[0])], &mut rights, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

impl Taker {
    /// Returns the next listener, or an error if none was sent.
    pub(super) fn take(&self) -> io::Result<UnixListener> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        recvmsg(
            &self.0,
            &mut [IoSliceMut::new(&mut byte)],
            &mut rights,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let file: Option<OwnedFd> = rights.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        file.map(UnixListener::from)
            .ok_or_else(|| io::Error::other("no listener came with it: no file was left to take it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_its_own_files_is_given_a_listener() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let (giver, taker) = handover().expect("a pair");
        let beside = fs::File::open("/dev/null").expect("there");
        let number = beside.as_raw_fd();
        let (parted, go) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            let separated = separate(&taker);
            let own = |fd: i32| fs::read_link(format!("/proc/thread-self/fd/{fd}")).ok();
            assert_eq!(own(number).is_some(), separated.is_err(), "of others it holds nothing");
            parted.0.send(()).expect("heard");
            go.1.recv().expect("told");
            let listener = taker.take();
            let shown = listener.as_ref().ok().and_then(|listener| own(listener.as_raw_fd()));
            (separated, shown, listener.map(|listener| listener.local_addr()))
        });
        parted.1.recv().expect("it runs");
        let listener = UnixListener::bind(&path).expect("bound");
        giver.give(&listener).expect("given");
        go.0.send(()).expect("told");
        let (separated, shown, address) = thread.join().expect("it ends");
        if let Err(error) = separated {
            println!("SKIPPED: no table of its own here: {error}");
            return;
        }
        let here = fs::read_link(format!("/proc/thread-self/fd/{}", listener.as_raw_fd())).expect("open");
        assert_eq!(shown, Some(here), "one socket in two tables");
        drop(beside);
        let address = address.expect("taken").expect("bound");
        assert_eq!(address.as_pathname(), Some(path.as_path()));
    }

    #[test]
    fn what_was_not_given_cannot_be_taken() {
        let (_giver, taker) = handover().expect("a pair");
        assert_eq!(
            taker.take().map_err(|error| error.kind()).expect_err("none"),
            io::ErrorKind::WouldBlock
        );
    }
}
