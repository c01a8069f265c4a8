//! The rights that a command needs.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::thread::CapabilitySet;

use crate::account::Account;

/// Capabilities that the process keeps, with the kernel's names.
pub type Capabilities = CapabilitySet;

/// Kind of work, which determines the permitted system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reads files, and writes to files or a terminal. A system call for the network or on another process ends the process.
    Files,
    /// Like `Files`, with sockets, but without access to other processes.
    Network,
    /// Like `Network`, and reads the `/proc` entries of other processes that every user may read. Signals and traces no process, and
    /// makes no call of eBPF.
    Observe,
    /// Attaches eBPF programs to other processes, uses their maps, and enters network namespaces, for a process with [`Self::Observe`].
    Attach,
    /// Opens files of other processes with the rights of their users, for a process with [`Self::Observe`]. Without sockets, except those
    /// it has.
    Open,
    /// Reads the memory of other processes and their files in `/proc`, and nothing else of them. Without sockets, except those it has.
    Memory,
    /// Like `Observe` and `Attach`, for a command that starts a program or moves sockets: also duplicates descriptors of processes, signals
    /// processes and changes owners of files.
    Move,
}

impl Work {
    /// Whether it reads of other processes in `/proc`, or attaches programs to them.
    pub(crate) const fn observes_processes(self) -> bool {
        matches!(self, Self::Observe | Self::Attach | Self::Open | Self::Memory | Self::Move)
    }

    /// Whether it creates eBPF programs and links, and enters network namespaces.
    pub(crate) const fn attaches_programs(self) -> bool {
        matches!(self, Self::Attach | Self::Move)
    }
}

/// Use of a TCP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortAccess {
    /// Listens on it; 0 stands for any free port.
    Listen(u16),
    /// Connects to it, on any machine.
    Connect(u16),
}

/// The rights that a command needs. All others are dropped.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Kind of work.
    pub work: Work,
    /// Capabilities that are kept, if present.
    pub keep: Capabilities,
    /// Files and folders that may be read.
    pub read: Vec<PathBuf>,
    /// Files that may be written, and folders in which files and sockets may be created, replaced and removed.
    pub write: Vec<PathBuf>,
    /// Uses of TCP ports.
    pub ports: Vec<PortAccess>,
    /// Permits connecting to abstract sockets of other processes.
    pub abstract_sockets: bool,
    /// Changes root's user id to one that no other process has, which may write no file of root or of the observed processes, nor their
    /// memory. Check [`can_drop_root`](crate::can_drop_root) first. Files of the plan that are to be written, and with
    /// [`Work::Observe`] those that only some users may read, must be opened by another process.
    pub unprivileged: bool,
    /// Changes root's user and group to these, and leaves all other groups. Whether it is changed or not, only the permissions of this user
    /// count for files: `DAC_OVERRIDE` is never kept. Files of the plan that are to be written must be opened by another process. Check
    /// [`can_change_user`](crate::can_change_user) first.
    pub account: Option<Account>,
}

impl Plan {
    /// A plan for `work`, without files, ports or capabilities.
    pub fn new(work: Work) -> Self {
        Self {
            work,
            keep: Capabilities::empty(),
            read: Vec::new(),
            write: Vec::new(),
            ports: Vec::new(),
            abstract_sockets: false,
            unprivileged: false,
            account: None,
        }
    }

    /// Permits creating or replacing the file `path`, by permitting writes in its folder. If `path` is a device, pipe, terminal or folder,
    /// permits writes to it alone.
    pub fn permit_creation(&mut self, path: &Path) {
        if is_written_directly(path) {
            self.write.push(path.to_owned());
            return;
        }
        // The parent of a bare file name is the empty path.
        let parent = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = parent.unwrap_or(Path::new("."));
        self.write.push(folder.to_owned());
    }
}

/// Whether something is at `path` that is not replaced by a new file. A regular file is replaced, and so is a socket, which a killed
/// process may have left.
fn is_written_directly(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| {
        let kind = metadata.file_type();
        !kind.is_file() && !kind.is_socket()
    })
}
