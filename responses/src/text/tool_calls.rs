//! Tool calls of a response, found in the text that the engine sent.
//!
//! The arguments of a call are the JSON object behind its name. The calls are searched from the end, so that a name or an object in earlier
//! text, such as reasoning, is not taken for a call. Other forms (XML, Python) are not compared.

mod absent;

use std::ops::Range;

use serde::Deserialize;
use trace::event::{ArgumentsPart, Finish, ToolCallOutcome, ToolCalls, UnjudgedReason};

use super::arguments::{self, Comparison, Cut, DifferingPart, StepBudget};

/// Maximum number of tool calls of a response.
const MAX_CALLS: usize = 256;
/// Maximum number of bytes of names and arguments of a response.
const MAX_BYTES: usize = 1 << 20;
/// Maximum number of bytes between a name and its arguments.
const MAX_BETWEEN: usize = 96;
/// Length of the longest word between them.
const MAX_WORD: usize = 10;
/// Steps to look behind a name.
const LOOKED_BEHIND: usize = 500;
/// Steps to parse a byte of another object.
const PARSED: usize = 4;

/// Tool calls of a response so far.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseCalls {
    found: Vec<ResponseCall>,
    /// Number of bytes kept.
    pub(super) bytes: usize,
    /// Whether they exceed a limit, or their form is unknown.
    unknown: bool,
}

#[derive(Clone, Debug)]
struct ResponseCall {
    index: u32,
    name: String,
    arguments: String,
    /// Length of the arguments up to the end of each event.
    ends: Vec<u32>,
}

/// An element of `tool_calls`. In a body that does not stream, elements may have no index.
#[derive(Deserialize)]
struct CallElement {
    #[serde(default)]
    index: Option<u32>,
    #[serde(default)]
    function: Option<CallFunction>,
}

#[derive(Deserialize)]
struct CallFunction {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Option<String>,
}

/// Text of the engine in which the calls are searched.
pub(super) struct SearchedText<'a> {
    pub(super) text: &'a str,
    pub(super) finish: Option<Finish>,
    /// End of each chunk in `text`, with the number of tokens up to it.
    pub(super) ends: &'a [(usize, u32)],
    /// Number of tokens before `text`.
    pub(super) before: u32,
    /// Number of bytes that the response has carried as content or reasoning instead of `text`.
    pub(super) carried: u64,
}

impl ResponseCalls {
    /// Appends the `tool_calls` of an event or a body.
    pub(super) fn add_event(&mut self, json: &str) {
        let Ok(elements) = serde_json::from_str::<Vec<CallElement>>(json) else {
            self.unknown = true;
            return;
        };
        for (position, element) in (0..).zip(elements) {
            let index = element.index.unwrap_or(position);
            let known_call = self.found.iter().position(|call| call.index == index);
            let (name, arguments) = match element.function {
                Some(function) => (function.name.unwrap_or_default(), function.arguments.unwrap_or_default()),
                None => (String::new(), String::new()),
            };
            self.bytes += name.len() + arguments.len() + size_of::<u32>();
            if self.bytes > MAX_BYTES || known_call.is_none() && self.found.len() == MAX_CALLS {
                // A part of the calls would be of no use.
                *self = Self { unknown: true, ..Self::default() };
            }
            if self.unknown {
                return;
            }
            let call = match known_call {
                Some(known_call) => &mut self.found[known_call],
                None => self.found.push_mut(ResponseCall {
                    index,
                    name: String::new(),
                    arguments: String::new(),
                    ends: Vec::new(),
                }),
            };
            // A name comes in one piece; some servers repeat it.
            if call.name.is_empty() {
                call.name.push_str(&name);
            }
            if !arguments.is_empty() {
                call.arguments.push_str(&arguments);
                call.ends.push(call.arguments.len() as u32);
            }
        }
    }

