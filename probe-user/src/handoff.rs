//! Disconnecting a sender from its connection without losing its messages.
//!
//! The sender's own socket is duplicated (`pidfd_getfd`) and shut down for *reading* only. libzmq reads an end of stream there, closes the
//! connection between two writes, and reconnects. The other end still reads everything that was written. Shutting down writing too makes a
//! write in progress fail, which loses the data that libzmq has dequeued for it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::Shutdown;
use rustix::process::{ForeignRawFd, Pid, PidfdFlags, PidfdGetfdFlags};

use crate::peers::Holder;

/// Time that a sender's socket must be empty before the sender is disconnected.
const QUIET: Duration = Duration::from_micros(150);

/// Duplicates the holder's descriptor of a socket into this process. The connection stays open until both descriptors are closed.
fn duplicate_socket(holder: Holder) -> Result<OwnedFd, String> {
    let Holder { pid, fd } = holder;
    let id = Pid::from_raw(pid as i32).ok_or(Errno::SRCH);
    let process = id.and_then(|id| rustix::process::pidfd_open(id, PidfdFlags::empty()));
    let process = process.map_err(|errno| format!("cannot open process {pid}: {errno}; it may have exited"))?;
    let duplicated = rustix::process::pidfd_getfd(&process, fd as ForeignRawFd, PidfdGetfdFlags::empty());
    duplicated
        .map_err(|errno| format!("cannot copy descriptor {fd} of process {pid}: {errno}; run with CAP_SYS_PTRACE"))
}

/// Tests whether `holder`'s socket can be duplicated. Changes nothing.
pub fn check_duplicable(holder: Holder) -> Result<(), String> {
    duplicate_socket(holder).map(drop)
}

/// Waits until `holder`'s socket has been empty for a moment, and then makes the process close the connection. Returns the time when the
/// socket was shut down. Fails if the wait takes longer than `patience`, or if the socket's inode is not `expected_inode`.
pub fn disconnect_sender(holder: Holder, expected_inode: u64, patience: Duration) -> Result<Instant, String> {
    let socket = duplicate_socket(holder)?;
    let Holder { pid, fd } = holder;
    // The process may have closed the descriptor and reused its number since it was listed.
    let is_expected = rustix::fs::fstat(&socket).is_ok_and(|found| found.st_ino == expected_inode);
    if !is_expected {
        return Err(format!("descriptor {fd} of process {pid} now refers to another socket: try again"));
    }
    if !wait_until_quiet(patience, &socket) {
        return Err(format!(
            "process {pid} never had an empty socket for {QUIET:?} within {patience:?}: its receiver does not keep up, or the load is too high; try again with less traffic"
        ));
    }
    // libzmq now reads an end of file, closes its descriptor and connects again. The old connection ends once `socket` is closed, too,
    // which happens at the return.
    let shut = rustix::net::shutdown(&socket, Shutdown::Read);
    shut.map_err(|errno| format!("cannot shut down reading on descriptor {fd} of process {pid}: {errno}"))?;
    Ok(Instant::now())
}

/// Waits until the socket has been empty for [`QUIET`], at most for `patience`. Returns whether it has.
fn wait_until_quiet(patience: Duration, socket: &OwnedFd) -> bool {
    let began = Instant::now();
    let mut quiet_since = began;
    // The loop does not sleep, because it must notice every write in the quiet period.
    loop {
        let now = Instant::now();
        if bytes_unread_by_receiver(socket) != Some(0) {
            quiet_since = now;
        } else if now - quiet_since >= QUIET {
            return true;
        }
        if now - began >= patience {
            return false;
        }
    }
}

/// Number of bytes in the socket that its receiver has not read (`SIOCOUTQ`). `None` if the kernel refuses.
#[expect(unsafe_code, reason = "rustix has no wrapper for this ioctl")]
fn bytes_unread_by_receiver(socket: impl AsFd) -> Option<u64> {
    const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;
    // SAFETY: SIOCOUTQ writes one int; see sock_ioctl in include/uapi/asm-generic/sockios.h and linux/sockios.h.
    let bytes = unsafe { rustix::ioctl::ioctl(socket, rustix::ioctl::Getter::<SIOCOUTQ, i32>::new()) };
    bytes.ok().and_then(|bytes| u64::try_from(bytes).ok())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn of(stream: &UnixStream) -> (Holder, u64) {
        let holder = Holder { pid: std::process::id(), fd: stream.as_raw_fd() as u32 };
        (holder, rustix::fs::fstat(stream).unwrap().st_ino)
    }

    #[test]
    fn the_sender_reads_eof_and_its_last_write_arrives() {
        let (mut sender, mut receiver) = UnixStream::pair().unwrap();
        let (holder, inode) = of(&sender);
        disconnect_sender(holder, inode, Duration::from_secs(10)).unwrap();
        assert_eq!(sender.read(&mut [0; 8]).unwrap(), 0);
        sender.write_all(b"a write in flight").unwrap();
        drop(sender);
        let mut all = String::new();
        receiver.read_to_string(&mut all).unwrap();
        assert_eq!(all, "a write in flight");
    }

    #[test]
    fn a_sender_with_unread_data_is_not_disconnected() {
        let (mut sender, _receiver) = UnixStream::pair().unwrap();
        sender.write_all(b"not received").unwrap();
        let (holder, inode) = of(&sender);
        let error = disconnect_sender(holder, inode, Duration::from_millis(20)).unwrap_err();
        assert!(error.contains("never had an empty socket for 150µs within 20ms"), "{error}");
        sender.set_nonblocking(true).unwrap();
        assert_eq!(
            sender.read(&mut [0; 8]).unwrap_err().kind(),
            std::io::ErrorKind::WouldBlock,
            "the sender is still connected"
        );
    }

    #[test]
    fn a_missing_descriptor_or_process_is_named() {
        let error = |pid, fd| check_duplicable(Holder { pid, fd }).unwrap_err();
        assert!(error(0, 0).starts_with("cannot open process 0"));
        let message = error(std::process::id(), 1_000_000);
        assert!(message.starts_with("cannot copy descriptor 1000000"), "{message}");
    }

    #[test]
    fn another_socket_is_not_disconnected() {
        let (sender, _receiver) = UnixStream::pair().unwrap();
        let (holder, inode) = of(&sender);
        let error = disconnect_sender(holder, inode + 1, Duration::from_secs(1)).unwrap_err();
        assert!(error.contains("now refers to another socket"), "{error}");
    }
}
