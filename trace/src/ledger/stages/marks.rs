//! The stages of one request, in the order they happened.

use smallvec::SmallVec;

use super::abandoned::DiscardedOutputs;
use crate::clock::MonoNs;

/// Maximum number of stages kept per request.
const MAX_STAGES: usize = 32;
/// Maximum number of requests kept with their stages after their records are closed: those with the worst gaps.
const MAX_SLOWEST: usize = 16;
/// Two logs of one process agree on a stage's time to the microsecond; two servers differ by more than this, in nanoseconds.
const SAME_NS: u64 = 1_000_000;

/// One logged stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageMark {
    /// Time by the engine's own clock.
    pub at: MonoNs,
    pub(super) name: u8,
    pub(super) by: u8,
    /// Tokens of the request at that time.
    pub tokens: Option<u32>,
    /// Requests or messages queued behind it.
    pub pending: Option<u32>,
    /// Requests with state in the logging process at that time, if logged. Only for stages that end a gap.
    pub states: Option<u32>,
}

/// The stages of one request, earliest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageMarks {
    pub(super) list: SmallVec<[StageMark; 6]>,
    /// Bit mask of the stages whose gap is already computed.
    gaps_taken: u32,
    pub(super) discarded: DiscardedOutputs,
}

/// A first send and its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoggedGap {
    /// Index of the receive.
    pub(super) receive_index: usize,
    pub(super) begin: StageMark,
    pub(super) end: StageMark,
}

/// Result of entering a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkPlacement {
    /// It is the latest stage.
    Last {
        /// Name of the previous stage and the time since, in nanoseconds; `None` for the first stage.
        after: Option<(u8, u64)>,
    },
    Earlier,
    Repeat,
    Full,
}

impl StageMarks {
    /// The stages.
    pub fn list(&self) -> &[StageMark] {
        &self.list
    }

    /// Whether the engine continued the request although its outputs were discarded.
    pub(in crate::ledger) fn is_abandoned(&self) -> bool {
        self.discarded.is_abandoned()
    }

    /// Inserts a stage in the order of time, unless it is a repetition or there are too many.
    pub(super) fn insert_mark(&mut self, mark: StageMark) -> MarkPlacement {
        if self.is_repetition(&mark) {
            return MarkPlacement::Repeat;
        }
        if self.list.len() == MAX_STAGES {
            return MarkPlacement::Full;
        }
        // Of two stages at the same time, the one logged first comes first.
        let index = self.list.partition_point(|known| known.at <= mark.at);
        // The latest stage so far, and the time since it.
        let after = self.list.last().map(|last| (last.name, mark.at.since(last.at)));
        if index == self.list.len() {
            self.list.push(mark);
            return MarkPlacement::Last { after };
        }
        self.list.insert(index, mark);
        // `gaps_taken` refers to receives by index, and those behind this mark have moved up.
        self.move_taken_gaps_up(index);
        MarkPlacement::Earlier
    }

    /// Whether the stage is listed already: a process logs a stage once, and two processes may log the same moment.
    fn is_repetition(&self, mark: &StageMark) -> bool {
        let mut of_same_name = self.list.iter().filter(|known| known.name == mark.name);
        of_same_name.any(|known| known.by == mark.by || known.at.0.abs_diff(mark.at.0) < SAME_NS)
    }

    /// Updates `gaps_taken`, which has a bit for each stage, after a stage was inserted at `inserted_index`: the bits of later stages move
    /// up.
    fn move_taken_gaps_up(&mut self, inserted_index: usize) {
        let earlier_stages = (1_u32 << inserted_index) - 1;
        let earlier_bits = self.gaps_taken & earlier_stages;
        let later_bits = self.gaps_taken & !earlier_stages;
        self.gaps_taken = earlier_bits | (later_bits << 1);
    }

    /// Whether the gap that ends with the stage at `index` was returned. `gaps_taken` has a bit for each stage.
    fn is_gap_taken(&self, index: usize) -> bool {
        (self.gaps_taken & (1 << index)) != 0
    }

    /// Returns the gaps that no earlier call has returned, and marks their receives as returned. A gap is the time from a send to a
    /// receive; `sent_name` and `received_name` are the numbers of these stages' names. A receive belongs to the latest send before it: a
    /// request that went through two servers has two of each.
    pub(super) fn take_new_gaps(&mut self, sent_name: u8, received_name: u8) -> SmallVec<[LoggedGap; 1]> {
        let mut gaps = SmallVec::new();
        // Clocks of two processes may differ slightly: a receive just before its only send is a gap of 0.
        let Some(first_send) = self.list.iter().find(|mark| mark.name == sent_name) else { return gaps };
        let mut latest_send = *first_send;
        for (index, mark) in self.list.iter().enumerate() {
            if mark.name == sent_name {
                latest_send = *mark;
            } else if mark.name == received_name && !self.is_gap_taken(index) {
                // One bit for each index in the list.
                self.gaps_taken |= 1 << index;
                gaps.push(LoggedGap { receive_index: index, begin: latest_send, end: *mark });
            }
        }
        gaps
    }
}

/// A request with a long gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowRequest {
    /// The engine's request id, as logged.
    pub rid: Box<str>,
    /// From its first send to its first receive, in nanoseconds.
    pub gap_ns: u64,
    /// All its logged stages.
    pub marks: StageMarks,
}

/// Adds a request to the list of those with the longest gaps if its gap is one of the longest. A listed request keeps its longest gap.
pub(super) fn keep_request_if_slowest(
    slowest_requests: &mut Vec<SlowRequest>,
    rid: &str,
    gap_ns: u64,
    marks: &StageMarks,
) {
    let is_full = slowest_requests.len() >= MAX_SLOWEST;
    // Sorted, so the last one has the shortest gap.
    if is_full && slowest_requests.last().is_some_and(|shortest| shortest.gap_ns > gap_ns) {
        return;
    }
    if let Some(listed) = slowest_requests.iter_mut().find(|slow| *slow.rid == *rid) {
        if listed.gap_ns > gap_ns {
            return;
        }
        listed.gap_ns = gap_ns;
        listed.marks = marks.clone();
    } else {
        if is_full {
            slowest_requests.pop();
        }
        slowest_requests.push(SlowRequest { rid: rid.into(), gap_ns, marks: marks.clone() });
    }
    // Longest first, equal ones by rid.
    slowest_requests.sort_by(|one, other| other.gap_ns.cmp(&one.gap_ns).then_with(|| one.rid.cmp(&other.rid)));
}