    /// Compares the calls with the text. `Ok(None)` without any.
    pub(super) fn compare_with_text(&self, sent: &SearchedText<'_>) -> Result<Option<ToolCalls>, UnjudgedReason> {
        if self.unknown {
            return Err(UnjudgedReason::Unreadable);
        }
        if sent.finish.is_none() {
            return Err(UnjudgedReason::Missed);
        }
        let mut budget = StepBudget::default();
        let objects = self.find_objects(sent.text, &mut budget);
        let found = self.compare_found(sent, &objects, &mut budget);
        let absent = self.find_absent(sent, &objects, &mut budget);
        let worst = [found, absent].into_iter().flatten().max_by_key(|calls| calls.outcome);
        Ok(worst.map(|worst| ToolCalls { absent: absent.map_or(0, |absent| absent.absent), ..worst }))
    }

    /// Compares the calls of the response with their objects in the text.
    fn compare_found(
        &self,
        sent: &SearchedText<'_>,
        objects: &[Option<Range<usize>>],
        budget: &mut StepBudget,
    ) -> Option<ToolCalls> {
        let last = self.found.len().checked_sub(1)?;
        let found = self.found.iter().zip(objects).enumerate().map(|(place, (call, object))| {
            // The end of the call, which is behind its arguments, may not have been generated.
            let is_cut = place == last && sent.finish == Some(Finish::Length);
            let comparison = call.compare_arguments(object.as_ref(), sent.text, is_cut, budget);
            let reason = match (comparison.outcome, budget.is_exceeded()) {
                (ToolCallOutcome::Unjudged, true) => Some(UnjudgedReason::Unreadable),
                (ToolCallOutcome::Unjudged, false) => Some(UnjudgedReason::Differs),
                _ => None,
            };
            (place, comparison, reason)
        });
        // The first of the worst.
        let worst = found.reduce(|worst, next| if next.1.outcome > worst.1.outcome { next } else { worst });
        let (place, Comparison { outcome, parts }, reason) = worst?;
        let call = &self.found[place];
        Some(ToolCalls {
            calls: self.found.len() as u32,
            absent: 0,
            call: place as u32 + 1,
            outcome,
            reason,
            finish: sent.finish,
            events: call.ends.len() as u32,
            part: objects[place].as_ref().and_then(|object| sent.describe_part(object, &parts, call)),
        })
    }

    /// The object of each call in the text; `None` if it is not certain, or has another form.
    fn find_objects(&self, text: &str, budget: &mut StepBudget) -> Vec<Option<Range<usize>>> {
        let mut found = vec![None; self.found.len()];
        let mut until = text.len();
        for (place, call) in self.found.iter().enumerate().rev() {
            // Backwards, because the last occurrence of a name is the one that counts.
            let Some((name, object)) = object_behind(&call.name, &text[..until], until == text.len(), budget) else {
                break;
            };
            until = name;
            found[place] = Some(object);
        }
        found
    }
}

impl ResponseCall {
    /// Number of the event with the byte before this place; 0 if there is none.
    fn event_before(&self, cut: Cut) -> u32 {
        let at = self.ends.partition_point(|end| (*end as usize) < cut.previous_end);
        if cut.previous_end == 0 { 0 } else { at as u32 + 1 }
    }

    /// Whether an event ends at this place, or it is before the first one.
    fn has_event_end(&self, cut: Cut) -> bool {
        let at = self.ends.partition_point(|end| (*end as usize) < cut.previous_end);
        cut.previous_end == 0 || self.ends.get(at).is_some_and(|end| *end as usize <= cut.next_start)
    }

    /// Number of the event with the byte behind this place; 0 if there is none.
    fn event_behind(&self, cut: Cut) -> u32 {
        let at = self.ends.partition_point(|end| *end as usize <= cut.next_start);
        if at == self.ends.len() { 0 } else { at as u32 + 1 }
    }

    /// Whether an event ends at each of these places.
    fn ends_at(&self, part: &DifferingPart) -> bool {
        part.cuts.iter().all(|cut| self.has_event_end(*cut))
    }

