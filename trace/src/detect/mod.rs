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
mod explained_ttft;
mod finding;
mod findings;
mod gap;
mod health_check;
mod held_requests;
mod inflation;
mod late;
mod late_frames;
mod merging;
pub mod order;
mod own;
mod retries;
mod suspended_scheduler;
pub mod thresholds;
mod ttft;
mod unanswered;
mod wire;
mod worker_imbalance;

#[cfg(test)]
mod tests;

use Keep::{Latest, LatestOfAllHops, Worst};
use attribution::Attribution;
pub use finding::{Finding, FindingPhase, LASTING_NS, Severity, Verdict};
use finding::{HopTarget, Verdicts};
pub use findings::Findings;
pub use worker_imbalance::imbalance;

use crate::clock::MonoNs;
use crate::engine::Facts;
use crate::event::AwayState::{Asleep, Blocked, Frozen, Polling, Stopped, Traced};
use crate::ledger::Ledger;
use crate::path::{Ends, UNKNOWN};

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
    pub fn new(ledger: &'a Ledger, now: MonoNs) -> Self {
        Self { ledger, attribution: Attribution::of_token_time(ledger), now }
    }

    fn facts(&self) -> &'a dyn Facts {
        self.ledger.engine().facts()
    }

    /// Role of the process that responds to clients, to which the last hop (connection between two processes) of the path leads. `None` if
    /// that hop is not observed, or if its name has no roles.
    fn responding_role(&self) -> Option<&str> {
        for (_, group) in self.ledger.output_groups() {
            let ends = group.ends.as_str();
            // A hop whose name has no roles has this name at both ends.
            let has_roles = ends.to != UNKNOWN && ends.from != ends.to;
            if has_roles && self.ledger.is_last(&group.name) {
                return Some(ends.to);
            }
        }
        None
    }

    /// Role of the process that makes the tokens, such as the scheduler. It sends output over a hop (connection between two processes) and
    /// receives none. `None` if no such hop is observed.
    fn token_source_role(&self) -> Option<&str> {
        let hops: Vec<Ends<&str>> = self.ledger.output_groups().map(|(_, group)| group.ends.as_str()).collect();
        for hop in &hops {
            let sender = hop.from;
            let receives_output = hops.iter().any(|other| other.to == sender);
            if sender != UNKNOWN && !receives_output {
                return Some(sender);
            }
        }
        None
    }

    /// Where responses are written: `tokenizer->client`, the last arrow of the path on the screen; empty if no hop leads there.
    fn delivery_hop(&self) -> String {
        self.responding_role().map_or_else(String::new, |role| Ends::new(role, "client").to_string())
    }

    /// Where the frames of the hops (connections between two processes) with this name go.
    fn hop_target(&self, name: &str) -> HopTarget {
        let Some(group) = self.ledger.groups().iter().find(|group| *group.name == *name) else {
            return HopTarget::Other;
        };
        if group.carries_requests {
            HopTarget::Scheduler
        } else if self.ledger.is_last(name) {
            // The last hop of the path leads to the process that responds to clients.
            HopTarget::Tokenizer
        } else {
            HopTarget::Other
        }
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
    /// The latest of all hops: there is one finding, which names the hop affected now, or a place whose name becomes known later.
    LatestOfAllHops,
    /// The worst of each hop, because the problem is intermittent.
    Worst,
}

const fn detector(kind: &'static str, keep: Keep, check: Check) -> Detector {
    Detector { kind, keep, check }
}

