//! Landlock: files, TCP ports and abstract sockets.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::plan::{Plan, Reach, Work};

/// The newest interface of which all is used: 6 has scopes. Older kernels do what they can.
const NEWEST: ABI = ABI::V6;

/// What any program reads of its surroundings: itself, the zone of times of day.
const SURROUNDINGS: [&str; 4] = ["/proc/self", "/etc/localtime", "/usr/share/zoneinfo", "/sys/fs/cgroup"];
/// A terminal, and nothing.
const TERMINAL: [&str; 2] = ["/dev/tty", "/dev/null"];
/// What a C library reads to find a machine's address.
const NAMES: [&str; 9] = [
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
/// DNS, where an answer does not fit a datagram.
const DOMAIN: u16 = 53;

/// What stays allowed, looked up while everything was.
pub(crate) struct Rules {
    paths: Vec<(PathFd, BitFlags<AccessFs>)>,
    ports: Vec<Reach>,
    scopes: BitFlags<Scope>,
}

impl Rules {
    pub(crate) fn of(plan: &Plan) -> Self {
        let mut paths = Vec::new();
        let mut allow = |path: &std::path::Path, access| {
            // What is not there needs no rule: a name that comes to be later is a folder's affair.
            if let Ok(found) = PathFd::new(path) {
                paths.push((found, access));
            }
        };
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        for path in SURROUNDINGS {
            allow(path.as_ref(), read);
        }
        for path in TERMINAL {
            allow(path.as_ref(), read | AccessFs::WriteFile | AccessFs::IoctlDev);
        }
        let mut ports = plan.ports.clone();
        if plan.work != Work::Files {
            for path in NAMES {
                allow(path.as_ref(), read);
            }
            ports.push(Reach::Connect(DOMAIN));
        }
        for path in &plan.read {
            allow(path, read);
        }
        for path in &plan.write {
            allow(path, read | write());
        }
        let scopes = if plan.abstract_sockets {
            Scope::Signal.into()
        } else {
            Scope::from_all(NEWEST)
        };
        Self { paths, ports, scopes }
    }

    /// Nothing else from now on.
    pub(crate) fn restrict(self) -> Result<(), String> {
        let told = |error: &dyn std::error::Error| {
            let mut all = error.to_string();
            let mut cause = error.source();
            while let Some(why) = cause {
                all = format!("{all}: {why}");
                cause = why.source();
            }
            all
        };
        let ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))
            .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(NEWEST)))
            .and_then(|ruleset| ruleset.scope(self.scopes))
            .and_then(Ruleset::create);
        let mut ruleset = ruleset.map_err(|error| told(&error))?;
        for (path, access) in self.paths {
            // A pipe or a socket by its descriptor's name has no place in the tree, and is not confined either.
            let _ = (&mut ruleset).add_rule(PathBeneath::new(path, access));
        }
        for reach in self.ports {
            let rule = match reach {
                Reach::Listen(port) => NetPort::new(port, AccessNet::BindTcp),
                Reach::Connect(port) => NetPort::new(port, AccessNet::ConnectTcp),
            };
            (&mut ruleset).add_rule(rule).map_err(|error| told(&error))?;
        }
        let status = ruleset.restrict_self().map_err(|error| told(&error))?;
        match status.ruleset {
            RulesetStatus::NotEnforced => Err(String::from("the kernel has no Landlock, or it is off")),
            RulesetStatus::PartiallyEnforced | RulesetStatus::FullyEnforced => Ok(()),
        }
    }
}

/// Making, filling, replacing and removing files and sockets, folders of one's own included.
fn write() -> BitFlags<AccessFs> {
    AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeSock
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::IoctlDev
}