    /// Events at both ends of a part.
    fn events_around(&self, part: &DifferingPart) -> [u32; 2] {
        let [first, _, last] = part.cuts;
        if first == last {
            return [self.event_before(first), self.event_behind(first)];
        }
        [self.event_behind(first), self.event_before(last)]
    }

    /// Compares the arguments of the call with those of the object in the text. `is_cut`: the text may end within the object.
    fn compare_arguments(
        &self,
        object: Option<&Range<usize>>,
        text: &str,
        is_cut: bool,
        budget: &mut StepBudget,
    ) -> Comparison {
        let Some(object) = object.filter(|_| !budget.is_exceeded()) else {
            let is_json =
                budget.take_steps(self.arguments.len() * PARSED) && arguments::parse_json(&self.arguments).is_some();
            let outcome = if is_json { ToolCallOutcome::Rewritten } else { ToolCallOutcome::Unjudged };
            return Comparison::new(outcome);
        };
        let sent = &text[object.clone()];
        let mut comparison = arguments::compare_arguments(&self.arguments, sent, object_end(sent).is_some(), budget);
        if is_cut && comparison.outcome.is_damaged() {
            comparison = arguments::compare_arguments(&self.arguments, sent, false, budget);
        }
        // The arguments may be those of another call, which a parser left out.
        let is_of_another = comparison.outcome.is_damaged() && self.is_of_another(object, text, budget);
        if is_of_another || budget.is_exceeded() {
            comparison = Comparison::new(ToolCallOutcome::Unjudged);
        }
        comparison
    }

    /// Whether another object of the text has these arguments, or too many would have to be compared.
    fn is_of_another(&self, object: &Range<usize>, text: &str, budget: &mut StepBudget) -> bool {
        let Some(value) = arguments::parse_json(&self.arguments) else {
            return false;
        };
        for (start, _) in text.match_indices('{') {
            if start == object.start {
                continue;
            }
            let length = object_end(&text[start..]);
            let is_within_budget = budget.take_steps(length.map_or(text.len() - start, |length| length * PARSED));
            if !is_within_budget {
                return true;
            }
            if let Some(length) = length
                && arguments::parse_json(&text[start..start + length]).as_ref() == Some(&value)
            {
                return true;
            }
        }
        false
    }
}

impl SearchedText<'_> {
    /// Whether the part of the object may begin and end where chunks end.
    fn is_whole_chunks(&self, object: &Range<usize>, part: &DifferingPart) -> bool {
        self.has_chunk_end(object.start + part.previous_end, object.start + part.bytes.start)
            && self.has_chunk_end(object.start + part.bytes.end, object.start + part.next_start)
    }

    fn has_chunk_end(&self, from: usize, to: usize) -> bool {
        let first = self.ends.partition_point(|(end, _)| *end < from);
        from == 0 || self.ends.get(first).is_some_and(|(end, _)| *end <= to)
    }

    /// Describes a part of the object by its place. Prefers one that consists of whole chunks or events.
    fn describe_part(
        &self,
        object: &Range<usize>,
        parts: &[DifferingPart],
        call: &ResponseCall,
    ) -> Option<ArgumentsPart> {
        let part = parts.iter().min_by_key(|part| match (call.ends_at(part), self.is_whole_chunks(object, part)) {
            (true, true) => 0,
            (true, false) => 1,
            (false, true) => 2,
            (false, false) => 3,
        })?;
        let from = object.start + part.bytes.start;
        let to = object.start + part.bytes.end;
        Some(ArgumentsPart {
            at: self.count_chars(object.start..from) + 1,
            chars: self.count_chars(from..to),
            tokens: self.token_range(from..to),
            whole_chunks: self.is_whole_chunks(object, part),
            events: call.events_around(part),
            whole_events: call.ends_at(part),
        })
    }

    fn count_chars(&self, bytes: Range<usize>) -> u32 {
        self.text.get(bytes).map_or(0, |text| text.chars().count() as u32)
    }

    /// Positions of the first and the last token with these bytes.
    fn token_range(&self, bytes: Range<usize>) -> [u32; 2] {
        let first = self.chunk_of_byte(bytes.start);
        let behind = self.chunk_of_byte(bytes.end.saturating_sub(1)) + 1;
        [self.tokens_before_chunk(first) + 1, self.tokens_before_chunk(behind.min(self.ends.len()))]
    }

    /// Index of the chunk that contains the byte; the number of chunks if it is behind them.
    fn chunk_of_byte(&self, byte: usize) -> usize {
        self.ends.partition_point(|(end, _)| *end <= byte)
    }

    fn tokens_before_chunk(&self, index: usize) -> u32 {
        index.checked_sub(1).map_or(self.before, |last| self.ends[last].1)
    }
}

