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
mod thresholds;
mod undecoded;
mod wire_loss;
mod worker_change;
mod worker_imbalance;
mod would_drop;

#[cfg(test)]
mod scene;

use attribution::Attribution;
pub use finding::{Finding, Findings, Severity, Verdict};
pub use thresholds::Thresholds;
pub(crate) use worker_imbalance::imbalance;

use crate::clock::MonoNs;
use crate::ledger::Ledger;

/// Input of a detector.
#[derive(Clone, Debug)]
pub struct DetectContext<'a> {
    /// State of the run.
    pub ledger: &'a Ledger,
    /// Detector thresholds.
    pub thresholds: &'a Thresholds,
    /// Attribution of the time of chunks and first tokens so far.
    pub attribution: Attribution<'a>,
    /// Time of the detector run.
    pub now: MonoNs,
}

impl<'a> DetectContext<'a> {
    /// Detector input for this state at `now`.
    pub fn at(ledger: &'a Ledger, thresholds: &'a Thresholds, now: MonoNs) -> Self {
        Self {
            ledger,
            thresholds,
            attribution: Attribution::of(ledger, thresholds),
            now,
        }
    }
}

/// A kind of problem.
pub trait Detector {
    /// Name in reports.
    fn kind(&self) -> &'static str;
    /// Whether the problem is intermittent, so that its worst moment is kept; otherwise the latest verdict is kept.
    fn is_intermittent(&self) -> bool {
        false
    }
    /// Whether there is one finding for all hops, naming the hop affected now.
    fn is_single(&self) -> bool {
        false
    }
    /// Adds a verdict for each place with the problem.
    fn check(&self, context: &DetectContext<'_>, found: &mut Vec<Verdict>);
}

/// All detectors, in the order in which reports list findings of equal severity.
pub const ALL: &[&(dyn Detector + Sync)] = &[
    &drops::DroppedChunks,
    &drops::ShortAnswers,
    &damaged_tool_calls::DamagedToolCalls,
    &wire_loss::WireLoss,
    &gap::FirstTokenGap,
    &late_delivery::LateDelivery,
    &late_send::LateSend,
    &late_frontend::LateFrontend,
    &consumer_away::STOPPED,
    &consumer_away::FROZEN,
    &consumer_away::BLOCKED,
    &consumer_cpu::ConsumerCpuBound,
    &consumer_logged::ConsumerCpuLogged,
    &consumer_throttled::ConsumerThrottled,
    &consumer_starved::ConsumerStarved,
    &io_starved::IoThreadStarved,
    &consumer_away::ASLEEP,
    &drops::DropsPredicted,
    &inflation::Inflation,
    &inflation::SummedCounts,
    &backlog::BacklogGrowing,
    &worker_change::RidChangedWorker,
    &order::OutOfOrder,
    &worker_imbalance::WorkerImbalance,
    &merging::Merging,
    &would_drop::WouldDrop,
    &burst::Burst,
    &engine_ended::EngineEnded,
    &engine_failed::EngineFailed,
    &stalled::StalledStream,
    &mode_mix::ModeMix,
    &arithmetic::WireArithmetic,
    &undecoded::UndecodedFrames,
    &missed_observations::MissedObservations,
    &limit::LimitReached,
];
