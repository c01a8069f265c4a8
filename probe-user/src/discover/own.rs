//! Properties of this process that affect discovery: its namespaces and permissions.

use super::degraded::{Blind, Part};
use crate::capability::Permissions;
use crate::examine::namespace::Kind;
use crate::proc::ProcRoot;

/// This process.
#[derive(Debug)]
pub(crate) struct Own {
    /// Pid in the given procfs; `None` if that belongs to a pid namespace without this process.
    pub(crate) pid: Option<u32>,
    pub(crate) net_ns: Option<u64>,
    pub(crate) permissions: Permissions,
    in_initial_pid_ns: bool,
    hidepid: bool,
}

impl Own {
    pub(crate) fn read(root: &ProcRoot) -> Self {
        let link = std::fs::read_link(root.path().join("self")).ok();
        let pid = link.and_then(|l| l.to_str()?.parse().ok());
        let process = pid.and_then(|pid| root.process(pid).ok());
        let mounts = process.as_ref().and_then(|p| p.read("mountinfo", 4 << 20).ok()).unwrap_or_default();
        Self {
            pid,
            net_ns: process.as_ref().and_then(|p| p.namespace("net").ok()),
            permissions: Permissions::here(),
            in_initial_pid_ns: process.as_ref().and_then(|p| p.namespace("pid").ok()) == Some(Kind::Pid.initial()),
            hidepid: hides_pids(&String::from_utf8_lossy(&mounts), &root.path().to_string_lossy()),
        }
    }

    /// Information that is unavailable from here. `unexamined` processes were refused; `found` tells whether an engine was found.
    pub(crate) fn blind_spots(&self, unexamined: usize, found: bool) -> Vec<Blind> {
        let missing = Part::Maps.lacks(self.permissions);
        let mut blind = Vec::new();
        if self.hidepid && !missing.is_empty() {
            blind.push(Blind::HiddenPids);
        }
        if unexamined > 0 {
            blind.push(Blind::Unexamined { count: unexamined, missing });
        }
        if !found && !self.in_initial_pid_ns {
            blind.push(Blind::OwnPidNamespace);
        }
        blind
    }
}

/// Whether the procfs mounted at `mount_point` hides other users' processes.
fn hides_pids(mountinfo: &str, mount_point: &str) -> bool {
    mountinfo.lines().filter(|line| line.split(' ').nth(4) == Some(mount_point)).any(|line| {
        let options = line.rsplit(' ').next().unwrap_or_default();
        let hidden = options.split(',').find_map(|option| option.strip_prefix("hidepid="));
        hidden.is_some_and(|value| !matches!(value, "0" | "off"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_process_is_found() {
        let own = Own::read(&ProcRoot::new("/proc"));
        assert_eq!(own.pid, Some(std::process::id()));
        assert!(own.net_ns.is_some());
    }

    #[test]
    fn hidden_pids_are_detected_from_the_mount() {
        let line = |options: &str| {
            format!("22 26 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:13 - proc proc {options}")
        };
        assert!(hides_pids(&line("rw,hidepid=invisible"), "/proc"));
        assert!(hides_pids(&line("rw,hidepid=2"), "/proc"));
        assert!(!hides_pids(&line("rw,hidepid=0"), "/proc"));
        assert!(!hides_pids(&line("rw"), "/proc"));
        assert!(!hides_pids(&line("rw,hidepid=2"), "/host/proc"));
    }

    #[test]
    fn a_container_without_an_engine_is_reported_only_when_nothing_was_found() {
        let own = Own {
            pid: Some(1),
            net_ns: None,
            permissions: Permissions::here(),
            in_initial_pid_ns: false,
            hidepid: false,
        };
        assert_eq!(own.blind_spots(0, false), [Blind::OwnPidNamespace]);
        assert_eq!(own.blind_spots(0, true), []);
    }
}
