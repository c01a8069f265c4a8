//! Discovery of an engine's local processes, their roles, and the sockets that connect them.
//!
//! All information comes from `/proc` and netlink `sock_diag`. No process is stopped, traced or written to. Roles come from process titles
//! and commands if possible, otherwise from parents and connections. Unreadable information yields a [`Blind`] with the missing capability,
//! never an error.
//!
//! [`discover`] scans once, and [`Watcher`] scans repeatedly:
//!
//! ```no_run
//! use probe_user::discover::{Options, Watcher};
//!
//! let mut watcher = Watcher::new(Options::new(&[]))?;
//! let engine = watcher.topology().pick(&[])?;
//! for process in engine.on_token_path() {
//!     println!("{} {} {:?}", process.id.pid, process.role, process.libzmq);
//! }
//! for change in watcher.poll()? {
//!     println!("{change:?}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod assemble;
mod candidate;
mod change;
mod degraded;
#[cfg(feature = "fake")]
pub mod fake;
mod hop;
mod known;
mod launch;
pub(crate) mod libzmq;
mod links;
mod own;
mod package;
mod python_version;
mod recognise;
mod release;
mod role;
mod route;
mod setting;
pub(crate) mod sock;
mod spec;
mod table;
mod tokenizer;
mod topology;
mod watch;
mod wires;
pub use crate::proc::ReadError;
pub use assemble::connected;
pub use change::Change;
pub use degraded::{Blind, Part};
pub use hop::{Carries, Confidence, End, HopSeen};
pub use launch::{FlagName, Flags, Program, program};
pub use libzmq::{FUNCTIONS, LibZmq};
pub use python_version::PythonVersion;
pub use recognise::{
    Codec, Disaggregation, Edge, EngineKind, Engines, Evidence, InnerServer, Launcher, Node, Package, PackageRelease,
    Reading, Recognise, RoleWithSource, Settings, Wire,
};
pub use release::{NoRelease, Release, Stage};
pub use role::{Function, Rank, Role, RoleSource, RoleWords, UnknownRole};
pub use route::Route;
pub use setting::{Origin, Setting};
pub use sock::diag::DiagError;
pub use spec::{RoleSpec, RoleSpecError};
use std::path::PathBuf;
use std::time::Duration;
pub use topology::{Engine, PickError, Process, ProcessId, Topology};
pub use watch::Watcher;

/// Scope and limits of discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Engines to recognise.
    pub engines: Engines,
    /// Mount point of procfs; the host's procfs may be mounted elsewhere.
    pub proc_root: PathBuf,
    /// Processes named by the user.
    pub named: Vec<RoleSpec>,
    /// Maximum number of processes listed.
    pub max_processes: usize,
    /// Maximum number of descriptors read in one process.
    pub max_descriptors: usize,
    /// Maximum number of sockets listed per network namespace and family.
    pub max_sockets: usize,
    /// Interval at which [`Watcher::poll`] lists sockets while the processes are unchanged.
    pub rewire: Duration,
}

impl Options {
    /// Looks for these engines among the processes in `/proc`.
    pub fn new(engines: Engines) -> Self {
        Self {
            engines,
            proc_root: "/proc".into(),
            named: Vec::new(),
            max_processes: 65_536,
            max_descriptors: 65_536,
            max_sockets: 262_144,
            rewire: Duration::from_secs(5),
        }
    }
}

/// Scans once.
pub fn discover(options: Options) -> Result<Topology, DiscoverError> {
    Ok(Watcher::new(options)?.topology().clone())
}

/// Error that prevents discovery.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoverError {
    /// No procfs is mounted.
    #[error("cannot list {path} ({error}): mount procfs there")]
    Proc {
        /// Path that was tried.
        path: String,
        /// Error of listing it.
        error: ReadError,
    },
    /// A process that the user named does not exist.
    #[error("--pid {pid}: there is no such process here{}", inside(.outside))]
    NoSuchProcess {
        /// Process id as given.
        pid: u32,
        /// Local ids of processes that have this id inside their containers.
        outside: Vec<u32>,
    },
}

fn inside(outside: &[u32]) -> String {
    match outside {
        [] => String::from("; use a pid as shown by ps here"),
        [one] => format!("; pid {one} has that pid inside its container: use --pid {one}"),
        several => {
            let pids: Vec<String> = several.iter().map(u32::to_string).collect();
            format!("; pids {} have that pid inside their containers", pids.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DiscoverError;

    #[test]
    fn a_pid_from_inside_a_container_is_translated() {
        let message = |outside| DiscoverError::NoSuchProcess { pid: 17, outside }.to_string();
        assert_eq!(message(vec![]), "--pid 17: there is no such process here; use a pid as shown by ps here");
        assert!(message(vec![22336]).ends_with("; pid 22336 has that pid inside its container: use --pid 22336"));
    }
}
