//! Properties of this process that affect discovery: its namespaces and permissions.

use std::os::unix::fs::MetadataExt as _;

use foreign::kernel;

use super::blind_spot::{BlindSpot, ProcPart};
use crate::capability::Permissions;
use crate::examine::namespace::NamespaceKind;

#[derive(Debug)]
pub(crate) struct OwnProcess {
    /// Pid in the mounted procfs; `None` if that belongs to a pid namespace without this process.
    pub(crate) pid: Option<u32>,
    pub(crate) permissions: Permissions,
    is_in_initial_pid_namespace: bool,
    hides_pids: bool,
}

impl OwnProcess {
    /// Reads what limits the view that this process has of others.
    pub(crate) fn read() -> Self {
        // Names the pid of this process in the mounted procfs.
        let link = std::fs::read_link("/proc/self").ok();
        let pid = link.and_then(|link| link.to_str()?.parse().ok());
        Self {
            pid,
            permissions: Permissions::current(),
            is_in_initial_pid_namespace: std::fs::metadata("/proc/self/ns/pid")
                .is_ok_and(|own| own.ino() == NamespaceKind::Pid.initial_inode()),
            hides_pids: hides_processes(),
        }
    }

    /// Information that is unavailable to this process. `unexamined_count` is the number of refused processes, and `has_found_engine` says
    /// whether an engine was found.
    pub(crate) fn blind_spots(&self, unexamined_count: usize, has_found_engine: bool) -> Vec<BlindSpot> {
        let missing_to_trace = ProcPart::Maps.missing_capabilities(self.permissions);
        let mut blind = Vec::new();
        // Even where `/proc` hides processes, it lists them to a process that may trace them.
        if self.hides_pids && !missing_to_trace.is_empty() {
            blind.push(BlindSpot::HiddenPids);
        }
        if unexamined_count > 0 {
            blind.push(BlindSpot::Unexamined { count: unexamined_count, missing: missing_to_trace });
        }
        // An engine may run outside of this pid namespace.
        if !has_found_engine && !self.is_in_initial_pid_namespace {
            blind.push(BlindSpot::OwnPidNamespace);
        }
        blind
    }
}

/// Whether `/proc` shows other users' processes only to processes that may trace them.
pub fn hides_processes() -> bool {
    kernel::read_text("/proc/self/mountinfo").is_ok_and(|mounts| mount_hides_pids(&mounts))
}

/// Whether the procfs mounted at `/proc` hides other users' processes.
fn mount_hides_pids(mountinfo: &str) -> bool {
    for line in mountinfo.lines() {
        // The fifth field is the mount point; the last has the options of the file system.
        if line.split(' ').nth(4) != Some("/proc") {
            continue;
        }
        let options = line.rsplit(' ').next().unwrap_or_default();
        let hidepid = options.split(',').find_map(|option| option.strip_prefix("hidepid="));
        if hidepid.is_some_and(|value| !matches!(value, "0" | "off")) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_process_is_found() {
        assert_eq!(OwnProcess::read().pid, Some(std::process::id()));
    }

    #[test]
    fn hidden_pids_are_detected_from_the_mount() {
        let hides = |at: &str, options: &str| {
            mount_hides_pids(&format!(
                "22 26 0:21 / {at} rw,nosuid,nodev,noexec,relatime shared:13 - proc proc {options}"
            ))
        };
        assert!(hides("/proc", "rw,hidepid=invisible") && hides("/proc", "rw,hidepid=2"));
        assert!(!hides("/proc", "rw,hidepid=0") && !hides("/proc", "rw"));
        assert!(!hides("/host/proc", "rw,hidepid=2"));
    }

    #[test]
    fn a_container_without_an_engine_is_reported_only_when_nothing_was_found() {
        let own = OwnProcess { is_in_initial_pid_namespace: false, hides_pids: false, ..OwnProcess::read() };
        assert_eq!(own.blind_spots(0, false), [BlindSpot::OwnPidNamespace]);
        assert_eq!(own.blind_spots(0, true), []);
    }
}
