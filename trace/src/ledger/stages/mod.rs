//! What the engine says of its requests and of itself: the stages its log tells, how its processes stand, what it merged.
//!
//! All of it is the engine's own word. A request whose frames were not observed takes its gap from here.

mod marks;
mod names;
mod rank;
mod slowest;
mod tellers;

pub use marks::{Mark, Marks};
pub use rank::Correlation;
pub use slowest::Slow;
pub use tellers::{States, Teller};

use hashbrown::HashMap;

use self::names::Names;
use self::rank::Pairs;
use self::slowest::Slowest;
use self::tellers::Tellers;
use super::Ledger;
use super::health::HealthChecks;
use crate::clock::MonoNs;
use crate::event::{Merged, Stage, Told};
use crate::stats::Distribution;

/// The scheduler hands a request's first output to its socket.
pub const FIRST_SENT: &str = "first_output_stream";
/// The tokenizer handles it.
pub const FIRST_TAKEN: &str = "tokenizer_first_token";
/// The engine is done with the request.
const ENDS: [&str; 2] = ["request_finished", "decode_finished"];

/// Stages in the order in which a request passes them, as far as it is known; others have no place in it.
const ORDER: &[&str] = &[
    "request_received",
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
];

/// A stage's place in the order that requests pass them; `None` when the stage is not one of those known.
pub fn place_of(stage: &str) -> Option<usize> {
    ORDER.iter().position(|&known| known == stage)
}

/// Distinct stage names and tellers; further ones are not entered, and counted.
const NAMES: usize = 128;
/// Pairs of stages with a distribution of their own.
const PAIRS: usize = 256;

/// All that was told.
#[derive(Debug, Default)]
pub struct Stages {
    names: Names,
    by: Names,
    between: HashMap<(u8, u8), Distribution>,
    tellers: Tellers,
    gaps: Pairs,
    slowest: Slowest,
    /// Counters.
    pub counts: StageCounts,
    /// Chunks that the engine says it merged.
    pub merged: MergedCounts,
}

/// Counters of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// `first_output_stream` was told.
    pub sends: u64,
    /// `tokenizer_first_token` was told.
    pub takes: u64,
}

/// What the engine says it merged. It speaks from 20 chunks on only, so that this is less than there was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergedCounts {
    /// How often it said so.
    pub times: u64,
    /// Queued chunks that became one, summed.
    pub chunks: u64,
    /// The most at once.
    pub most: u32,
    /// Whose they were.
    pub most_rid: Box<str>,
    /// When it first said so.
    pub since: Option<MonoNs>,
}

impl Stages {
    /// The name of a stage.
    pub fn name(&self, mark: &Mark) -> &str {
        self.names.get(mark.name)
    }

    /// Who told it; empty when unknown.
    pub fn by(&self, mark: &Mark) -> &str {
        self.by.get(mark.by)
    }

    /// Whether both ends of the gap were told of, be it of different requests.
    pub fn sees_gaps(&self) -> bool {
        self.counts.sends > 0 && self.counts.takes > 0
    }

