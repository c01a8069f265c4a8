//! Discovery: which processes of an engine run here, what each does, and which sockets connect them.
//!
//! Everything is read from `/proc` and netlink `sock_diag`; nobody is stopped, traced or written to. Roles come from
//! process titles and commands where those tell, else from who started whom and who is connected to whom. What may
//! not be read is a [`Blind`] with the missing capability, never an error.
//!
//! [`discover`] looks once, [`Watcher`] goes on looking:
//!
//! ```no_run
//! use probe_user::discover::{Options, Watcher};
//!
//! let mut watcher = Watcher::new(Options::default())?;
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
mod error;
mod group;
mod hops;
mod infer;
mod known;
pub(crate) mod launch;
pub(crate) mod libzmq;
mod links;
mod own;
mod package;
pub(crate) mod proc;
mod release;
mod role;
mod route;
mod setting;
pub(crate) mod sock;
mod spec;
mod streaming;
mod table;
#[cfg(test)]
mod tests;
mod topology;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

pub use change::Change;
pub use degraded::{Blind, Part};
pub use error::DiscoverError;
pub use launch::Launcher;
pub use libzmq::{FUNCTIONS, LibZmq};
pub use package::PythonVersion;
pub use proc::ReadError;
pub use release::{NoRelease, Release, Stage};
pub use role::{Rank, Role, RoleSource, UnknownRole};
pub use route::Route;
pub use setting::{Origin, Setting};
pub use sock::netlink::DiagError;
pub use spec::{RoleSpec, RoleSpecError};
pub use streaming::{Codec, Disaggregation};
pub use topology::{Carries, Confidence, End, Engine, HopSeen, PickError, Process, ProcessId, Topology};
pub use watch::Watcher;

/// What to look at, and how much of it at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where procfs is mounted; the host's may be elsewhere.
    pub proc_root: PathBuf,
    /// Processes named by hand.
    pub named: Vec<RoleSpec>,
    /// Processes listed.
    pub max_processes: usize,
    /// Descriptors looked at in one process.
    pub max_descriptors: usize,
    /// Sockets listed in one network namespace, of each family.
    pub max_sockets: usize,
    /// How often [`Watcher::poll`] lists sockets while the processes stay the same.
    pub rewire: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            proc_root: "/proc".into(),
            named: Vec::new(),
            max_processes: 65_536,
            max_descriptors: 65_536,
            max_sockets: 262_144,
            rewire: Duration::from_secs(5),
        }
    }
}

/// Looks once.
pub fn discover(options: Options) -> Result<Topology, DiscoverError> {
    Ok(Watcher::new(options)?.topology().clone())
}
