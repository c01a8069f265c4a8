//! Detectors: one file each, each a pure function of the ledger's state.

mod advice;
mod arithmetic;
pub mod attribution;
mod backlog;
mod burst;
mod consumer;
mod consumer_away;
mod consumer_cpu;
mod consumer_logged;
mod consumer_starved;
mod consumer_throttled;
mod damaged_tool_calls;
mod drops;
mod engine_ended;
mod engine_failed;
mod finding;
mod gap;
mod inflation;
mod io_starved;
mod late_delivery;
mod late_frontend;
mod late_send;
mod limit;
mod merging;
mod missed_observations;
mod mode_mix;
mod order;
mod server_threads;
mod stalled;
pub mod thresholds;
mod undecoded;
mod wire_loss;
mod worker_change;
mod worker_imbalance;
mod would_drop;

#[cfg(test)]
mod scene;

use Keep::{Latest, LatestOfAllHops, Worst};
use attribution::Attribution;
pub use finding::{Finding, Findings, Severity, Verdict};
pub(crate) use worker_imbalance::imbalance;

use crate::clock::MonoNs;
use crate::engine::Facts;
use crate::ledger::Ledger;

/// Input of a detector.
#[derive(Clone, Debug)]
pub struct DetectContext<'a> {
    /// State of the run.
    pub ledger: &'a Ledger,
    /// Attribution of the time of chunks and first tokens so far.
    pub attribution: Attribution<'a>,
    /// Time of the detector run.
    pub now: MonoNs,
}

impl<'a> DetectContext<'a> {
    /// Detector input for this state at `now`.
    pub fn at(ledger: &'a Ledger, now: MonoNs) -> Self {
        Self { ledger, attribution: Attribution::of(ledger), now }
    }

    /// Facts about the engine.
    fn facts(&self) -> &'a dyn Facts {
        self.ledger.engine().facts()
    }
}

/// A kind of problem.
#[derive(Debug)]
pub struct Detector {
    /// Name in reports.
    pub kind: &'static str,
    keep: Keep,
    check: Check,
}

/// Adds a verdict for each place with the problem.
type Check = fn(&DetectContext<'_>, &mut Vec<Verdict>);

/// Verdict that a finding shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    /// The latest of each hop.
    Latest,
    /// The latest of all hops: there is one finding, which names the hop affected now.
    LatestOfAllHops,
    /// The worst of each hop, because the problem is intermittent.
    Worst,
}

const fn detector(kind: &'static str, keep: Keep, check: Check) -> Detector {
    Detector { kind, keep, check }
}

/// All detectors, in the order in which reports list findings of equal severity.
pub const ALL: &[Detector] = &[
    detector("dropped-chunks", Latest, drops::dropped),
    detector("short-answers", Latest, drops::short_answers),
    detector("damaged-tool-calls", Latest, damaged_tool_calls::check),
    detector("wire-loss", Latest, wire_loss::check),
    detector("first-token-gap", LatestOfAllHops, gap::check),
    detector("late-delivery", Latest, late_delivery::check),
    detector("late-send", Latest, late_send::check),
    detector("late-frontend", Latest, late_frontend::check),
    detector("consumer-stopped", Worst, consumer_away::stopped),
    detector("consumer-frozen", Worst, consumer_away::frozen),
    detector("consumer-blocked", Worst, consumer_away::blocked),
    detector("consumer-cpu-bound", Worst, consumer_cpu::check),
    detector("consumer-cpu-logged", Worst, consumer_logged::check),
    detector("consumer-throttled", Worst, consumer_throttled::check),
    detector("consumer-starved", Worst, consumer_starved::check),
    detector("io-thread-starved", Worst, io_starved::check),
    detector("consumer-asleep", Worst, consumer_away::asleep),
    detector("dropped-chunks-predicted", Latest, drops::predicted),
    detector("inflation", Latest, inflation::inflated),
    detector("summed-counts", Latest, inflation::summed),
    detector("backlog-growing", Worst, backlog::check),
    detector("rid-changed-worker", Latest, worker_change::check),
    detector("out-of-order", Latest, order::check),
    detector("worker-imbalance", Latest, worker_imbalance::check),
    detector("merged-chunks", Latest, merging::check),
    detector("would-drop", Latest, would_drop::check),
    detector("burst", Latest, burst::check),
    detector("engine-ended", Latest, engine_ended::check),
    detector("engine-failed", Latest, engine_failed::check),
    detector("stalled-stream", Worst, stalled::check),
    detector("mode-mix", Latest, mode_mix::check),
    detector("wire-arithmetic", Latest, arithmetic::check),
    detector("undecoded", Latest, undecoded::check),
    detector("missed-observations", Latest, missed_observations::check),
    detector("limit-reached", Latest, limit::check),
];
