//! The rights that a command needs, and dropping all others.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::caps::{self, Capabilities};
use crate::{files, seccomp};

/// Kind of work, which determines the permitted system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reads files, and writes files or to a terminal. A call for the network or another process ends the process.
    Files,
    /// As `Files`, with sockets. No other processes.
    Network,
    /// Observes other processes with BPF, perf events, `/proc` and reads of their memory. Signals none of them.
    Probe,
    /// As `Probe`, for a command that starts a program or moves sockets: also duplicates descriptors of processes, signals processes and
    /// changes owners of files.
    Move,
}

impl Work {
    /// Whether it observes other processes.
    pub(crate) const fn observes_processes(self) -> bool {
        matches!(self, Self::Probe | Self::Move)
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
    pub(crate) work: Work,
    pub(crate) keep: Capabilities,
    pub(crate) read: Vec<PathBuf>,
    pub(crate) write: Vec<PathBuf>,
    pub(crate) ports: Vec<PortAccess>,
    pub(crate) abstract_sockets: bool,
    pub(crate) unprivileged: bool,
}

/// Result of [`Plan::apply`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Steps that failed.
    pub missing: Vec<Missing>,
    /// Remaining capabilities.
    pub kept: Capabilities,
    /// Whether root's user id was changed to [`UNPRIVILEGED`](crate::UNPRIVILEGED).
    pub unprivileged: bool,
    /// Whether files are confined.
    pub landlock: bool,
    /// Whether system calls are filtered.
    pub seccomp: bool,
}

/// A step that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// Other threads were already running, which keep their capabilities and files.
    #[error("confinement: {0} threads were started earlier and keep their capabilities and file access")]
    Threads(usize),
    /// The capabilities could not be removed.
    #[error("confinement: cannot drop capabilities: {0}")]
    Capabilities(Errno),
    /// Root's user id could not be changed.
    #[error("confinement: still running as root with write access to its files: {0}")]
    User(Errno),
    /// Core dumps could not be disabled, so a crash may write memory to a disk.
    #[error("confinement: cannot disable core dumps: {0}")]
    Cores(Errno),
    /// `no_new_privs` could not be set, which Landlock and seccomp require.
    #[error("confinement: cannot set no_new_privs: {0}")]
    NewPrivileges(Errno),
    /// The kernel has no Landlock, it is disabled, or a container's filter refuses it.
    #[error("confinement: file access is not restricted: {0}; this needs Linux 5.13 or later with landlock in lsm=")]
    Landlock(String),
    /// Loading of eBPF programs could not be refused.
    #[error("confinement: eBPF programs can still be loaded: {0}")]
    Programs(String),
    /// The kernel has no seccomp, or refused the filter.
    #[error("confinement: system calls are not filtered: {0}")]
    Seccomp(String),
}

/// Refuses to load eBPF programs from now on, for all threads of a process with [`Work::Probe`]. The programs that it has loaded can still be
/// attached.
pub fn refuse_programs() -> Result<(), Missing> {
    seccomp::install_final().map_err(Missing::Programs)
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
        }
    }

    /// Keeps these capabilities, if present.
    #[must_use]
    pub fn keep(mut self, capabilities: Capabilities) -> Self {
        self.keep |= capabilities;
        self
    }

    /// Permits reading this file, or all files in this folder.
    #[must_use]
    pub fn read(mut self, path: impl Into<PathBuf>) -> Self {
        self.read.push(path.into());
        self
    }

    /// Permits creating, replacing and removing files and sockets in this folder, or writing to this file.
    #[must_use]
    pub fn write(mut self, path: impl Into<PathBuf>) -> Self {
        self.write.push(path.into());
        self
    }

    /// Permits creating or replacing `path`, by permitting writes in its folder.
    #[must_use]
    pub fn make(self, path: &Path) -> Self {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        // A device, pipe or terminal is written to directly. A socket left by a killed process is replaced.
        let replaceable = |kind: std::fs::FileType| kind.is_file() || kind.is_socket();
        let written_directly = path.metadata().is_ok_and(|metadata| !replaceable(metadata.file_type()));
        if written_directly {
            self.write(path)
        } else {
            self.write(folder)
        }
    }

    /// Permits the use of a TCP port.
    #[must_use]
    pub fn port(mut self, access: PortAccess) -> Self {
        self.ports.push(access);
        self
    }

    /// Permits connecting to abstract sockets of other processes.
    #[must_use]
    pub fn abstract_sockets(mut self) -> Self {
        self.abstract_sockets = true;
        self
    }

    /// Changes root's user id to [`UNPRIVILEGED`](crate::UNPRIVILEGED), which may write no file of root or of the observed processes, nor
    /// their memory; reading stays permitted. Check [`can_drop_root`](crate::can_drop_root) first. Files of the plan that are to be
    /// written must be opened by another process.
    #[must_use]
    pub fn unprivileged(mut self) -> Self {
        self.unprivileged = true;
        self
    }

    /// Drops all other rights. This cannot be undone.
    pub fn apply(&self) -> Outcome {
        let mut outcome = Outcome {
            missing: Vec::new(),
            kept: Capabilities::empty(),
            unprivileged: false,
            landlock: false,
            seccomp: false,
        };
        let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
        if threads > 1 {
            outcome.missing.push(Missing::Threads(threads));
        }
        let rules = files::Rules::of(self);
        let none = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        if let Err(error) = setrlimit(Resource::Core, none) {
            outcome.missing.push(Missing::Cores(error));
        }
        match caps::drop_capabilities(self, &mut outcome.missing) {
            Ok((kept, unprivileged)) => (outcome.kept, outcome.unprivileged) = (kept, unprivileged),
            Err(error) => outcome.missing.push(Missing::Capabilities(error)),
        }
        if let Err(error) = rustix::thread::set_no_new_privs(true) {
            outcome.missing.push(Missing::NewPrivileges(error));
            return outcome;
        }
        if !self.work.observes_processes() {
            match rules.restrict() {
                Ok(()) => outcome.landlock = true,
                Err(reason) => outcome.missing.push(Missing::Landlock(reason)),
            }
        }
        match seccomp::install(self.work) {
            Ok(()) => outcome.seccomp = true,
            Err(reason) => outcome.missing.push(Missing::Seccomp(reason)),
        }
        outcome
    }
}
