//! Bytes in the kernel queues of a process's sockets, without eBPF.
//!
//! `pidfd_getfd` borrows the socket for two `ioctl`s (0.5 us in total), which return exact byte counts in any network namespace. It needs
//! `SYS_PTRACE` and Linux 5.6. These queues are only a part of a hop's queue, since libzmq drains them into its own.

use std::fs;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use rustix::process::{ForeignRawFd, Pid, PidfdFlags, PidfdGetfdFlags};

/// Error of reading socket queues.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The process cannot be opened.
    #[error("open process {pid}: {source}; it may have ended")]
    Open {
        /// Process id.
        pid: u32,
        /// Error from the operating system.
        source: std::io::Error,
    },
    /// The process's descriptors cannot be listed.
    #[error("list /proc/{pid}/fd: {source}; run as its owner or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH")]
    List {
        /// Process id.
        pid: u32,
        /// Error from the operating system.
        source: std::io::Error,
    },
    /// A socket cannot be borrowed.
    #[error("borrow descriptor {fd} of process {pid}: {source}; run with CAP_SYS_PTRACE")]
    Borrow {
        /// Process id.
        pid: u32,
        /// Number of the descriptor.
        fd: RawFd,
        /// Error from the operating system.
        source: std::io::Error,
    },
}

/// A socket of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Socket {
    /// Its descriptor in the process.
    pub fd: RawFd,
    /// Inode, which identifies the socket in `/proc/net` and `sock_diag`.
    pub inode: u64,
}

/// Amount of data queued at one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Bytes received and not read yet (`SIOCINQ`); `None` on a listening socket.
    pub receive_bytes: Option<u64>,
    /// Bytes sent and not yet read or acknowledged (`SIOCOUTQ`). On a Unix socket this includes the kernel's overhead.
    pub send_bytes: Option<u64>,
}

/// Reader of the socket queues of one process.
#[derive(Debug)]
pub struct Queues {
    pid: u32,
    process: OwnedFd,
}

impl Queues {
    /// Opens process `pid`.
    pub fn of(pid: u32) -> Result<Self, QueueError> {
        let id = Pid::from_raw(pid as i32).ok_or(rustix::io::Errno::SRCH);
        let opened = id.and_then(|id| rustix::process::pidfd_open(id, PidfdFlags::empty()));
        opened
            .map(|process| Self { pid, process })
            .map_err(|e| QueueError::Open { pid, source: e.into() })
    }

    /// Lists the process's current sockets, sorted by descriptor. Takes about 16 us for a few dozen files, so call it only when hops
    /// change.
    pub fn sockets(&self) -> Result<Vec<Socket>, QueueError> {
        let listed = fs::read_dir(format!("/proc/{}/fd", self.pid));
        let listed = listed.map_err(|source| QueueError::List { pid: self.pid, source })?;
        let mut sockets: Vec<Socket> = listed
            .flatten()
            .filter_map(|entry| {
                let link = fs::read_link(entry.path()).ok()?;
                let inode = link
                    .to_str()?
                    .strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .parse()
                    .ok()?;
                Some(Socket {
                    fd: entry.file_name().to_str()?.parse().ok()?,
                    inode,
                })
            })
            .collect();
        sockets.sort_unstable();
        Ok(sockets)
    }

    /// Queued bytes at descriptor `fd`. The borrowed socket is closed before this returns.
    pub fn depth(&self, fd: RawFd) -> Result<Depth, QueueError> {
        let socket = self.borrow(fd)?;
        Ok(Depth {
            receive_bytes: rustix::io::ioctl_fionread(&socket).ok(),
            send_bytes: outq(&socket),
        })
    }

    /// Duplicates the process's descriptor `fd` into this process. The connection stays open until both are closed.
    pub(crate) fn borrow(&self, fd: RawFd) -> Result<OwnedFd, QueueError> {
        let borrowed = rustix::process::pidfd_getfd(&self.process, fd as ForeignRawFd, PidfdGetfdFlags::empty());
        borrowed.map_err(|source| QueueError::Borrow {
            pid: self.pid,
            fd,
            source: source.into(),
        })
    }
}

/// Reads `SIOCOUTQ`, for which rustix has no function.
#[expect(unsafe_code, reason = "an ioctl by number")]
pub(crate) fn outq(socket: impl AsFd) -> Option<u64> {
    const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;
    // SAFETY: SIOCOUTQ writes one int; see sock_ioctl in include/uapi/asm-generic/sockios.h and linux/sockios.h.
    let bytes = unsafe { rustix::ioctl::ioctl(socket, rustix::ioctl::Getter::<SIOCOUTQ, i32>::new()) };
    bytes.ok().and_then(|bytes| u64::try_from(bytes).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_was_written_and_not_read() {
        let queues = Queues::of(std::process::id()).unwrap();
        let (mut from, to) = UnixStream::pair().unwrap();
        from.write_all(&[7; 6000]).unwrap();
        assert_eq!(queues.depth(to.as_raw_fd()).unwrap().receive_bytes, Some(6000));
        assert!(queues.depth(from.as_raw_fd()).unwrap().send_bytes >= Some(6000));

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut from = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (to, _) = listener.accept().unwrap();
        from.write_all(&[7; 5000]).unwrap();
        // Loopback delivers the data and the acknowledgement within the call.
        assert_eq!(queues.depth(to.as_raw_fd()).unwrap().receive_bytes, Some(5000));
        assert_eq!(queues.depth(listener.as_raw_fd()).unwrap().receive_bytes, None);
        let fds: Vec<RawFd> = queues.sockets().unwrap().iter().map(|socket| socket.fd).collect();
        for socket in [from.as_raw_fd(), to.as_raw_fd(), listener.as_raw_fd()] {
            assert!(fds.contains(&socket), "{socket} in {fds:?}");
        }
    }

    #[test]
    fn says_what_is_missing() {
        assert!(Queues::of(0).unwrap_err().to_string().starts_with("open process 0"));
        let queues = Queues::of(std::process::id()).unwrap();
        let error = queues.depth(1_000_000).unwrap_err().to_string();
        assert!(error.starts_with("borrow descriptor 1000000"), "{error}");
    }
}
