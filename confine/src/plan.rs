//! The rights that a command needs. All others are dropped.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, set_no_new_privs};

use crate::{caps, files, seccomp};

/// Capabilities that the process keeps, with the kernel's names.
pub type Capabilities = CapabilitySet;

/// Kind of work, which determines the permitted system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reads files, and writes to files or a terminal. A system call for the network or on another process ends the process.
    Files,
    /// Like `Files`, with sockets, but without access to other processes.
    Network,
    /// Observes other processes with BPF, perf events, `/proc` and reads of their memory. Signals none of them.
    Probe,
    /// Like `Probe`, for a command that starts a program or moves sockets: also duplicates descriptors of processes, signals processes and
    /// changes owners of files.
    Move,
}

impl Work {
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
    /// Changes root's user id to [`UNPRIVILEGED`](crate::UNPRIVILEGED), which may write no file of root or of the observed processes, nor
    /// their memory; reading stays permitted. Check [`can_drop_root`](crate::can_drop_root) first. Files of the plan that are to be
    /// written must be opened by another process.
    pub unprivileged: bool,
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

    /// Permits creating or replacing `path`, by permitting writes in its folder.
    pub fn make(&mut self, path: &Path) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        // A device, pipe or terminal is written to directly. A socket left by a killed process is replaced.
        let replaceable = |kind: std::fs::FileType| kind.is_file() || kind.is_socket();
        let written_directly = path.metadata().is_ok_and(|metadata| !replaceable(metadata.file_type()));
        self.write.push(if written_directly { path } else { folder }.to_owned());
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
        let missing = &mut outcome.missing;
        let mut note = |text: String| missing.push(format!("confinement: {text}"));
        let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
        if threads > 1 {
            note(format!("{threads} threads were started earlier and keep their capabilities and file access"));
        }
        let rules = files::Rules::of(self);
        // A crash must not write memory to a disk.
        if let Err(error) = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }) {
            note(format!("cannot disable core dumps: {error}"));
        }
        match caps::drop_capabilities(self) {
            Ok((kept, user)) => {
                outcome.kept = kept;
                outcome.unprivileged = user == Some(Ok(()));
                if let Some(Err(error)) = user {
                    note(format!("still running as root with write access to its files: {error}"));
                }
            }
            Err(error) => note(format!("cannot drop capabilities: {error}")),
        }
        // Landlock and seccomp require it.
        if let Err(error) = set_no_new_privs(true) {
            note(format!("cannot set no_new_privs: {error}"));
            return outcome;
        }
        if !self.work.observes_processes() {
            match rules.restrict() {
                Ok(()) => outcome.landlock = true,
                Err(why) => note(format!(
                    "file access is not restricted: {why}; this needs Linux 5.13 or later with landlock in lsm="
                )),
            }
        }
        match seccomp::install(self.work) {
            Ok(()) => outcome.seccomp = true,
            Err(why) => note(format!("system calls are not filtered: {why}")),
        }
        outcome
    }
}

/// Result of [`Plan::apply`].
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Steps that failed, and why.
    pub missing: Vec<String>,
    /// Remaining capabilities.
    pub kept: Capabilities,
    /// Whether root's user id was changed to [`UNPRIVILEGED`](crate::UNPRIVILEGED).
    pub unprivileged: bool,
    /// Whether files are confined.
    pub landlock: bool,
    /// Whether system calls are filtered.
    pub seccomp: bool,
}

/// Refuses to load eBPF programs from now on, for all threads of a process with [`Work::Probe`]. The programs that it has loaded can still
/// be attached.
pub fn refuse_programs() -> Result<(), String> {
    seccomp::install_final().map_err(|why| format!("confinement: eBPF programs can still be loaded: {why}"))
}
