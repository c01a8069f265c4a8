//! Python functions of the engine by role: the profile that explains the gap.

use serde::{Deserialize, Serialize};

use trace::SamplingCost;
use trace::ledger::{Ledger, StackCounts, StackFunction, StackHits, StackRole};
use trace::words::{count, duration, known_or_dash, percent};

/// Maximum number of functions listed per role.
const MAX_FUNCTIONS: usize = 40;
/// Maximum number of functions in the text report.
const MOST_IN_TEXT: usize = 8;
/// Width of the name column.
const NAME_WIDTH: usize = 54;

/// Profile of one role. A stack counts as running if the kernel reports its thread as running or waiting for a CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StackLine {
    /// `tokenizer`, `scheduler`, ...
    pub role: String,
    /// Stacks read: one for each thread and sample.
    pub stacks: u64,
    /// Stacks of running threads: the base of every `own` and `total` share.
    pub running: u64,
    /// Stacks of running threads that held the GIL; `null` if its owner cannot be read.
    pub gil: Option<u64>,
    /// Stacks of running threads while frames piled up for the process; `null` if its receives are not observed.
    pub growing_running: Option<u64>,
    /// Running stacks whose innermost function was evicted at the limit.
    pub left_out: u64,
    /// Functions, by descending `own` share.
    pub functions: Vec<StackFunctionLine>,
}

/// One function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StackFunctionLine {
    /// Name, qualified by its class from CPython 3.11 on.
    pub function: String,
    /// Source file.
    pub file: String,
    /// Over the run.
    pub all: StackShare,
    /// While frames piled up; `null` if they never did or it is not observed.
    pub growing: Option<StackShare>,
}

/// Shares of the running stacks for one function.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StackShare {
    /// Share of running stacks with the function innermost.
    pub own: f64,
    /// Share of running stacks that contain the function.
    pub total: f64,
    /// Share of stacks holding the GIL with the function innermost; `null` if its owner cannot be read.
    pub gil: Option<f64>,
}

impl StackLine {
    /// Profile of each role; `None` if no stack was read.
    pub fn all_roles(ledger: &Ledger) -> Option<Vec<Self>> {
        let roles = ledger.stacks();
        if roles.is_empty() { None } else { Some(roles.iter().map(stack_line).collect()) }
    }
}

/// Profile of a role, with its most frequent functions. `growing` counts the stacks that were read while frames piled up for the process.
fn stack_line(role: &StackRole) -> StackLine {
    StackLine {
        role: role.role.to_string(),
        stacks: role.all.samples,
        running: role.all.running,
        gil: role.gil_observed.then_some(role.all.gil),
        // Frames pile up for a receiver only.
        growing_running: role.receives.then_some(role.growing.running),
        left_out: role.left_out,
        functions: role
            .functions()
            .into_iter()
            .take(MAX_FUNCTIONS)
            .map(|function| function_line(role, function))
            .collect(),
    }
}

/// Shares of a function in the running stacks of its role, and in those of them that were read while frames piled up.
fn function_line(role: &StackRole, function: &StackFunction) -> StackFunctionLine {
    StackFunctionLine {
        function: function.function.to_string(),
        file: function.file.to_string(),
        all: stack_share(function.all, role.all, role.gil_observed),
        growing: (role.growing.running > 0).then(|| stack_share(function.growing, role.growing, role.gil_observed)),
    }
}

/// Share of `count` in `whole`, at most 1.
fn share_of_count(count: u64, whole: u64) -> f64 {
    (count as f64 / whole.max(1) as f64).min(1.0)
}

/// Shares of the stacks with a function (`hits`) in the stacks of its role. The share of those that hold the GIL is known only if the owner
/// of the GIL was observed.
fn stack_share(hits: StackHits, role_counts: StackCounts, gil_observed: bool) -> StackShare {
    StackShare {
        own: share_of_count(hits.own, role_counts.running),
        total: share_of_count(hits.total, role_counts.running),
        gil: gil_observed.then(|| share_of_count(hits.gil, role_counts.gil)),
    }
}

