//! Dropping all rights that a plan does not name.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::set_no_new_privs;

use crate::landlock_rules::{self, LandlockRules};
use crate::plan::{Capabilities, Plan, Work};
use crate::{caps, seccomp};

impl Plan {
    /// Drops all rights of this process that the plan does not keep. This cannot be undone. A step that fails is listed in the outcome, and
    /// the next ones are still taken where possible.
    pub fn apply(&self) -> Outcome {
        let mut outcome = Outcome::of_unconfined_process();
        record_earlier_threads(&mut outcome);
        // Before the capabilities are dropped, because opening the files of the rules may need them.
        let rules = LandlockRules::from_plan(self);
        disable_core_dumps_or_record_failure(&mut outcome);
        self.drop_rights_and_record(&mut outcome);
        self.protect_memory_or_record_failure(&mut outcome);
        // Landlock and seccomp require `no_new_privs`, so neither is tried without it.
        if let Err(error) = set_no_new_privs(true) {
            outcome.add_missing(&format!("cannot set no_new_privs: {error}"));
            return outcome;
        }
        // Landlock would also refuse reading `/proc` entries of other processes, so observers go without it.
        if !self.work.observes_processes() {
            self.restrict_access_and_record_gaps(rules, &mut outcome);
        }
        match seccomp::install_filters(self.work) {
            Ok(()) => outcome.seccomp = true,
            Err(why) => outcome.add_missing(&format!("system calls are not filtered: {why}")),
        }
        outcome
    }

    /// Drops capabilities, and leaves root where the plan allows it. Records the result, or what failed, in `outcome`.
    fn drop_rights_and_record(&self, outcome: &mut Outcome) {
        let dropped = match caps::drop_capabilities_and_change_user(self) {
            Ok(dropped) => dropped,
            Err(error) => {
                outcome.add_missing(&format!("cannot drop capabilities: {error}"));
                return;
            }
        };
        outcome.kept = dropped.kept;
        match dropped.user_change {
            Some(Ok(id)) => outcome.user = Some(id),
            Some(Err(error)) => {
                outcome.add_missing(&format!("still running as root with write access to its files: {error}"));
            }
            // The plan keeps the user, or the process has no capability to change it.
            None => {}
        }
    }

    /// Keeps processes of the same user from reading and writing the memory of this one, if it works for a less privileged process. They
    /// could use its rights otherwise.
    fn protect_memory_or_record_failure(&self, outcome: &mut Outcome) {
        let works_for_others = matches!(self.work, Work::Attach | Work::Open);
        if works_for_others && let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
            outcome.add_missing(&format!("cannot protect the memory from processes of the same user: {error}"));
        }
    }

    /// Restricts the access to files, and to sockets where the kernel can. Records in `outcome` what is not restricted.
    fn restrict_access_and_record_gaps(&self, rules: LandlockRules, outcome: &mut Outcome) {
        let landlock_version = match rules.restrict_this_process() {
            Ok(version) => version,
            Err(why) => {
                outcome.add_missing(&format!(
                    "file access is not restricted: {why}; this needs Linux 5.13 or later with landlock in lsm="
                ));
                return;
            }
        };
        outcome.landlock = true;
        // Of the kinds of work restricted here, only this one uses sockets, which older versions do not restrict.
        if self.work == Work::Network
            && let Some(gap) = landlock_rules::describe_unrestricted_access(landlock_version)
        {
            outcome.add_missing(gap);
        }
    }
}

/// Records other threads of this process in the outcome, because only the calling thread, and those that it starts later, lose capabilities
/// and file access.
fn record_earlier_threads(outcome: &mut Outcome) {
    // Without `/proc`, no other thread is assumed.
    let thread_count = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if thread_count > 1 {
        outcome.add_missing(&format!(
            "{thread_count} threads were started earlier and keep their capabilities and file access"
        ));
    }
}

/// Keeps a crash from writing the memory of this process to a disk.
fn disable_core_dumps_or_record_failure(outcome: &mut Outcome) {
    if let Err(error) = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }) {
        outcome.add_missing(&format!("cannot disable core dumps: {error}"));
    }
}

/// Result of [`Plan::apply`].
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Steps that failed, and why.
    pub missing: Vec<String>,
    /// Remaining capabilities.
    pub kept: Capabilities,
    /// The user and group id that root's was changed to.
    pub user: Option<u32>,
    /// Whether files are confined.
    pub landlock: bool,
    /// Whether system calls are filtered.
    pub seccomp: bool,
}

impl Outcome {
    /// The outcome before any step was taken.
    fn of_unconfined_process() -> Self {
        Self { missing: Vec::new(), kept: Capabilities::empty(), user: None, landlock: false, seccomp: false }
    }

    fn add_missing(&mut self, why: &str) {
        self.missing.push(format!("confinement: {why}"));
    }
}

/// Drops all capabilities but those `kept`. User, files and system calls stay unrestricted. The error says why the capabilities could not
/// be dropped.
pub fn drop_all_capabilities_but(kept: Capabilities) -> Result<(), String> {
    // Of this plan, only the capabilities are applied.
    let plan = Plan { keep: kept, ..Plan::new(Work::Files) };
    match caps::drop_capabilities_and_change_user(&plan) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("confinement: cannot drop capabilities: {error}")),
    }
}

/// Refuses to load eBPF programs from now on, for all threads of a process with [`Work::Attach`](crate::Work::Attach). The programs that it
/// has loaded can still be attached.
pub fn refuse_programs() -> Result<(), String> {
    seccomp::install_final_filter().map_err(|why| format!("confinement: eBPF programs can still be loaded: {why}"))
}
