//! Properties of this process that affect discovery: its namespaces and permissions.

use std::os::unix::fs::MetadataExt as _;

use foreign::kernel;

use super::degraded::{Blind, Part};
use crate::capability::Permissions;
use crate::examine::namespace::NamespaceKind;

#[derive(Debug)]
pub(crate) struct Own {
    /// Pid in the mounted procfs; `None` if that belongs to a pid namespace without this process.
    pub(crate) pid: Option<u32>,
    pub(crate) permissions: Permissions,
    in_initial_pid_ns: bool,
    hidepid: bool,
}

impl Own {
    pub(crate) fn read() -> Self {
        let link = std::fs::read_link("/proc/self").ok();
        let pid = link.and_then(|l| l.to_str()?.parse().ok());
        Self {
            pid,
            permissions: Permissions::current(),
            in_initial_pid_ns: std::fs::metadata("/proc/self/ns/pid")
                .is_ok_and(|own| own.ino() == NamespaceKind::Pid.initial_inode()),
            hidepid: hides_processes(),
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

/// Whether `/proc` shows other users' processes only to who may trace them.
pub fn hides_processes() -> bool {
    kernel::read_text("/proc/self/mountinfo").is_ok_and(|mounts| hides_pids(&mounts))
}

/// Whether the procfs mounted at `/proc` hides other users' processes.
fn hides_pids(mountinfo: &str) -> bool {
    mountinfo.lines().filter(|line| line.split(' ').nth(4) == Some("/proc")).any(|line| {
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
        assert_eq!(Own::read().pid, Some(std::process::id()));
    }

    #[test]
    fn hidden_pids_are_detected_from_the_mount() {
        let hides = |at: &str, options: &str| {
            hides_pids(&format!("22 26 0:21 / {at} rw,nosuid,nodev,noexec,relatime shared:13 - proc proc {options}"))
        };
        assert!(hides("/proc", "rw,hidepid=invisible") && hides("/proc", "rw,hidepid=2"));
        assert!(!hides("/proc", "rw,hidepid=0") && !hides("/proc", "rw"));
        assert!(!hides("/host/proc", "rw,hidepid=2"));
    }

    #[test]
    fn a_container_without_an_engine_is_reported_only_when_nothing_was_found() {
        let own = Own { in_initial_pid_ns: false, hidepid: false, ..Own::read() };
        assert_eq!(own.blind_spots(0, false), [Blind::OwnPidNamespace]);
        assert_eq!(own.blind_spots(0, true), []);
    }
}
