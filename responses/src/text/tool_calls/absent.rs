//! Tool calls in the engine's text that are in no field of the response.
//!
//! Only calls whose name and arguments are members of a JSON object are recognised. Nothing is at fault for certain: a parser leaves out
//! calls of functions that the request does not offer, and reasoning that the client did not ask for may contain calls.

use std::ops::Range;

use serde_json::Value;
use trace::event::{ArgumentsPart, Finish, ToolCallOutcome, ToolCalls};

use super::arguments::parse_json;
use super::{
    ResponseCalls, STEPS_TO_LOOK_BEHIND, STEPS_TO_PARSE_BYTE, SearchedText, StepBudget, arguments_behind, is_name,
    object_length,
};

/// Key of a call's name.
const KEY: &str = "\"name\"";

impl ResponseCalls {
    /// Describes the first of the calls in the engine's text that the response lacks. `None` if it lacks none, or if another field may
    /// contain them. `objects`: arguments of the response's calls in the text, as found by the names of the calls.
    pub(super) fn describe_first_absent_call(
        &self,
        sent: &SearchedText<'_>,
        objects: &[Option<Range<usize>>],
        budget: &mut StepBudget,
    ) -> Option<ToolCalls> {
        // The engine may not have generated the end of a call, which a parser waits for.
        if sent.finish != Some(Finish::Stop) {
            return None;
        }
        let all_objects = find_call_objects(sent.text, budget)?;
        let delivered = match self.find_equal_objects(sent.text, &all_objects, budget) {
            Some(equal_objects) => equal_objects,
            // Without equal values, the objects that were found by the names of the calls.
            None => all_if_known(objects)?,
        };
        let absent = objects_except(&all_objects, &delivered);
        // Each call of the response must have an object of its own, or the others are not certain to be absent.
        let accounts_for_all = absent.len() + self.calls.len() == all_objects.len();
        let absent_bytes: usize = absent.iter().map(Range::len).sum();
        // The response may have carried the calls as content or reasoning if these have as many bytes.
        let may_be_elsewhere = absent_bytes as u64 <= sent.carried_bytes;
        if !accounts_for_all || may_be_elsewhere {
            return None;
        }
        let object = absent.first()?;
        let position = all_objects.iter().position(|other| other.start == object.start)?;
        Some(ToolCalls {
            calls: self.calls.len() as u32,
            absent: absent.len() as u32,
            call: position as u32 + 1,
            outcome: ToolCallOutcome::Absent,
            reason: None,
            finish: sent.finish,
            // No event has the call.
            events: 0,
            part: Some(describe_all_arguments(sent, object)),
        })
    }

    /// For each call of the response, the object of the text that has the same JSON value. `None` if a call has a value that no object has,
    /// or above the budget.
    fn find_equal_objects(
        &self,
        text: &str,
        all_objects: &[Range<usize>],
        budget: &mut StepBudget,
    ) -> Option<Vec<Range<usize>>> {
        let mut equal_objects = Vec::new();
        // Both are in the same order, so the search for the next call goes on behind the object of the last one.
        let mut rest = all_objects.iter();
        for call in &self.calls {
            let value = parse_json(&call.arguments)?;
            let object = next_object_with_value(&value, &mut rest, text, budget)?;
            equal_objects.push(object.clone());
        }
        Some(equal_objects)
    }
}

/// Removes objects from `rest` up to the first one with this JSON value, and returns that one. `None` if there is none, or above the
/// budget.
fn next_object_with_value<'o>(
    value: &Value,
    rest: &mut impl Iterator<Item = &'o Range<usize>>,
    text: &str,
    budget: &mut StepBudget,
) -> Option<&'o Range<usize>> {
    loop {
        let object = rest.next()?;
        if !budget.take_steps(object.len() * STEPS_TO_PARSE_BYTE) {
            return None;
        }
        if parse_json(&text[object.clone()]).as_ref() == Some(value) {
            return Some(object);
        }
    }
}

/// The objects of all calls. `None` if that of a call is unknown.
fn all_if_known(objects: &[Option<Range<usize>>]) -> Option<Vec<Range<usize>>> {
    objects.iter().cloned().collect()
}

/// Those of `objects` that are not among `others`. Two ranges are the same object if they start at the same byte.
fn objects_except(objects: &[Range<usize>], others: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut left = objects.to_vec();
    left.retain(|object| others.iter().all(|other| other.start != object.start));
    left
}

/// Describes all arguments of an absent call, which has no events.
fn describe_all_arguments(sent: &SearchedText<'_>, object: &Range<usize>) -> ArgumentsPart {
    ArgumentsPart {
        at: 1,
        chars: sent.count_chars(object.clone()),
        tokens: sent.token_range(object.clone()),
        whole_chunks: false,
        events: [0, 0],
        whole_events: false,
    }
}

/// Where the arguments of the calls in a text are, in order: JSON objects behind the key `"name"` and a name. `None` above the budget.
fn find_call_objects(text: &str, budget: &mut StepBudget) -> Option<Vec<Range<usize>>> {
    let mut objects = Vec::new();
    let mut search_start = 0;
    while let Some(key) = text[search_start..].find(KEY) {
        let key_end = search_start + key + KEY.len();
        let mut next_start = key_end;
        if let Some(object) = object_behind_key(text, key_end) {
            // A key within the arguments names no call.
            next_start = object.end;
            objects.push(object);
        }
        if !budget.take_steps(next_start - search_start + STEPS_TO_LOOK_BEHIND) {
            return None;
        }
        search_start = next_start;
    }
    Some(objects)
}

/// The arguments of a call, where the key of the call's name ends at `key_end`. `None` if the text does not go on like a call, or ends
/// within the arguments.
fn object_behind_key(text: &str, key_end: usize) -> Option<Range<usize>> {
    let start = key_end + arguments_behind_key(&text[key_end..])?;
    let length = object_length(&text[start..])?;
    Some(start..start + length)
}

/// Offset of a call's arguments in the text that follows the key of the call's name. `None` if it does not continue like a call.
fn arguments_behind_key(text: &str) -> Option<usize> {
    let behind_colon = text.trim_start().strip_prefix(':')?;
    let quoted_name = behind_colon.trim_start().strip_prefix('"')?;
    let (name, rest) = quoted_name.split_once('"')?;
    if !is_name(name) {
        return None;
    }
    let rest_start = text.len() - rest.len();
    let offset = arguments_behind(rest)?;
    Some(rest_start + offset)
}