/// Writes a table of Python functions for each role, and what it cost to sample their stacks.
pub(super) fn write_function_tables(out: &mut String, lines: &[StackLine], cost: Option<&SamplingCost>) {
    for line in lines {
        let head = format!("PYTHON FUNCTIONS OF THE {}", line.role.to_uppercase());
        // The last three are the shares while frames piled up.
        write_row_of_shares(out, &head, ["OWN", "TOTAL", "GIL", "PILED:", "TOTAL", "GIL"]);
        for function in line.functions.iter().take(MOST_IN_TEXT) {
            write_function_row(out, function);
        }
        append_line!(
            out,
            "  of {} running stacks in {}, {} of them while frames piled up",
            count(line.running),
            count(line.stacks),
            known_or_dash(line.growing_running, count),
        );
    }
    if let Some(cost) = cost {
        write_sampling_cost(out, cost);
    }
    out.push('\n');
}

/// Writes how often stacks were sampled, and the CPU time that this took.
fn write_sampling_cost(out: &mut String, cost: &SamplingCost) {
    append_line!(
        out,
        "  {} samples at {} per second, {} failed, {} skipped, using {} of CPU",
        count(cost.readings),
        cost.hertz,
        count(cost.failed),
        count(cost.late),
        duration(cost.cpu_ns),
    );
}

/// Writes the row of a function, with the name of its file.
fn write_function_row(out: &mut String, function: &StackFunctionLine) {
    let file = function.file.rsplit('/').next().unwrap_or_default();
    let name = if file.is_empty() { function.function.clone() } else { format!("{} ({file})", function.function) };
    let StackFunctionLine { all, growing: while_piled_up, .. } = *function;
    // Of all stacks, then of those that were read while frames piled up for the process.
    let shares = [
        Some(all.own),
        Some(all.total),
        all.gil,
        while_piled_up.map(|share| share.own),
        while_piled_up.map(|share| share.total),
        while_piled_up.and_then(|share| share.gil),
    ];
    let words = shares.map(|share| known_or_dash(share, percent));
    write_row_of_shares(out, &name, words.each_ref().map(String::as_str));
}

/// Writes a row: the shares in all stacks, then those while frames piled up. Each column is 6 characters wide.
fn write_row_of_shares(out: &mut String, name: &str, columns: [&str; 6]) {
    let name: String = name.chars().take(NAME_WIDTH).collect();
    let [own, total, gil, piled_own, piled_total, piled_gil] = columns;
    append!(out, "{name:NAME_WIDTH$} {own:>6} {total:>6} {gil:>6}  ");
    append_line!(out, " {piled_own:>6} {piled_total:>6} {piled_gil:>6}");
}

#[cfg(test)]
mod tests {
    use trace::clock::MonoNs;
    use trace::event::{Event, StackSample, What};
    use trace::id::ThreadId;
    use trace::ledger::Limits;

    use super::*;

    #[test]
    fn shares_are_of_running_stacks_and_unobserved_values_are_null() {
        let mut ledger = Ledger::new(Limits::default());
        assert_eq!(StackLine::all_roles(&ledger), None);
        for (function, own, total) in
            [("TokenizerManager._handle_batch_output", 30, 30), ("TokenizerManager.handle_loop", 10, 40)]
        {
            let sample = StackSample {
                thread: ThreadId { pid: 7, tid: 7 },
                role: "tokenizer",
                function,
                file: "tokenizer_manager.py",
                interval_ns: 500_000_000,
                samples: 50,
                total,
                own,
                gil: None,
            };
            ledger.apply(&Event::new(MonoNs(500_000_000), What::Stack(sample)));
        }
        let lines = StackLine::all_roles(&ledger).unwrap();
        let line = &lines[0];
        assert_eq!((line.stacks, line.running, line.gil, line.growing_running), (50, 40, None, None));
        let stacks = &line.functions[0];
        assert_eq!(
            (stacks.function.as_str(), stacks.all.own, stacks.all.gil),
            ("TokenizerManager._handle_batch_output", 0.75, None)
        );
        assert_eq!(stacks.growing, None);
        let mut out = String::new();
        write_function_tables(&mut out, &lines, None);
        assert!(out.contains("PYTHON FUNCTIONS OF THE TOKENIZER") && out.contains("75 %"), "{out}");
        assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
    }
}
