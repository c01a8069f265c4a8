//! Tool calls in the observed part of a response, for responses that cannot be compared with the engine's text.

use serde::Deserialize;
use serde_json::Deserializer;
use trace::event::{ToolCallOutcome, ToolCalls, UnjudgedReason};

use super::fields::fold_list;

/// Number of tool calls and events, counted without keeping any text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ObservedCalls {
    /// Index of the first call; `None` without any.
    first_index: Option<u32>,
    /// Highest index of a call.
    highest_index: u32,
    /// Number of events with a part of the first call.
    events_of_first: u32,
}

#[derive(Clone, Copy, Deserialize)]
struct IndexedCall {
    #[serde(default)]
    index: Option<u32>,
}

/// Indices of the calls that an event or a body lists.
#[derive(Clone, Copy, Default)]
struct ListedCalls {
    first_index: Option<u32>,
    highest_index: u32,
    count: u32,
}

impl ListedCalls {
    /// Adds the next call of the list to those so far.
    fn with_call(self, call: IndexedCall) -> Self {
        // Some servers leave the index out, which is then the position.
        let index = call.index.unwrap_or(self.count);
        Self {
            first_index: self.first_index.or(Some(index)),
            highest_index: self.highest_index.max(index),
            count: self.count.saturating_add(1),
        }
    }
}

impl ObservedCalls {
    /// Counts the `tool_calls` of an event or a body. Those of an unknown form count as the first call.
    pub(super) fn count_calls(&mut self, json: &str) {
        let list = &mut Deserializer::from_str(json);
        let listed = fold_list(list, ListedCalls::default(), ListedCalls::with_call).unwrap_or_default();
        let first_of_event = listed.first_index.unwrap_or(0);
        self.highest_index = self.highest_index.max(listed.highest_index);
        // The first event with calls begins the first call of the response.
        let first_of_response = *self.first_index.get_or_insert(first_of_event);
        if first_of_event == first_of_response {
            self.events_of_first = self.events_of_first.saturating_add(1);
        }
    }

    /// Describes the calls as unjudged, for this reason. `None` if the response has none.
    pub(super) fn as_unjudged(self, reason: UnjudgedReason) -> Option<ToolCalls> {
        Some(ToolCalls {
            // Calls are numbered from 1.
            call: self.first_index?.saturating_add(1),
            calls: self.highest_index.saturating_add(1),
            absent: 0,
            outcome: ToolCallOutcome::Unjudged,
            reason: Some(reason),
            finish: None,
            events: self.events_of_first,
            part: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(events: &[&str]) -> Option<[u32; 3]> {
        let mut calls = ObservedCalls::default();
        for json in events {
            calls.count_calls(json);
        }
        let calls = calls.as_unjudged(UnjudgedReason::Missed)?;
        Some([calls.calls, calls.call, calls.events])
    }

    #[test]
    fn calls_and_events_of_the_observed_part_are_counted() {
        let part = |index| format!(r#"[{{"index":{index},"function":{{"arguments":"{{\"a"}}}}]"#);
        assert_eq!(counted(&[]), None);
        assert_eq!(counted(&[&part(1), &part(1), &part(2)]), Some([3, 2, 2]));
        assert_eq!(counted(&[r#"[{"id":"x"},{"id":"y"}]"#]), Some([2, 1, 1]));
        assert_eq!(counted(&[r#"{"index":-1}"#, "7", &part(u32::MAX)]), Some([u32::MAX, 1, 2]));
    }
}
