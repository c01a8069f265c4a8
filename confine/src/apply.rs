//! Dropping all rights that a plan does not name.

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::outcome::{Missing, Outcome};
use crate::plan::{Capabilities, Plan};
use crate::{caps, files, seccomp};

impl Plan {
    /// Drops all other rights. This cannot be undone.
    pub fn apply(&self) -> Outcome {
        let mut outcome = Outcome {
            missing: Vec::new(),
            kept: Capabilities::empty(),
            unprivileged: false,
            landlock: false,
            seccomp: false,
        };
        let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
        if threads > 1 {
            outcome.missing.push(Missing::Threads(threads));
        }
        let rules = files::Rules::of(self);
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        if let Err(error) = setrlimit(Resource::Core, none) {
            outcome.missing.push(Missing::Cores(error));
        }
        match caps::drop_capabilities(self, &mut outcome.missing) {
            Ok((kept, unprivileged)) => (outcome.kept, outcome.unprivileged) = (kept, unprivileged),
            Err(error) => outcome.missing.push(Missing::Capabilities(error)),
        }
        if let Err(error) = rustix::thread::set_no_new_privs(true) {
            outcome.missing.push(Missing::NewPrivileges(error));
            return outcome;
        }
        if !self.work.observes_processes() {
            match rules.restrict() {
                Ok(()) => outcome.landlock = true,
                Err(reason) => outcome.missing.push(Missing::Landlock(reason)),
            }
        }
        match seccomp::install(self.work) {
            Ok(()) => outcome.seccomp = true,
            Err(reason) => outcome.missing.push(Missing::Seccomp(reason)),
        }
        outcome
    }
}

/// Refuses to load eBPF programs from now on, for all threads of a process with [`Work::Probe`](crate::Work::Probe). The programs that it
/// has loaded can still be attached.
pub fn refuse_programs() -> Result<(), Missing> {
    seccomp::install_final().map_err(Missing::Programs)
}
