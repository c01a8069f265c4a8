//! Result of dropping rights: the remaining rights, and the steps that failed.

use rustix::io::Errno;

use crate::plan::Capabilities;

/// Result of [`Plan::apply`](crate::Plan::apply).
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