    /// Time from one stage to the next of the same request, in the order they happened: from, to, durations.
    pub fn between(&self) -> impl Iterator<Item = (&str, &str, &Distribution)> {
        self.between
            .iter()
            .map(|(&(from, to), d)| (self.names.get(from), self.names.get(to), d))
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
    /// What the engine itself has said.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    pub(super) fn staged(&mut self, at: MonoNs, stage: &Stage<'_>) {
        if HealthChecks::is_one(stage.rid) {
            if self.health.is_new(stage.rid) {
                self.totals.requests.health_checks += 1;
            }
            return;
        }
        let told = &mut self.stages;
        told.counts.told += 1;
        let (Some(name), Some(by)) = (told.names.id(stage.name, NAMES), told.by.id(stage.by, NAMES)) else {
            told.counts.left_out += 1;
            return;
        };
        told.counts.sends += u64::from(stage.name == FIRST_SENT);
        told.counts.takes += u64::from(stage.name == FIRST_TAKEN);
        let ticket = match self.table.find(stage.rid) {
            Some(ticket) => ticket,
            None => self.admit(stage.rid, at),
        };
        let Some(request) = self.table.get_mut(ticket) else {
            return;
        };
        request.last_at = request.last_at.max(at);
        request.first_at = request.first_at.min(at);
        let told = &mut self.stages;
        let marks = request.marks.get_or_insert_with(|| {
            told.counts.requests += 1;
            Box::default()
        });
        let mark = Mark {
            at,
            name,
            by,
            tokens: stage.tokens,
            pending: stage.pending,
            states: None,
        };
        match marks.enter(mark) {
            marks::Entered::Last { after } => {
                if let Some((from, ns)) = after.filter(|(from, _)| *from != name) {
                    let known = told.between.len() < PAIRS || told.between.contains_key(&(from, name));
                    if known {
                        told.between.entry((from, name)).or_default().record(at, ns);
                    }
                }
            }
            marks::Entered::Earlier => told.counts.late += 1,
            marks::Entered::Repeat => {
                told.counts.repeats += 1;
                return;
            }
            marks::Entered::NoRoom => {
                told.counts.left_out += 1;
                return;
            }
        }
        // Frames that were observed say when tokens were sent and taken better than a log does.
        if request.streams.is_empty() {
            self.gap_as_told(ticket, at, stage);
        }
        if ENDS.contains(&stage.name) && self.table.get(ticket).is_some_and(|r| r.finish.is_none()) {
            self.totals.requests.finished += 1;
            self.finish(ticket, at, crate::event::Finish::Other);
        }
    }

    /// Joins a request's first send with its first take, whichever is told last.
    fn gap_as_told(&mut self, ticket: super::table::Ticket, at: MonoNs, stage: &Stage<'_>) {
        let told = &mut self.stages;
        let Some(request) = self.table.get_mut(ticket) else {
            return;
        };
        match stage.name {
            FIRST_SENT => request.sent_first = Some(request.sent_first.map_or(at, |first| first.min(at))),
            FIRST_TAKEN => request.taken_first = Some(request.taken_first.map_or(at, |first| first.min(at))),
            _ => {}
        }
        let Some(marks) = &mut request.marks else { return };
        if let (Some(sent), Some(taken)) = (told.names.known(FIRST_SENT), told.names.known(FIRST_TAKEN))
            && [FIRST_SENT, FIRST_TAKEN].contains(&stage.name)
        {
            for (place, ns) in marks.gaps(sent, taken) {
                let (end, by) = (marks.list()[place].at, marks.list()[place].by);
                self.gap.record(end, ns);
                request.gap_ns = request.gap_ns.max(Some(ns));
                if ns >= self.worst_gap.ns {
                    self.worst_gap.ns = ns;
                    self.worst_gap.rid = request.rid.clone();
                    self.worst_gap.at = end;
                }
                let states = told.tellers.states(told.by.get(by), end);
                marks.held(place, states);
                if let Some(states) = states {
                    told.gaps.push(ns, states);
                }
            }
        }
        if let Some(gap) = request.gap_ns {
            told.slowest.offer(&request.rid, gap, marks);
        }
    }

    pub(super) fn told(&mut self, at: MonoNs, told: &Told<'_>) {
        self.stages.tellers.enter(at, told);
    }

    pub(super) fn merged(&mut self, at: MonoNs, merged: &Merged<'_>) {
        let counts = &mut self.stages.merged;
        counts.times += 1;
        counts.chunks += u64::from(merged.chunks);
        counts.since.get_or_insert(at);
        if merged.chunks > counts.most {
            counts.most = merged.chunks;
            counts.most_rid = merged.rid.into();
        }
    }
}

#[cfg(test)]
mod tests;
