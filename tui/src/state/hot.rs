//! Reads the sampled stacks of the engine's threads into lines: the functions of each role, the hottest first.

use trace::ledger::{HotFunction, HotRole, Ledger};

/// Functions shown of a role.
const SHOWN: usize = 40;

/// The functions of one role.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HotTable {
    pub(crate) role: String,
    /// Stacks read, and those of them of a thread that ran.
    pub(crate) taken: u64,
    pub(crate) running: u64,
    pub(crate) functions: Vec<HotLine>,
}

/// A function, by shares of the stacks of running threads, from 0 to 1. `None` is "not observable here".
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HotLine {
    pub(crate) function: String,
    pub(crate) file: String,
    /// As the innermost one.
    pub(crate) own: f64,
    /// Anywhere.
    pub(crate) total: f64,
    /// As the innermost one while its thread held the GIL, as a share of those that held it.
    pub(crate) gil: Option<f64>,
    /// As the innermost one while frames piled up in front of its process.
    pub(crate) growing: Option<f64>,
}

/// The tables; empty where no stacks are read.
pub(crate) fn read(ledger: &Ledger) -> Vec<HotTable> {
    ledger.hot().iter().map(table).collect()
}

fn table(role: &HotRole) -> HotTable {
    HotTable {
        role: role.role.to_string(),
        taken: role.all.taken,
        running: role.all.running,
        functions: role
            .functions()
            .into_iter()
            .take(SHOWN)
            .map(|f| line(role, f))
            .collect(),
    }
}

fn line(role: &HotRole, of: &HotFunction) -> HotLine {
    let share = |n: u64, whole: u64| n as f64 / whole.max(1) as f64;
    HotLine {
        function: of.function.to_string(),
        file: of.file.to_string(),
        own: share(of.all.own, role.all.running),
        total: share(of.all.total, role.all.running),
        gil: role.sees_gil.then(|| share(of.all.gil, role.all.gil)),
        growing: (role.takes && role.growing.running > 0).then(|| share(of.growing.own, role.growing.running)),
    }
}
