//! Converts sampled stacks of the engine's threads into lines: the functions of each role, hottest first.

use trace::ledger::{Ledger, StackFunction, StackRole};

/// Maximum number of functions shown per role.
const SHOWN: usize = 40;

/// The functions of one role.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StackTable {
    pub(crate) role: String,
    /// Number of stacks sampled, and how many of them were of a running thread.
    pub(crate) samples: u64,
    pub(crate) running: u64,
    pub(crate) functions: Vec<StackLine>,
}

/// One function, as shares (0 to 1) of the stacks of running threads. `None` means not observable.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StackLine {
    pub(crate) function: String,
    pub(crate) file: String,
    /// Share of stacks with this function innermost.
    pub(crate) own: f64,
    /// Share of stacks that contain this function.
    pub(crate) total: f64,
    /// Share with this function innermost among stacks whose thread held the GIL.
    pub(crate) gil: Option<f64>,
    /// Share with this function innermost while frames queued up in front of its process.
    pub(crate) growing: Option<f64>,
}

/// Builds one table per role. Empty if no stacks are sampled.
pub(crate) fn read(ledger: &Ledger) -> Vec<StackTable> {
    ledger.stacks().iter().map(table).collect()
}

fn table(role: &StackRole) -> StackTable {
    StackTable {
        role: role.role.to_string(),
        samples: role.all.samples,
        running: role.all.running,
        functions: role
            .functions()
            .into_iter()
            .take(SHOWN)
            .map(|f| line(role, f))
            .collect(),
    }
}

fn line(role: &StackRole, of: &StackFunction) -> StackLine {
    let share = |n: u64, whole: u64| n as f64 / whole.max(1) as f64;
    StackLine {
        function: of.function.to_string(),
        file: of.file.to_string(),
        own: share(of.all.own, role.all.running),
        total: share(of.all.total, role.all.running),
        gil: role.gil_observed.then(|| share(of.all.gil, role.all.gil)),
        growing: (role.receives && role.growing.running > 0).then(|| share(of.growing.own, role.growing.running)),
    }
}
