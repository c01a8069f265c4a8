//! Data from the engine's own log: stages of requests, state of processes, merged chunks.
//!
//! The engine alone vouches for it. A request whose frames were not observed gets its gap from here.

mod enter;
mod marks;
mod names;
mod rank;
mod slowest;
mod tellers;

pub use marks::{Mark, Marks};
pub use rank::Correlation;
pub use slowest::Slow;
pub use tellers::{States, Teller};

use std::collections::VecDeque;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use self::names::Names;
use self::rank::Pairs;
use self::slowest::Slowest;
use self::tellers::Tellers;
use super::Ledger;
use super::table::Ticket;
use crate::clock::MonoNs;
use crate::stats::Distribution;

/// The scheduler hands a request's first output to its socket.
pub const FIRST_SENT: &str = "first_output_stream";
/// The tokenizer handles it.
pub const FIRST_TAKEN: &str = "tokenizer_first_token";
/// The engine is done with the request.
const ENDS: [&str; 3] = ["request_finished", "decode_finished", "finish_logged"];

/// Stages in the order in which a request passes them, as far as it is known; others have no place in it.
const ORDER: &[&str] = &[
    "request_received",
    "receive_logged",
    "request_sent_to_scheduler",
    "api_server_dispatch_finish",
    "wait_queue_entry",
    "transfer_done",
    "waiting_to_running",
    "forward_entry",
    "prefill_finished",
    "first_token_generated",
    FIRST_SENT,
    "output_send",
    FIRST_TAKEN,
    "tokenizer_event_set",
    "first_token_received",
    "response_sent_to_client",
    "completion",
    "decode_finished",
    "request_finished",
    "finish_logged",
];

/// A stage's place in the order that requests pass them; `None` when the stage is not one of those known.
pub fn place_of(stage: &str) -> Option<usize> {
    ORDER.iter().position(|&known| known == stage)
}

/// Distinct stage names and tellers; further ones are not entered, and counted.
const NAMES: usize = 128;
/// Pairs of stages with a distribution of their own.
const PAIRS: usize = 256;
/// First sends remembered of one sender, and requests past their wait.
const AWAITED: usize = 131_072;

/// All data from the engine's log.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Stages {
    names: Names,
    by: Names,
    between: HashMap<(u8, u8), Distribution>,
    tellers: Tellers,
    gaps: Pairs,
    slowest: Slowest,
    /// First sends without a logged receive yet, by sender, in order.
    awaited: HashMap<u8, VecDeque<(MonoNs, Ticket)>>,
    /// Requests with a logged receive of the first token, oldest first. The oldest is evicted first.
    passed: VecDeque<Ticket>,
    /// Counters.
    pub counts: StageCounts,
    /// Chunks that the engine says it merged.
    pub merged: MergedCounts,
}

/// Counters of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageCounts {
    /// Stages told, health checks apart.
    pub told: u64,
    /// Requests with at least one.
    pub requests: u64,
    /// Told again of the same request, by the same process or of the same millisecond: the first stands.
    pub repeats: u64,
    /// Told after a later one of the same request: in its table, in no distribution between stages.
    pub late: u64,
    /// Not entered: too many stages of one request, or too many names.
    pub left_out: u64,
    /// Number of `first_output_stream` lines.
    pub sends: u64,
    /// Number of `tokenizer_first_token` lines.
    pub takes: u64,
}

/// Merged chunks in the engine's log. It logs only merges of 20 chunks or more, so these are lower bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergedCounts {
    /// How often it said so.
    pub times: u64,
    /// Queued chunks that became one, summed.
    pub chunks: u64,
    /// The most at once.
    pub most: u32,
    /// Request of the largest merge.
    pub most_rid: Box<str>,
    /// When it first said so.
    pub since: Option<MonoNs>,
}

impl Stages {
    /// The name of a stage.
    pub fn name(&self, mark: &Mark) -> &str {
        self.names.get(mark.name)
    }

    /// Source of the mark; empty when unknown.
    pub fn by(&self, mark: &Mark) -> &str {
        self.by.get(mark.by)
    }

    /// Whether both ends of gaps are logged, even if for different requests.
    pub fn sees_gaps(&self) -> bool {
        self.counts.sends > 0 && self.counts.takes > 0
    }

    /// Time from one stage to the next of the same request, in the order they happened: from, to, durations.
    pub fn between(&self) -> impl Iterator<Item = (&str, &str, &Distribution)> {
        self.between
            .iter()
            .map(|(&(from, to), d)| (self.names.get(from), self.names.get(to), d))
    }

    /// The request that has been past its wait for longest.
    pub(super) fn passed(&mut self) -> Option<Ticket> {
        self.passed.pop_front()
    }

    /// The requests with the worst gaps, worst first.
    pub fn slowest(&self) -> &[Slow] {
        self.slowest.list()
    }

    /// Processes that said how they stand.
    pub fn tellers(&self) -> &[Teller] {
        self.tellers.list()
    }

    /// How gaps go with `states`; `None` below three requests of which both are known.
    pub fn correlation(&self) -> Option<Correlation> {
        self.gaps.correlation()
    }
}

impl Ledger {
    /// Data from the engine's own log.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }
}

#[cfg(test)]
mod tests;
