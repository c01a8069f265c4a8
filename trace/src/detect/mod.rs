//! Detectors: each a pure function of the ledger's state.

mod abandoned;
mod advice;
pub mod attribution;
mod backlog;
mod consumer;
mod consumer_away;
mod consumer_cpu;
mod drops;
mod engine;
mod engine_silent;
mod finding;
mod gap;
mod health_check;
mod inflation;
mod late;
mod merging;
mod own;
pub mod thresholds;
mod wire;
mod worker_imbalance;

#[cfg(test)]
mod tests;

use Keep::{Latest, LatestOfAllHops, Worst};
use attribution::Attribution;
use finding::Verdicts;
pub use finding::{Finding, Findings, Severity, Verdict};
pub use worker_imbalance::imbalance;

use crate::clock::MonoNs;
use crate::engine::Facts;
use crate::event::AwayState::{Asleep, Blocked, Frozen, Polling, Stopped, Traced};
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
type Check = fn(&DetectContext<'_>, &mut Verdicts);

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
    detector("repeated-ids", Latest, drops::repeated_ids),
    detector("unfinished-responses", Latest, drops::lacking_end),
    detector("damaged-tool-calls", Latest, drops::damaged_tool_calls),
    detector("wire-loss", Latest, wire::loss),
    detector("health-check-failed", Worst, health_check::failed),
    detector("first-token-gap", LatestOfAllHops, gap::check),
    detector("engine-silent", Worst, engine_silent::check),
    detector("late-delivery", Latest, late::delivery),
    detector("late-send", Latest, late::send),
    detector("late-frontend", Latest, late::frontend),
    detector("consumer-stopped", Worst, |context, out| consumer_away::check(context, out, &[Stopped, Traced])),
    detector("consumer-frozen", Worst, |context, out| consumer_away::check(context, out, &[Frozen])),
    detector("consumer-blocked", Worst, |context, out| consumer_away::check(context, out, &[Blocked])),
    detector("consumer-cpu-bound", Worst, consumer_cpu::observed),
    detector("consumer-cpu-logged", Worst, consumer_cpu::logged),
    detector("consumer-throttled", Worst, consumer::throttled),
    detector("consumer-starved", Worst, consumer::starved),
    detector("io-thread-starved", Worst, consumer_away::io_starved),
    detector("consumer-asleep", Worst, |context, out| consumer_away::check(context, out, &[Polling, Asleep])),
    detector("dropped-chunks-predicted", Latest, drops::predicted),
    detector("inflation", Latest, inflation::inflated),
    detector("summed-counts", Latest, inflation::summed),
    detector("abandoned-requests", Latest, abandoned::check),
    detector("backlog-growing", Worst, backlog::growing),
    detector("rid-changed-worker", Latest, wire::worker_change),
    detector("out-of-order", Latest, wire::order),
    detector("worker-imbalance", Latest, worker_imbalance::check),
    detector("merged-chunks", Latest, merging::merged),
    detector("would-drop", Latest, merging::would_drop),
    detector("burst", Latest, backlog::burst),
    detector("engine-ended", Latest, engine::ended),
    detector("engine-failed", Latest, engine::failed),
    detector("stalled-stream", Worst, engine::stalled),
    detector("mode-mix", Latest, inflation::mode_mix),
    detector("wire-arithmetic", Latest, wire::arithmetic),
    detector("undecoded", Latest, own::undecoded),
    detector("missed-observations", Latest, own::missed),
    detector("limit-reached", Latest, own::limit),
];
