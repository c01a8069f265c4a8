//! Tool calls in the observed part of a response, for responses that cannot be compared with the engine's text.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use trace::event::{ToolCallOutcome, ToolCalls, UnjudgedReason};

/// Number of tool calls and events, counted without keeping any text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::egress) struct ObservedCalls {
    /// Index of the first call; `None` without any.
    first: Option<u32>,
    /// Highest index of a call.
    last: u32,
    /// Number of events with a part of the first call.
    events: u32,
}

/// Indices of the calls in one event: the first, and the highest.
struct Indices(Option<[u32; 2]>);

#[derive(Deserialize)]
struct Element {
    #[serde(default)]
    index: Option<u32>,
}

impl<'de> Deserialize<'de> for Indices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Indices;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of tool calls")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Indices, A::Error> {
                let (mut found, mut place): (Option<[u32; 2]>, u32) = (None, 0);
                while let Some(element) = items.next_element::<Element>()? {
                    let index = element.index.unwrap_or(place);
                    found = Some(found.map_or([index; 2], |[first, last]| [first, last.max(index)]));
                    place = place.saturating_add(1);
                }
                Ok(Indices(found))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

impl ObservedCalls {
    /// Counts the `tool_calls` of an event or a body. Those of an unknown form count as the first call.
    pub(in crate::egress) fn add(&mut self, json: &str) {
        let indices = serde_json::from_str::<Indices>(json).ok();
        let [first, last] = indices.and_then(|indices| indices.0).unwrap_or_default();
        self.last = self.last.max(last);
        if *self.first.get_or_insert(first) == first {
            self.events = self.events.saturating_add(1);
        }
    }

    /// Describes the calls as unjudged. `None` without any.
    pub(in crate::egress) fn unjudged(self, reason: UnjudgedReason) -> Option<ToolCalls> {
        Some(ToolCalls {
            call: self.first?.saturating_add(1),
            calls: self.last.saturating_add(1),
            absent: 0,
            outcome: ToolCallOutcome::Unjudged,
            reason: Some(reason),
            finish: None,
            events: self.events,
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
            calls.add(json);
        }
        let calls = calls.unjudged(UnjudgedReason::Missed)?;
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
