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
        let in_text = (sent.finish == Some(Finish::Stop)).then(|| objects_in(sent.text, budget))??;
        let equal = self.find_equal_objects(sent.text, &in_text, budget);
        let of_response: Vec<_> = equal.or_else(|| objects.iter().cloned().collect())?;
        let mut absent = in_text
            .iter()
            .enumerate()
            .filter(|(_, object)| !of_response.iter().any(|found| found.start == object.start));
        let count = absent.clone().count();
        let bytes: usize = absent.clone().map(|(_, object)| object.len()).sum();
        if count + self.found.len() != in_text.len() || bytes as u64 <= sent.carried {
            return None;
        }
        let (place, object) = absent.next()?;
        Some(ToolCalls {
            calls: self.found.len() as u32,
            absent: count as u32,
            call: place as u32 + 1,
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
    while let Some(at) = text[from..].find(KEY) {
        let name = from + at + KEY.len();
        let object = behind_key(&text[name..]).map(|open| name + open);
        let end = object.and_then(|open| object_end(&text[open..]).map(|len| open + len));
        let next = end.unwrap_or(name);
        if !budget.take_steps(next - from + LOOKED_BEHIND) {
            return None;
        }
        found.extend(object.zip(end).map(|(begin, end)| begin..end));
        from = next;
    }
    Some(found)
}

/// Offset of the arguments behind the key of a name.
fn behind_key(text: &str) -> Option<usize> {
    let value = text.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    let (name, rest) = value.split_once('"')?;
    let at = text.len() - rest.len();
    is_name(name).then(|| arguments_behind(rest).map(|open| at + open))?
}
