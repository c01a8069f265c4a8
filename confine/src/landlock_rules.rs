//! Landlock: files, TCP ports and abstract sockets.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, NetPort, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use crate::plan::{Plan, PortAccess, Work};

/// Newest interface version that is used; 6 added scopes. Older kernels enforce the part they know.
const NEWEST: ABI = ABI::V6;

/// Files that any program reads: its own `/proc`, the time zone, cgroups.
const COMMON_FILES: [&str; 4] = ["/proc/self", "/etc/localtime", "/usr/share/zoneinfo", "/sys/fs/cgroup"];
/// The terminal and the null device.
const TERMINAL: [&str; 2] = ["/dev/tty", "/dev/null"];
/// Files that a C library reads to resolve host names.
const RESOLVER_FILES: [&str; 9] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
    "/run/systemd/resolve",
    "/run/resolvconf",
];
/// DNS over TCP, for replies that do not fit a datagram.
const DNS_PORT: u16 = 53;

/// The permitted access, looked up before any restriction.
pub(crate) struct LandlockRules {
    paths: Vec<PathBeneath<PathFd>>,
    ports: Vec<PortAccess>,
    scopes: BitFlags<Scope>,
}

/// Rule for a file or folder. A missing file needs none: the rule of its folder permits creating it.
fn path_rule(path: &Path, access: BitFlags<AccessFs>) -> Option<PathBeneath<PathFd>> {
    PathFd::new(path).ok().map(|found| PathBeneath::new(found, access))
}

/// Rules for those of the files and folders that exist.
fn path_rules(paths: &[impl AsRef<Path>], access: BitFlags<AccessFs>) -> Vec<PathBeneath<PathFd>> {
    paths.iter().filter_map(|path| path_rule(path.as_ref(), access)).collect()
}

/// Rule that permits this use of a TCP port.
fn port_rule(access: PortAccess) -> NetPort {
    match access {
        PortAccess::Listen(port) => NetPort::new(port, AccessNet::BindTcp),
        PortAccess::Connect(port) => NetPort::new(port, AccessNet::ConnectTcp),
    }
}

/// A ruleset without rules, which refuses all kinds of access that the newest known version has. An older kernel refuses only those that it
/// knows.
fn create_ruleset(scopes: BitFlags<Scope>) -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(NEWEST)))
        .and_then(|ruleset| ruleset.scope(scopes))
        .and_then(Ruleset::create)
}

impl LandlockRules {
    /// Prepares the rules for the files, folders and ports of the plan. Opens the files, so that a rule holds for the file that has the
    /// path now, and not for a later one.
    pub(crate) fn from_plan(plan: &Plan) -> Self {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let terminal = read | AccessFs::WriteFile | AccessFs::IoctlDev;
        let mut paths = path_rules(&COMMON_FILES, read);
        paths.extend(path_rules(&TERMINAL, terminal));
        let mut ports = plan.ports.clone();
        // All work except that on files may resolve host names.
        if plan.work != Work::Files {
            paths.extend(path_rules(&RESOLVER_FILES, read));
            ports.push(PortAccess::Connect(DNS_PORT));
        }
        paths.extend(path_rules(&plan.read, read));
        paths.extend(path_rules(&plan.write, read | write_access()));
        // A scope refuses the access to processes outside: signals to them, and connections to their abstract sockets.
        let scopes = if plan.abstract_sockets { Scope::Signal.into() } else { Scope::from_all(NEWEST) };
        Self { paths, ports, scopes }
    }

    /// Refuses all access of this process from now on that the rules do not permit. Returns the kernel's version of Landlock, which decides
    /// the kinds of access that are refused. The error says why nothing is refused.
    pub(crate) fn restrict_this_process(self) -> Result<ABI, String> {
        let mut ruleset = create_ruleset(self.scopes).map_err(|error| error_with_causes(&error))?;
        for rule in self.paths {
            // Fails for a pipe or socket named by its descriptor. It is in no file system tree, and Landlock does not restrict it.
            let _ = (&mut ruleset).add_rule(rule);
        }
        for port in self.ports {
            (&mut ruleset).add_rule(port_rule(port)).map_err(|error| error_with_causes(&error))?;
        }
        // Success alone does not show whether the kernel enforces the rules.
        let status = ruleset.restrict_self().map_err(|error| error_with_causes(&error))?;
        match status.landlock {
            LandlockStatus::Available { effective_abi, .. } if status.ruleset != RulesetStatus::NotEnforced => {
                Ok(effective_abi)
            }
            _ => Err(String::from("Landlock is not available or is disabled")),
        }
    }
}

/// The error and its causes in one line.
fn error_with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}

/// Access that a process with sockets still has under this version of Landlock, as a message. `None` if there is none. Gaps in file access
/// are left out, because the filter of system calls closes them.
pub(crate) fn describe_unrestricted_access(landlock_version: ABI) -> Option<&'static str> {
    if landlock_version < ABI::V4 {
        Some("TCP ports and abstract sockets are not restricted; this needs Linux 6.7 for ports, 6.12 for sockets")
    } else if landlock_version < ABI::V6 {
        Some("abstract sockets are not restricted; this needs Linux 6.12 or later")
    } else {
        None
    }
}

/// Rights to create, write, replace and remove files, sockets and folders.
fn write_access() -> BitFlags<AccessFs> {
    AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeSock
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::IoctlDev
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_access_that_a_kernel_cannot_restrict_are_named() {
        // Linux 6.1, 6.8, 6.12.
        let missing = [ABI::V2, ABI::V4, ABI::V6].map(describe_unrestricted_access);
        assert!(missing[0].is_some_and(|text| text.starts_with("TCP ports and abstract sockets")));
        assert!(missing[1].is_some_and(|text| text.starts_with("abstract sockets")));
        assert_eq!(missing[2], None);
    }
}
