//! Responses with tool calls, by how their arguments compare with the engine's text.

use std::collections::{BTreeMap, VecDeque};

use super::limits::push_bounded;
use super::totals::AffectedRequests;
use crate::clock::MonoNs;
use crate::event::{ToolCallOutcome, ToolCalls, UnjudgedReason};

/// Maximum number of damaged responses kept, and of others; the oldest is evicted first.
const MAX_KEPT_RESPONSES: usize = 1_000;

/// Responses with tool calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCallResponses {
    /// Number of responses by outcome.
    pub outcomes: BTreeMap<ToolCallOutcome, u64>,
    /// Number of unjudged responses by reason.
    pub unjudged: BTreeMap<UnjudgedReason, u64>,
    /// Responses whose arguments the serving process damaged; the amount is in characters.
    pub damaged: AffectedRequests,
    /// Those of them that a parser damaged.
    pub damaged_by_parser: u64,
    latest_damaged: VecDeque<ToolCallResponse>,
    latest_others: VecDeque<ToolCallResponse>,
}

/// One response with tool calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCallResponse {
    /// The engine's request id.
    pub rid: Box<str>,
    /// When the response ended.
    pub at: MonoNs,
    /// Its tool calls.
    pub calls: ToolCalls,
}

impl ToolCallResponses {
    /// Counts a response with tool calls, and keeps it among the latest ones.
    pub(super) fn count_and_keep_response(&mut self, rid: &str, at: MonoNs, calls: ToolCalls) {
        *self.outcomes.entry(calls.outcome).or_default() += 1;
        if let Some(reason) = calls.reason {
            *self.unjudged.entry(reason).or_default() += 1;
        }
        let latest = if calls.outcome.is_damaged() {
            let chars = calls.part.map_or(0, |part| part.chars);
            self.damaged.record_occurrence(at, rid, chars.into());
            self.damaged_by_parser += u64::from(calls.is_by_parser());
            &mut self.latest_damaged
        } else {
            &mut self.latest_others
        };
        push_bounded(latest, ToolCallResponse { rid: rid.into(), at, calls }, MAX_KEPT_RESPONSES);
    }

    /// Number of responses with this outcome.
    pub(crate) fn count_of(&self, outcome: ToolCallOutcome) -> u64 {
        self.outcomes.get(&outcome).copied().unwrap_or_default()
    }

    /// The latest damaged responses, then the latest others, each oldest first.
    pub fn latest(&self) -> impl Iterator<Item = &ToolCallResponse> {
        self.latest_damaged.iter().chain(&self.latest_others)
    }

    /// The tool calls of the latest response with this request's id.
    pub fn find_response(&self, rid: &str) -> Option<&ToolCalls> {
        let of_rid = self.latest().filter(|response| &*response.rid == rid);
        of_rid.max_by_key(|response| response.at).map(|response| &response.calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn healthy_responses_do_not_evict_damaged_ones() {
        let mut responses = ToolCallResponses::default();
        let calls = |outcome| ToolCalls { outcome, ..ToolCalls::default() };
        responses.count_and_keep_response("cut", MonoNs(1), calls(ToolCallOutcome::Missing));
        for n in 0..=MAX_KEPT_RESPONSES {
            responses.count_and_keep_response(&n.to_string(), MonoNs(2), calls(ToolCallOutcome::Complete));
        }
        assert_eq!((responses.damaged.rids, responses.latest().count()), (1, MAX_KEPT_RESPONSES + 1));
        assert_eq!(responses.find_response("cut"), Some(&calls(ToolCallOutcome::Missing)));
        assert_eq!((responses.find_response("0"), responses.find_response("1").is_some()), (None, true));
    }
}