/// Place of the last occurrence of a call's name, and the object behind it. The name may occur again only within that object. The object
/// may be incomplete if the text ends with it (`may_end`).
fn object_behind(name: &str, text: &str, may_end: bool, budget: &mut StepBudget) -> Option<(usize, Range<usize>)> {
    if !is_name(name) {
        return None;
    }
    let mut last = None;
    let mut read = text.len();
    for (at, _) in text.rmatch_indices(name) {
        if !budget.take_steps(read - at + LOOKED_BEHIND) {
            return None;
        }
        read = at;
        let after = at + name.len();
        if text[..at].ends_with(in_name) || text[after..].starts_with(in_name) {
            // A part of another name.
            continue;
        }
        let Some(start) = arguments_behind(&text[after..]).map(|open| after + open) else {
            last = last.or(Some(at));
            continue;
        };
        let end = match scan_object(&text[start..]) {
            Ok(end) => start + end,
            Err(Endless::Open) if may_end => text.len(),
            Err(_) => return None,
        };
        return last.is_none_or(|last| last < end).then_some((at, start..end));
    }
    None
}

/// Whether a function can have this name. A parser that reads another form may take any text for one.
fn is_name(name: &str) -> bool {
    let letters = name.chars().any(char::is_alphabetic);
    letters && name.chars().all(|char| in_name(char) || matches!(char, '-' | '.' | ':' | '/'))
}

fn in_name(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// Offset of the object with a call's arguments in the text behind its name. `None` if anything precedes the object but punctuation, numbers,
/// markers (`<|marker|>`), and the keys of the arguments.
fn arguments_behind(text: &str) -> Option<usize> {
    let mut word = String::new();
    let mut rest = text.char_indices().take_while(|(offset, _)| *offset < MAX_BETWEEN);
    while let Some((offset, char)) = rest.next() {
        if char.is_alphabetic() {
            word.push(char);
            if word.len() > MAX_WORD {
                return None;
            }
            continue;
        }
        if !matches!(&*std::mem::take(&mut word), "" | "arguments" | "parameters" | "json") {
            return None;
        }
        match char {
            '{' => return Some(offset),
            // A marker, whose bars may be the full-width ones of DeepSeek.
            '<' => {
                rest.next().filter(|(_, bar)| matches!(bar, '|' | '\u{ff5c}'))?;
                rest.find(|(_, char)| *char == '>')?;
            }
            '"' | ',' | ':' | '.' | '-' | '`' | '(' | '[' => {}
            char if char.is_whitespace() || char.is_ascii_digit() => {}
            _ => return None,
        }
    }
    None
}

/// Length of the JSON object at the begin of `text`; `None` if it is incomplete or invalid.
fn object_end(text: &str) -> Option<usize> {
    scan_object(text).ok()
}

/// Why a JSON object has no end.
enum Endless {
    Open,
    Invalid,
}

/// Length of the JSON object at the begin of `text`.
fn scan_object(text: &str) -> Result<usize, Endless> {
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            // Outside of a string: the object is itself part of a string.
            b'\\' if !in_string => return Err(Endless::Invalid),
            b'\\' => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 1 => return Ok(at + 1),
            b'}' | b']' => depth = depth.saturating_sub(1),
            // Markup.
            b'<' => return Err(Endless::Invalid),
            _ => {}
        }
    }
    Err(Endless::Open)
}

#[cfg(test)]
mod tests;
