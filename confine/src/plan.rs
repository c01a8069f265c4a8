//! What one command needs, and giving up the rest.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::caps::{self, Kept};
use crate::{files, seccomp};

/// What kind of work is to be done; it decides which system calls are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Files in, files or a terminal out. A call for the network or for another process ends the process.
    Files,
    /// The network, too: sockets, no other processes.
    Network,
    /// Watches other processes: BPF, perf events, `/proc`, their memory. Signals none of them.
    Probe,
    /// As `Probe`, beside a program that it has started or sockets that it moves: also duplicates descriptors of processes, signals
    /// processes and changes owners of files.
    Move,
}

impl Work {
    /// Whether it reads other processes.
    pub(crate) const fn watches(self) -> bool {
        matches!(self, Self::Probe | Self::Move)
    }
}

/// Where a TCP port is on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Listened on; 0 is any that is free.
    Listen(u16),
    /// Connected to, on whichever machine.
    Connect(u16),
}

/// What a command needs. What is not named is given up.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) work: Work,
    pub(crate) keep: Kept,
    pub(crate) read: Vec<PathBuf>,
    pub(crate) write: Vec<PathBuf>,
    pub(crate) ports: Vec<Reach>,
    pub(crate) abstract_sockets: bool,
}

/// What is in force now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What this machine could not do.
    pub missing: Vec<Missing>,
    /// Capabilities that are left.
    pub kept: Kept,
    /// Whether files are confined.
    pub landlock: bool,
    /// Whether system calls are filtered.
    pub seccomp: bool,
}

/// A step that was left out, and what that leaves open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// Threads were running already.
    #[error("confinement: {0} threads run already: theirs are the capabilities and files they had")]
    Threads(usize),
    /// Capabilities are there still.
    #[error("confinement: capabilities could not be given up: {0}")]
    Capabilities(Errno),
    /// A crash could leave what is in memory on a disk.
    #[error("confinement: core dumps could not be switched off: {0}")]
    Cores(Errno),
    /// The flag could not be set, so neither Landlock nor seccomp could be.
    #[error("confinement: no_new_privs could not be set: {0}")]
    NewPrivileges(Errno),
    /// No Landlock in this kernel, or it is off, or a container's filter refuses it.
    #[error("confinement: files are not confined: {0}; Linux 5.13 with landlock among lsm= can")]
    Landlock(String),
    /// No seccomp, or it was refused.
    #[error("confinement: system calls are not filtered: {0}")]
    Seccomp(String),
}

impl Plan {
    /// For `work`, with nothing to read, write or reach yet.
    pub fn new(work: Work) -> Self {
        Self {
            work,
            keep: Kept::empty(),
            read: Vec::new(),
            write: Vec::new(),
            ports: Vec::new(),
            abstract_sockets: false,
        }
    }

    /// Keeps these capabilities, where they are there.
    #[must_use]
    pub fn keep(mut self, kept: Kept) -> Self {
        self.keep |= kept;
        self
    }

    /// Reads this file, or everything in this folder.
    #[must_use]
    pub fn read(mut self, path: impl Into<PathBuf>) -> Self {
        self.read.push(path.into());
        self
    }

    /// Makes, replaces and removes files and sockets in this folder; or writes to this file, if it is one.
    #[must_use]
    pub fn write(mut self, path: impl Into<PathBuf>) -> Self {
        self.write.push(path.into());
        self
    }

    /// Makes `path`, which may be there: all of its folder may be written to.
    #[must_use]
    pub fn make(self, path: &Path) -> Self {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        // A device, a pipe, a terminal: written to as it is. A socket that a killed process left is made anew.
        let made = |kind: std::fs::FileType| kind.is_file() || kind.is_socket();
        let itself = path.metadata().is_ok_and(|found| !made(found.file_type()));
        if itself { self.write(path) } else { self.write(folder) }
    }

    /// Uses this TCP port.
    #[must_use]
    pub fn port(mut self, reach: Reach) -> Self {
        self.ports.push(reach);
        self
    }

    /// Connects to sockets in the abstract namespace that others have made.
    #[must_use]
    pub fn abstract_sockets(mut self) -> Self {
        self.abstract_sockets = true;
        self
    }

    /// Gives up everything else, for good.
    pub fn apply(&self) -> Outcome {
        let mut outcome = Outcome {
            missing: Vec::new(),
            kept: Kept::empty(),
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
        match caps::give_up(self) {
            Ok(kept) => outcome.kept = kept,
            Err(error) => outcome.missing.push(Missing::Capabilities(error)),
        }
        if let Err(error) = rustix::thread::set_no_new_privs(true) {
            outcome.missing.push(Missing::NewPrivileges(error));
            return outcome;
        }
        if !self.work.watches() {
            match rules.restrict() {
                Ok(()) => outcome.landlock = true,
                Err(why) => outcome.missing.push(Missing::Landlock(why)),
            }
        }
        match seccomp::install(self.work) {
            Ok(()) => outcome.seccomp = true,
            Err(why) => outcome.missing.push(Missing::Seccomp(why)),
        }
        outcome
    }
}