/// All detectors, in the order in which reports list findings of equal severity that explain no time to first token, or equally much.
pub const ALL: &[Detector] = &[
    detector("dropped-chunks", LatestOfAllHops, drops::detect_dropped_chunks),
    detector("short-answers", Latest, drops::detect_short_answers),
    detector("repeated-ids", Latest, drops::detect_repeated_ids),
    detector("unfinished-responses", Latest, drops::detect_unfinished_responses),
    detector("finish-mismatch", Latest, drops::detect_finish_mismatch),
    detector("damaged-tool-calls", Latest, drops::detect_damaged_tool_calls),
    detector("wire-loss", Latest, wire::detect_wire_loss),
    detector("health-check-failed", Worst, health_check::detect_failed_health_check),
    detector("first-token-gap", LatestOfAllHops, gap::detect_late_first_tokens),
    detector("engine-silent", Worst, engine_silent::detect_engine_silence),
    detector("late-delivery", Latest, late::detect_late_deliveries),
    detector("late-send", Latest, late::detect_late_sends),
    detector("late-frontend", Latest, late::detect_late_frontend),
    detector("consumer-stopped", Worst, |context, out| {
        consumer_away::detect_consumer_away(context, out, &[Stopped, Traced]);
        suspended_scheduler::detect_suspended_scheduler(context, out, &[Stopped, Traced]);
    }),
    detector("consumer-frozen", Worst, |context, out| {
        consumer_away::detect_consumer_away(context, out, &[Frozen]);
        suspended_scheduler::detect_suspended_scheduler(context, out, &[Frozen]);
    }),
    detector("consumer-blocked", Worst, |context, out| consumer_away::detect_consumer_away(context, out, &[Blocked])),
    detector("consumer-cpu-bound", Worst, consumer_cpu::detect_cpu_bound_consumer),
    detector("consumer-cpu-logged", Worst, consumer_cpu::detect_logged_cpu_bound_consumer),
    detector("consumer-throttled", Worst, consumer::detect_throttled_consumer),
    detector("consumer-starved", Worst, consumer::detect_starved_consumer),
    detector("io-thread-starved", Worst, consumer_away::detect_starved_io_thread),
    detector("consumer-asleep", Worst, |context, out| {
        consumer_away::detect_consumer_away(context, out, &[Polling, Asleep]);
    }),
    detector("late-read", LatestOfAllHops, ttft::detect_late_reads),
    detector("late-dispatch", LatestOfAllHops, ttft::detect_late_dispatches),
    detector("late-receive", Latest, ttft::detect_late_receives),
    detector("late-intake", LatestOfAllHops, ttft::detect_late_intakes),
    detector("queued", LatestOfAllHops, ttft::detect_queued_requests),
    detector("slow-prefill", LatestOfAllHops, ttft::detect_slow_prefills),
    detector("slow-first-token", Latest, ttft::detect_slow_first_tokens),
    detector("dropped-chunks-predicted", LatestOfAllHops, drops::detect_predicted_drops),
    detector("inflation", LatestOfAllHops, inflation::detect_inflated_counts),
    detector("summed-counts", Latest, inflation::detect_summed_counts),
    detector("unanswered-requests", Worst, unanswered::detect_unanswered_requests),
    detector("abandoned-requests", LatestOfAllHops, abandoned::detect_abandoned_requests),
    detector("aborted-retries", Latest, retries::detect_aborted_retries),
    detector("backlog", Worst, backlog::detect_backlog),
    detector(finding::LATE_FRAMES, Latest, late_frames::detect_late_frames),
    detector("rid-changed-worker", Latest, wire::detect_worker_changes),
    detector("out-of-order", Latest, wire::detect_out_of_order),
    detector("worker-imbalance", Latest, worker_imbalance::detect_worker_imbalance),
    detector("merged-chunks", LatestOfAllHops, merging::detect_merged_chunks),
    detector("would-drop", LatestOfAllHops, merging::detect_replaced_chunks),
    detector("burst", Latest, backlog::detect_bursts),
    detector("engine-ended", Latest, engine::detect_engine_end),
    detector("engine-failed", Latest, engine::detect_engine_failure),
    detector("stalled-stream", Worst, engine::detect_stalled_requests),
    detector("mode-mix", Latest, inflation::detect_mixed_modes),
    detector("wire-arithmetic", Latest, wire::detect_surplus_ids),
    detector("undecoded", Latest, own::detect_undecoded_frames),
    detector("missed-observations", Latest, own::detect_missed_observations),
    detector("limit-reached", Latest, own::detect_reached_limits),
];
