//! Tool calls in the engine's text that are in no field of the response.
//!
//! Only calls whose name and arguments are members of a JSON object are recognised. Nothing is at fault for certain: a parser leaves out calls
//! of functions that the request does not offer, and reasoning that the client did not ask for may contain calls.

use std::ops::Range;

use trace::event::{ArgumentsPart, Finish, ToolCallOutcome, ToolCalls};

use super::arguments::parse_json;
use super::{LOOKED_BEHIND, PARSED, ResponseCalls, SearchedText, StepBudget, arguments_behind, is_name, object_end};

/// Key of a call's name.
const KEY: &str = "\"name\"";

impl ResponseCalls {
    /// Describes the first of the calls that the response lacks. `None` if it lacks none, or if another field may contain them.
    pub(super) fn find_absent(
        &self,
        sent: &SearchedText<'_>,
        objects: &[Option<Range<usize>>],
        budget: &mut StepBudget,
    ) -> Option<ToolCalls> {
        // The engine may not have generated the end of a call, which a parser waits for.
        if sent.finish != Some(Finish::Stop) {
            return None;
        }
        let all_objects = objects_in(sent.text, budget)?;
        let equal_objects = self.find_equal_objects(sent.text, &all_objects, budget);
        let delivered: Vec<_> = equal_objects.or_else(|| objects.iter().cloned().collect())?;
        let mut absent = all_objects.clone();
        absent.retain(|object| delivered.iter().all(|found| found.start != object.start));
        let absent_bytes: usize = absent.iter().map(Range::len).sum();
        // The response may have carried the calls as content or reasoning if these have as many bytes.
        if absent.len() + self.found.len() != all_objects.len() || absent_bytes as u64 <= sent.carried {
            return None;
        }
        let object = absent.first()?;
        let position = all_objects.iter().position(|other| other.start == object.start)?;
        Some(ToolCalls {
            calls: self.found.len() as u32,
            absent: absent.len() as u32,
            call: position as u32 + 1,
            outcome: ToolCallOutcome::Absent,
            reason: None,
            finish: sent.finish,
            events: 0,
            part: Some(ArgumentsPart {
                at: 1,
                chars: sent.count_chars(object.clone()),
                tokens: sent.token_range(object.clone()),
                whole_chunks: false,
                events: [0, 0],
                whole_events: false,
            }),
        })
    }

    /// The objects with the values of the response's calls, in order. `None` if a call has another value.
    fn find_equal_objects(
        &self,
        text: &str,
        in_text: &[Range<usize>],
        budget: &mut StepBudget,
    ) -> Option<Vec<Range<usize>>> {
        let mut rest = in_text.iter();
        let equal_objects = self.found.iter().map(|call| {
            let value_of_call = parse_json(&call.arguments)?;
            let found = rest.find(|object| {
                budget.take_steps(object.len() * PARSED)
                    && parse_json(&text[(*object).clone()]).as_ref() == Some(&value_of_call)
            });
            found.cloned()
        });
        equal_objects.collect()
    }
}

/// Arguments of the calls in a text. `None` if it is too long.
fn objects_in(text: &str, budget: &mut StepBudget) -> Option<Vec<Range<usize>>> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(key) = text[from..].find(KEY) {
        let behind_name_key = from + key + KEY.len();
        let mut next = behind_name_key;
        let mut object = None;
        if let Some(offset) = behind_key(&text[behind_name_key..]) {
            let start = behind_name_key + offset;
            if let Some(length) = object_end(&text[start..]) {
                object = Some(start..start + length);
                next = start + length;
            }
        }
        if !budget.take_steps(next - from + LOOKED_BEHIND) {
            return None;
        }
        found.extend(object);
        from = next;
    }
    Some(found)
}

/// Offset of the arguments behind the key of a name.
fn behind_key(text: &str) -> Option<usize> {
    let value = text.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    let (name, rest) = value.split_once('"')?;
    if !is_name(name) {
        return None;
    }
    let rest_start = text.len() - rest.len();
    Some(rest_start + arguments_behind(rest)?)
}
