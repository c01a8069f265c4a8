//! Data from the engine's own log: stages of requests, state of processes, merged chunks.
//!
//! tokengap cannot verify this data. Gaps of requests whose frames were not observed are taken from it.

mod abandoned;
mod correlation;
mod logged_processes;
mod marks;
mod record;

pub(crate) use abandoned::ABANDONED_NS;
pub use abandoned::{AbandonedRequest, AbandonedRequests};
pub use correlation::Correlation;
pub use logged_processes::{LoggedProcess, LoggedSilence, LoggedValue, StateSeries};
pub use marks::{SlowRequest, StageMark, StageMarks};

use std::collections::VecDeque;

use hashbrown::HashMap;

use self::correlation::GapStatePairs;
use self::logged_processes::LoggedProcesses;
use super::{Ledger, OccurrenceTimes};
use crate::clock::MonoNs;
use crate::engine::{Facts, StageNames};
use crate::id::Ticket;
use crate::stats::Distribution;

/// Maximum number of stage names, and of logging processes. Stages beyond that are only counted.
const MAX_NAMES: usize = 128;
/// Maximum number of stage pairs with a distribution.
const MAX_STAGE_PAIRS: usize = 256;
/// Maximum number of first sends kept per sender, and of requests whose first receive is logged.
const MAX_AWAITED: usize = 131_072;

/// All data from the engine's log.
#[derive(Debug, Default)]
pub struct Stages {
    stage_names: NameTable,
    /// Indexed as the names. Empty after an event that names the engine.
    meanings: Vec<StageMeaning>,
    loggers: NameTable,
    between: HashMap<(u8, u8), Distribution>,
    logged_processes: LoggedProcesses,
    gaps: GapStatePairs,
    slowest: Vec<SlowRequest>,
    /// First sends without a logged receive yet, by sender, in order.
    awaited: HashMap<u8, VecDeque<(MonoNs, Ticket)>>,
    /// Requests with a logged receive of the first token, oldest first. The oldest is evicted first.
    pub(super) with_logged_receive: VecDeque<Ticket>,
    /// Counters.
    pub counts: StageCounts,
    /// Merged chunks in the engine's log.
    pub merged: MergedCounts,
    /// Requests whose outputs the receiver throws away.
    pub abandoned: AbandonedRequests,
}

/// Names, identified by their index.
#[derive(Debug, Default)]
struct NameTable {
    list: Vec<Box<str>>,
}

impl NameTable {
    /// Index of `name`, which is added if unknown. `None` at the limit of names.
    fn name_id_or_add(&mut self, name: &str) -> Option<u8> {
        if let Some(known) = self.id_of(name) {
            return Some(known);
        }
        if self.list.len() >= MAX_NAMES {
            return None;
        }
        self.list.push(name.into());
        Some((self.list.len() - 1) as u8)
    }

    /// Index of a known name.
    fn id_of(&self, name: &str) -> Option<u8> {
        Some(self.list.iter().position(|known| **known == *name)? as u8)
    }

    fn name_of(&self, id: u8) -> &str {
        self.list.get(usize::from(id)).map_or("", |name| name)
    }
}

/// What the engine's facts say about a stage. Looked up by the index of its name, because comparing texts for each event is slow.
#[derive(Clone, Copy, Debug)]
struct StageMeaning {
    position: GapPosition,
    is_discarded: bool,
    is_end: bool,
    /// Index of its chain.
    chain: Option<usize>,
}

/// Position of a stage relative to the gap of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GapPosition {
    Begin,
    End,
    After,
    Other,
}

impl GapPosition {
    /// Position of the stage with this name, relative to the gap from the first send to the first receive.
    fn of_stage(stage: &str, names: &StageNames) -> Self {
        // An unknown stage has no index, and `None` is less than any.
        let is_after_gap = names.index_of(stage) > names.index_of(names.first_received);
        if stage == names.first_sent {
            Self::Begin
        } else if stage == names.first_received {
            Self::End
        } else if is_after_gap {
            Self::After
        } else {
            Self::Other
        }
    }
}

impl StageMeaning {
    /// Meaning of the stage with this name, as the engine's facts say it.
    fn from_facts(stage: &str, facts: &dyn Facts) -> Self {
        let names = facts.stages();
        Self {
            position: GapPosition::of_stage(stage, names),
            is_discarded: stage == names.discarded,
            is_end: names.ends.contains(&stage),
            // A chain lists the stages that one process passes in order.
            chain: facts.stage_chains().iter().position(|chain| chain.contains(&stage)),
        }
    }
}

/// Counters of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageCounts {
    /// Logged stages, without health checks.
    pub logged: u64,
    /// Requests with at least one logged stage.
    pub requests: u64,
    /// Duplicates of a request's stage, from the same process or within a millisecond. The first one counts.
    pub repeats: u64,
    /// Logged after a later stage of the same request; left out of the distributions between stages.
    pub late: u64,
    /// Ignored: too many stages of one request, or too many names.
    pub left_out: u64,
    /// Number of logged first sends.
    pub sends: u64,
    /// Number of logged first receives.
    pub receives: u64,
    /// Number of gaps whose both ends are in one line.
    pub timed_gaps: u64,
}

/// Merged chunks in the engine's log. It logs only merges of 20 chunks or more, so these are lower bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergedCounts {
    /// Number of log lines.
    pub times: u64,
    /// Total number of merged chunks.
    pub chunks: u64,
    /// Maximum number of chunks in one merge.
    pub max: u32,
    /// Request of the largest merge.
    pub most_rid: Box<str>,
    /// When they were logged.
    pub logged_at: OccurrenceTimes,
}

impl Stages {
    /// Meaning of the stage whose name has this index.
    fn meaning_of_stage(&mut self, name_index: u8, facts: &dyn Facts) -> StageMeaning {
        // Names are only added, so meanings are derived for the new ones.
        let unknown = self.stage_names.list.iter().skip(self.meanings.len());
        self.meanings.extend(unknown.map(|name| StageMeaning::from_facts(name, facts)));
        self.meanings[usize::from(name_index)]
    }

    /// Forgets the meanings of stages, because the facts of another engine may apply.
    pub(super) fn forget_meanings(&mut self) {
        self.meanings.clear();
    }

    /// Name of the stage.
    pub fn name_of(&self, mark: &StageMark) -> &str {
        self.stage_names.name_of(mark.name)
    }

    /// Process that logged the stage; empty if unknown.
    pub fn process_of(&self, mark: &StageMark) -> &str {
        self.loggers.name_of(mark.by)
    }

    /// Whether both ends of gaps are logged, even if for different requests.
    pub fn observes_gaps(&self) -> bool {
        (self.counts.sends > 0 && self.counts.receives > 0) || self.counts.timed_gaps > 0
    }

    /// Time from one stage to the next of the same request, in the order they happened: from, to, durations.
    pub fn times_between_stages(&self) -> impl Iterator<Item = (&str, &str, &Distribution)> {
        self.between
            .iter()
            .map(|(&(from, to), times)| (self.stage_names.name_of(from), self.stage_names.name_of(to), times))
    }

    /// Requests with the worst gaps, worst first.
    pub fn slowest(&self) -> &[SlowRequest] {
        &self.slowest
    }

    /// Processes that log their state.
    pub fn processes(&self) -> &[LoggedProcess] {
        &self.logged_processes.list
    }

    /// Correlation of gaps with `states`; `None` with fewer than three requests where both are known, or without variation.
    pub fn correlation(&self) -> Option<Correlation> {
        self.gaps.rank_correlation()
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
