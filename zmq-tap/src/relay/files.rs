//! A table of open files of its own for the thread that copies. A killed process closes a table when the last thread that has it
//! has had a CPU to die on; until then senders write into sockets that nobody reads.

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

/// A thread's own faults: these cannot wait.
const FAULTS: [Signal; 7] = [
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGILL,
    Signal::SIGFPE,
    Signal::SIGTRAP,
    Signal::SIGSYS,
    Signal::SIGABRT,
];

/// Standard input, output and error.
const STANDARD: i32 = 2;

/// `unshare(CLONE_FILES)` by the call that containers' seccomp profiles allow without `SYS_ADMIN`. From Linux 5.9 on.
#[allow(unsafe_code)]
fn unshare() -> io::Result<()> {
    // No file has such a number: none is closed.
    let none = libc::c_uint::MAX;
    // SAFETY: it takes three numbers and touches no memory.
    match unsafe { libc::syscall(libc::SYS_close_range, none, none, libc::CLOSE_RANGE_UNSHARE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives the calling thread, and those that it starts, their own table of files. Of those open now, it has what a runtime waits
/// with, and what `taker` takes from, by the numbers they have. A container may refuse it: then all is as it was.
pub(super) fn separate(taker: &Taker) -> io::Result<()> {
    // Handlers write to pipes by number, and here that may become the number of a peer's socket.
    let mut handled = SigSet::all();
    for fault in FAULTS {
        handled.remove(fault);
    }
    handled.thread_block()?;
    unshare()?;
    // What others close is to be closed then, and not held open here: each of these files is somebody's on the other threads.
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
            // The folder that they were read from has been closed already.
            let _ = close(file);
        }
    }
    Ok(())
}

/// Hands listeners from one table of files to another.
#[derive(Debug)]
pub(super) struct Giver(UnixStream);

/// Takes them, in the order they were given in.
#[derive(Debug)]
pub(super) struct Taker(UnixStream);

/// Both ends, to be made before the tables part.
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
    /// The next one; an error where none was given.
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
