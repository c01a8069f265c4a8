//! Discovery of an engine's local processes, their roles, and the sockets that connect them.
//!
//! All information comes from `/proc` and netlink `sock_diag`. No process is stopped, traced or written to. Roles come from process titles
//! and commands if possible, otherwise from parents and connections. Unreadable information yields a [`BlindSpot`] with the missing
//! capability, never an error.
//!
//! A [`Watcher`] scans once, and again at every poll:
//!
//! ```no_run
//! use probe_user::discover::{DiscoverOptions, Watcher};
//!
//! let mut watcher = Watcher::new(DiscoverOptions::new(&[]))?;
//! let engine = watcher.topology().pick_engine(&[])?;
//! for process in engine.processes_on_token_path() {
//!     println!("{} {} {:?}", process.id.pid, process.role, process.libzmq);
//! }
//! if watcher.poll()? {
//!     println!("{}", watcher.topology());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod assemble;
mod blind_spot;
mod candidate;
pub(crate) mod connection;
pub(crate) mod diag_socket;
#[cfg(feature = "fake")]
pub mod fake;
pub(crate) mod libzmq;
mod link_meaning;
mod links;
mod own_process;
mod owners;
mod package;
mod process_cache;
mod python_version;
mod route;
mod spec;
mod table;
mod tokenizer;
mod topology;
#[cfg(test)]
pub(crate) mod toy;
mod watch;
pub use crate::proc::ReadError;
pub use blind_spot::{BlindSpot, ProcPart};
pub(crate) use candidate::StatedRole;
pub use diag_socket::DiagError;
pub use libzmq::LibZmq;
pub use own_process::hides_processes;
pub use route::Route;
pub use spec::RoleSpec;
use std::time::Duration;

use adapter::discover::Engines;

pub use tokenizer::{model_name, read_tokenizer, served_port};
pub use topology::{Engine, PickError, Process, ProcessId, Topology};
pub use watch::Watcher;

/// Scope of discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoverOptions {
    /// Engines to recognise.
    pub engines: Engines,
    /// Processes named by the user.
    pub named: Vec<RoleSpec>,
    /// Interval at which [`Watcher::poll`] lists sockets while the processes are unchanged.
    pub socket_interval: Duration,
}

impl DiscoverOptions {
    /// Looks for these engines among the processes in `/proc`.
    pub fn new(engines: Engines) -> Self {
        Self { engines, named: Vec::new(), socket_interval: Duration::from_secs(5) }
    }
}

/// Error that prevents discovery.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the comment of a variant describes its fields")]
pub enum DiscoverError {
    /// No procfs is mounted, or there is no descriptor left.
    #[error("cannot list /proc ({0}): {remedy}", remedy = proc_error_remedy(*.0))]
    Proc(ReadError),
    /// A process that the user named does not exist. `outside` are the local ids of processes that have this id inside their containers.
    #[error("--pid {pid}: there is no such process here{}", outside_pids_hint(.outside))]
    NoSuchProcess { pid: u32, outside: Vec<u32> },
}

/// Remedy if `/proc` cannot be listed.
fn proc_error_remedy(error: ReadError) -> &'static str {
    if blind_spot::is_out_of_descriptors(error) {
        "raise the limit of open files (ulimit -n 65536)"
    } else {
        "mount procfs there"
    }
}

/// End of the message that no process has the named pid. `outside_pids` are the pids here of processes that have the named pid inside their
/// container.
fn outside_pids_hint(outside_pids: &[u32]) -> String {
    match outside_pids {
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
