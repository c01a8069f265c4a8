//! Information that discovery could not obtain, with the missing permission and a remedy.

use std::fmt;
use std::path::PathBuf;

use rustix::io::Errno;

use super::diag_socket::DiagError;
use crate::capability::{Capability, Permissions};
use crate::environment::RunEnvironment;
use crate::proc::ReadError;

/// A part of a process in `/proc` that only its owner and privileged users may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProcPart {
    /// `maps`: the mapped libzmq.
    Maps,
    /// `root`: files, for libzmq's functions and package releases.
    Root,
    /// `fd`: sockets, for hops.
    Descriptors,
    /// `environ`: the codec switch.
    Environment,
    /// `ns`: the network namespace of its sockets.
    Namespaces,
}

impl ProcPart {
    /// Name of the file in `/proc/PID`.
    const fn file_name(self) -> &'static str {
        match self {
            Self::Maps => "maps",
            Self::Root => "root",
            Self::Descriptors => "fd",
            Self::Environment => "environ",
            Self::Namespaces => "ns",
        }
    }

    /// Information that is unknown if this part cannot be read, for messages.
    const fn information_name(self) -> &'static str {
        match self {
            Self::Maps => "libzmq",
            Self::Root => "package releases",
            Self::Descriptors => "sockets and hops",
            Self::Environment => "codec switch",
            Self::Namespaces => "network namespace",
        }
    }

    /// Capabilities with which the file of another user's process can be read.
    const fn required_capabilities(self) -> &'static [Capability] {
        match self {
            Self::Descriptors | Self::Environment => &[Capability::SysPtrace, Capability::DacReadSearch],
            Self::Maps | Self::Root | Self::Namespaces => &[Capability::SysPtrace],
        }
    }

    /// Required capabilities that this process lacks.
    pub(crate) fn missing_capabilities(self, permissions: Permissions) -> Vec<Capability> {
        let required = self.required_capabilities().iter().copied();
        required.filter(|capability| !permissions.has(*capability)).collect()
    }
}

/// Whether this process, or the machine, has no descriptor left. Then nothing is known about the file.
pub(crate) fn is_out_of_descriptors(error: ReadError) -> bool {
    matches!(error, ReadError::Os(Errno::MFILE | Errno::NFILE))
}

/// Whether nothing is known about the file, because it could not be asked for.
pub(crate) fn could_not_be_asked(error: ReadError) -> bool {
    is_out_of_descriptors(error) || error == ReadError::OpenerEnded
}

/// A single piece of missing information.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the comment of a variant describes its fields")]
pub enum BlindSpot {
    /// Parts of engine processes cannot be read. `missing` is empty if all usual capabilities are present; a hardened kernel may still
    /// refuse.
    Unreadable { parts: Vec<ProcPart>, pids: Vec<u32>, missing: Vec<Capability> },
    /// Other users' Python processes without a known title; an engine among them is missed.
    Unexamined { count: usize, missing: Vec<Capability> },
    /// The mapped libzmq file could not be opened, so it cannot be probed.
    LibZmq { pid: u32, path: PathBuf, error: ReadError },
    /// The Unix sockets of a network namespace could not be listed with their peers, so hops there have only one known end.
    Peers { pids: Vec<u32>, error: DiagError },
    /// Only the processes of the current container are visible, and no engine is among them.
    OwnPidNamespace,
    /// `/proc` is mounted with `hidepid`, so other users' processes are not listed.
    HiddenPids,
    /// A limit was reached, and the rest was not examined.
    Limit { what: &'static str, limit: usize },
    /// Further processes may belong to an engine, which are not observed: the limits of processes without and with a stated role.
    LeftOut { count: usize, unnamed: usize, stated: usize },
    /// This process ran out of file descriptors, of which it may have `limit`.
    OutOfDescriptors { limit: Option<u64> },
    /// The process that opens files for this one has exited.
    OpenerEnded,
    /// The role of a process that the user named could not be determined.
    NoRole { pid: u32, roles: String },
    /// The engine passes its output on within one process, and no known extension that receives it is loaded.
    NoZmqOutput { pid: u32, variable: String },
    /// Processes that exchange messages with the engines of several main processes, which therefore form one group.
    SharedProcesses { pids: Vec<u32>, mains: Vec<u32> },
    /// A process of the engine of `main` has a connection to that of `other_main`, which is not read.
    ForeignConnection { pid: u32, main: u32, other_main: u32 },
}

impl fmt::Display for BlindSpot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { parts, pids, .. } => {
                let files = parts.iter().map(|part| part.file_name()).collect::<Vec<_>>().join(",");
                let unknown = parts.iter().map(|part| part.information_name()).collect::<Vec<_>>().join(", ");
                write!(f, "/proc/PID/{{{files}}} of {} may not be read: {unknown} unknown", DisplayPids::new(pids))
            }
            Self::Unexamined { count, .. } => {
                write!(
                    f,
                    "{count} Python processes of other users cannot be examined, so an engine among them would be missed"
                )
            }
            Self::LibZmq { pid, path, error } => {
                write!(
                    f,
                    "pid {pid}: cannot open its loaded {} ({error}), so its calls cannot be probed",
                    path.display()
                )
            }
            Self::Peers { pids, error } => write!(f, "the peers of {} are unknown: {error}", DisplayPids::new(pids)),
            Self::OwnPidNamespace => f.write_str("only processes of this container are visible, and none is an engine"),
            Self::HiddenPids => f.write_str("/proc is mounted with hidepid: other users' processes are not listed"),
            Self::Limit { what, limit } => write!(f, "more than {limit} {what}: the rest was skipped"),
            Self::LeftOut { count, unnamed, stated } => write!(
                f,
                "{count} processes were left out of the search: at most {unnamed} that have libzmq but no sign of an engine, and {stated} with a title or command of one, are examined"
            ),
            Self::OutOfDescriptors { limit } => {
                let limit = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
                write!(
                    f,
                    "processes could not be examined: tokengap has too many open files (limit {limit}), so new workers may be missed"
                )
            }
            Self::OpenerEnded => f.write_str(
                "the process that opens files for tokengap has exited: new workers and changed connections are not observed",
            ),
            Self::NoRole { pid, .. } => {
                write!(f, "pid {pid}: its role is not known from its title, command or sockets")
            }
            Self::NoZmqOutput { pid, variable } => {
                write!(
                    f,
                    "pid {pid} runs with {variable}: its output does not cross ZMQ, and no process has loaded a known server extension"
                )
            }
            Self::SharedProcesses { pids, mains } => write!(
                f,
                "several engines (main {}) are connected by {}: they are watched as one, except those that were watched before",
                DisplayPids::new(mains),
                DisplayPids::new(pids)
            ),
            Self::ForeignConnection { pid, main, other_main } => write!(
                f,
                "pid {pid} of the engine with main pid {main} is also connected to the one with main pid {other_main}: that connection is not read"
            ),
        }
    }
}

impl BlindSpot {
    /// Whether this is a limit of the search, which may be reached at any time.
    pub fn is_limit(&self) -> bool {
        matches!(self, Self::Limit { .. } | Self::LeftOut { .. } | Self::OutOfDescriptors { .. } | Self::OpenerEnded)
    }

    /// Whether this is a connection between engines, which may begin and end while they run.
    pub fn is_between_engines(&self) -> bool {
        matches!(self, Self::SharedProcesses { .. } | Self::ForeignConnection { .. })
    }

    /// Whether both report the same kind of limitation. Numbers and processes may differ.
    pub fn is_same_kind_of_limit(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Limit { what, .. }, Self::Limit { what: other_what, .. }) => what == other_what,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }

    /// Remedy as a line to copy; `None` if there is none.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Unreadable { missing, .. } | Self::Unexamined { missing, .. } => capability_remedy(missing),
            Self::LibZmq { error: ReadError::Denied, .. } => capability_remedy(&[Capability::SysPtrace]),
            // To open a mapped library without a valid path, or to enter a network namespace.
            Self::LibZmq { .. } | Self::Peers { error: DiagError::Enter(_), .. } => {
                capability_remedy(&[Capability::SysAdmin])
            }
            Self::Peers { error: DiagError::Refused(_), .. } => Some("modprobe unix_diag".into()),
            Self::OwnPidNamespace => Some(RunEnvironment::current().pid_namespace_remedy().to_owned()),
            Self::HiddenPids => Some("run as root, or mount -o remount,hidepid=0 /proc".into()),
            Self::LeftOut { .. } => Some("name the engine's processes with --pid, which are always examined".into()),
            Self::OutOfDescriptors { .. } => Some("ulimit -n 65536, or LimitNOFILE=65536 in a systemd unit".into()),
            Self::Peers { .. }
            | Self::Limit { .. }
            | Self::NoZmqOutput { .. }
            | Self::SharedProcesses { .. }
            | Self::ForeignConnection { .. } => None,
            Self::OpenerEnded => Some("start tokengap again".into()),
            Self::NoRole { pid, roles } => Some(format!("--pid {pid}=ROLE (one of {roles})")),
        }
    }
}

/// Remedy for missing capabilities, as a line to copy. `None` if there is none. If none is missing, this process may be in a user
/// namespace, whose capabilities do not count outside.
fn capability_remedy(missing: &[Capability]) -> Option<String> {
    if missing.is_empty() {
        let is_in_user_namespace = Permissions::current().is_in_user_namespace();
        return is_in_user_namespace.then(|| RunEnvironment::current().user_namespace_remedy().to_owned());
    }
    Some(RunEnvironment::current().grant_remedy(missing))
}

/// Process ids for display: `pid 7`, `pids 7, 8 and 3 more`.
pub(crate) struct DisplayPids<'a> {
    pids: &'a [u32],
}

impl<'a> DisplayPids<'a> {
    pub(crate) fn new(pids: &'a [u32]) -> Self {
        Self { pids }
    }
}

impl fmt::Display for DisplayPids<'_> {
    /// Writes the first pids, and the number of the others if there are many.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_SHOWN: usize = 4;
        let shown: Vec<String> = self.pids.iter().take(MAX_SHOWN).map(u32::to_string).collect();
        let noun = if self.pids.len() == 1 { "pid" } else { "pids" };
        write!(f, "{noun} {}", shown.join(", "))?;
        let omitted = self.pids.len() - shown.len();
        if omitted > 0 {
            write!(f, " and {omitted} more")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_missing_capability_is_named_with_the_line_that_grants_it() {
        let missing = vec![Capability::SysPtrace];
        let parts = vec![ProcPart::Maps, ProcPart::Descriptors];
        let blind = BlindSpot::Unreadable { parts, pids: vec![7, 8, 9, 10, 11], missing };
        assert_eq!(
            blind.to_string(),
            "/proc/PID/{maps,fd} of pids 7, 8, 9, 10 and 1 more may not be read: libzmq, sockets and hops unknown"
        );
        assert_eq!(blind.remedy(), Some(RunEnvironment::current().grant_remedy(&[Capability::SysPtrace])));
    }

    #[test]
    fn outside_the_container_of_the_engine_the_message_explains_how_to_join() {
        assert_eq!(
            BlindSpot::OwnPidNamespace.remedy().as_deref(),
            Some(RunEnvironment::current().pid_namespace_remedy())
        );
        assert!(RunEnvironment::Kubernetes.pid_namespace_remedy().contains("shareProcessNamespace: true"));
    }
}
