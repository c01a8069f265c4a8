//! Tool calls of a response, found in the text that the engine sent.
//!
//! The arguments of a call are the JSON object behind its name. The calls are searched from the end, so that a name or an object in earlier
//! text, such as reasoning, is not taken for a call. Other forms (XML, Python) are not compared.

mod absent;

use std::ops::Range;

use serde::{Deserialize, Deserializer};
use trace::event::{ArgumentsPart, Finish, ToolCallOutcome, ToolCalls, UnjudgedReason};

use super::arguments::{self, Comparison, DifferingPart, EventEnd, StepBudget};

/// Maximum number of tool calls of a response.
const MAX_CALLS: usize = 256;
/// Maximum number of bytes of names and arguments of a response.
const MAX_BYTES: usize = 1 << 20;
/// Maximum number of bytes between a name and its arguments.
const MAX_BETWEEN: usize = 96;
/// Length of the longest word between them.
const MAX_WORD: usize = 10;
/// Steps to look behind a name.
const STEPS_TO_LOOK_BEHIND: usize = 500;
/// Steps to parse a byte of another object.
const STEPS_TO_PARSE_BYTE: usize = 4;

/// Tool calls of a response so far.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseCalls {
    calls: Vec<ResponseCall>,
    /// Number of bytes kept.
    pub(super) bytes: usize,
    /// Whether they exceed a limit, or their form is unknown.
    are_unknown: bool,
}

#[derive(Clone, Debug)]
struct ResponseCall {
    index: u32,
    name: String,
    arguments: String,
    /// Length of the arguments up to the end of each event.
    event_ends: Vec<u32>,
}

/// An element of `tool_calls`. In a body that does not stream, elements may have no index.
#[derive(Deserialize)]
struct CallElement {
    #[serde(default)]
    index: Option<u32>,
    #[serde(default)]
    function: Option<CallFunction>,
}

/// A part of a call's function. Both fields may be null or missing.
#[derive(Default, Deserialize)]
struct CallFunction {
    #[serde(default, deserialize_with = "empty_if_null")]
    name: String,
    #[serde(default, deserialize_with = "empty_if_null")]
    arguments: String,
}

/// Deserializes a string, or null as an empty one.
fn empty_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.unwrap_or_default())
}

/// Text of the engine in which the calls are searched.
pub(super) struct SearchedText<'a> {
    pub(super) text: &'a str,
    pub(super) finish: Option<Finish>,
    /// End of each chunk in `text`.
    pub(super) chunk_ends: &'a [ChunkEnd],
    /// Number of tokens before `text`.
    pub(super) tokens_before: u32,
    /// Number of bytes that the response has carried as content or reasoning instead of `text`.
    pub(super) carried_bytes: u64,
}

/// End of a chunk of the engine's text.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkEnd {
    /// Number of bytes of the searched text up to it.
    pub(super) bytes: usize,
    /// Number of tokens of the request up to it.
    pub(super) tokens: u32,
}

impl ResponseCalls {
    /// Appends the pieces of calls in the JSON list `tool_calls` of an event or a body. Calls of an unknown form, or above a limit, make
    /// all calls of the response unknown.
    pub(super) fn add_event(&mut self, json: &str) {
        let Ok(elements) = serde_json::from_str::<Vec<CallElement>>(json) else {
            self.are_unknown = true;
            return;
        };
        for (position, element) in (0..).zip(elements) {
            // Some servers leave the index out, which is then the position in the list.
            let index = element.index.unwrap_or(position);
            let CallFunction { name, arguments } = element.function.unwrap_or_default();
            self.add_piece_of_call(index, &name, &arguments);
            // Because of this event, or of an earlier one.
            if self.are_unknown {
                return;
            }
        }
    }

    /// Adds a piece to the call with this index, which it may begin. Makes all calls unknown if they exceed a limit with it.
    fn add_piece_of_call(&mut self, index: u32, name: &str, arguments: &str) {
        let known_call = self.calls.iter().position(|call| call.index == index);
        // The event also adds one of the `event_ends` of the call, which takes a `u32`.
        self.bytes += name.len() + arguments.len() + size_of::<u32>();
        let exceeds_calls = known_call.is_none() && self.calls.len() == MAX_CALLS;
        if exceeds_calls || self.bytes > MAX_BYTES {
            // A part of the calls would be of no use.
            *self = Self { are_unknown: true, ..Self::default() };
        }
        if self.are_unknown {
            return;
        }
        let call = match known_call {
            Some(known_call) => &mut self.calls[known_call],
            None => self.calls.push_mut(ResponseCall::new(index)),
        };
        call.add_piece(name, arguments);
    }

    /// Compares the calls of the response with the text that the engine sent. Describes the call with the worst outcome, which may be one
    /// that only the text has. `Ok(None)` if the response neither has nor lacks a call. The error says why nothing was compared.
    pub(super) fn compare_with_text(&self, sent: &SearchedText<'_>) -> Result<Option<ToolCalls>, UnjudgedReason> {
        if self.are_unknown {
            return Err(UnjudgedReason::Unreadable);
        }
        // The end of the request was not observed, so a part of its text may be missing.
        if sent.finish.is_none() {
            return Err(UnjudgedReason::Missed);
        }
        let mut budget = StepBudget::default();
        let objects = self.locate_arguments_of_calls(sent.text, &mut budget);
        let present = self.describe_worst_call(sent, &objects, &mut budget);
        let absent = self.describe_first_absent_call(sent, &objects, &mut budget);
        let absent_count = absent.map_or(0, |calls| calls.absent);
        // `max_by_key` returns the last of equal outcomes, which is the one of absent calls.
        let worst = [present, absent].into_iter().flatten().max_by_key(|calls| calls.outcome);
        Ok(worst.map(|worst| ToolCalls { absent: absent_count, ..worst }))
    }

    /// Compares each call with its object in the engine's text, and returns the first one with the worst outcome. `None` if the response
    /// has no calls. `objects`: where the arguments of each call are in the text, if that is known.
    fn worst_call(
        &self,
        sent: &SearchedText<'_>,
        objects: &[Option<Range<usize>>],
        budget: &mut StepBudget,
    ) -> Option<ComparedCall> {
        let last = self.calls.len().checked_sub(1)?;
        let mut worst: Option<ComparedCall> = None;
        for (index, (call, object)) in self.calls.iter().zip(objects).enumerate() {
            // The end of the call, which is behind its arguments, may not have been generated.
            let is_cut = index == last && sent.finish == Some(Finish::Length);
            let comparison = call.compare_arguments(object.as_ref(), sent.text, is_cut, budget);
            let is_worse = worst.as_ref().is_none_or(|worst| comparison.outcome > worst.comparison.outcome);
            if is_worse {
                worst = Some(ComparedCall { index, comparison, exceeds_budget: budget.is_exceeded() });
            }
        }
        worst
    }

    /// Compares the calls of the response with their objects in the text. Describes the call with the worst outcome. `None` if the response
    /// has no calls.
    fn describe_worst_call(
        &self,
        sent: &SearchedText<'_>,
        objects: &[Option<Range<usize>>],
        budget: &mut StepBudget,
    ) -> Option<ToolCalls> {
        let worst = self.worst_call(sent, objects, budget)?;
        let call = &self.calls[worst.index];
        let object = objects[worst.index].as_ref();
        Some(ToolCalls {
            calls: self.calls.len() as u32,
            absent: 0,
            call: worst.index as u32 + 1,
            outcome: worst.comparison.outcome,
            reason: worst.why_unjudged(),
            finish: sent.finish,
            events: call.event_ends.len() as u32,
            part: object.and_then(|object| sent.describe_part(object, &worst.comparison.parts, call)),
        })
    }

    /// Where in the engine's text the arguments of each call of the response are: a JSON object behind the call's name. `None` for a call
    /// if that is not certain, or if its arguments have another form.
    fn locate_arguments_of_calls(&self, text: &str, budget: &mut StepBudget) -> Vec<Option<Range<usize>>> {
        let mut objects = vec![None; self.calls.len()];
        let mut search_end = text.len();
        // Backwards, because the last occurrence of a name is the one that counts.
        for (index, call) in self.calls.iter().enumerate().rev() {
            // Only the last object of the text may have no end, because the engine was stopped.
            let may_be_incomplete = search_end == text.len();
            let Some(located) = locate_call(&call.name, &text[..search_end], may_be_incomplete, budget) else {
                // Where the text of the calls before this one ends is unknown.
                break;
            };
            // The calls before this one are before its name.
            search_end = located.name_start;
            objects[index] = Some(located.object);
        }
        objects
    }
}

/// A call of the response, compared with its object in the text.
struct ComparedCall {
    index: usize,
    comparison: Comparison,
    exceeds_budget: bool,
}

impl ComparedCall {
    /// Why the call is unjudged; `None` if it is judged.
    fn why_unjudged(&self) -> Option<UnjudgedReason> {
        if self.comparison.outcome != ToolCallOutcome::Unjudged {
            return None;
        }
        Some(if self.exceeds_budget { UnjudgedReason::Unreadable } else { UnjudgedReason::Differs })
    }
}

impl ResponseCall {
    /// A call of which no event has come.
    fn new(index: u32) -> Self {
        Self { index, name: String::new(), arguments: String::new(), event_ends: Vec::new() }
    }

    /// Adds the piece of the call that an event has. A name comes in one piece; some servers repeat it.
    fn add_piece(&mut self, name: &str, arguments: &str) {
        if self.name.is_empty() {
            self.name.push_str(name);
        }
        if !arguments.is_empty() {
            self.arguments.push_str(arguments);
            self.event_ends.push(self.arguments.len() as u32);
        }
    }

    /// Number of the event with the byte before this place; 0 if there is none.
    fn event_number_before(&self, place: EventEnd) -> u32 {
        let index = self.event_ends.partition_point(|end| (*end as usize) < place.previous_end);
        if place.previous_end == 0 { 0 } else { index as u32 + 1 }
    }

    /// Whether an event ends at this place between two characters of the arguments. Also true for the place before the first character.
    fn has_event_end(&self, place: EventEnd) -> bool {
        if place.previous_end == 0 {
            return true;
        }
        // Characters that are not compared may lie between both bounds of the place.
        let first_end = self.event_ends.partition_point(|end| (*end as usize) < place.previous_end);
        self.event_ends.get(first_end).is_some_and(|end| *end as usize <= place.next_start)
    }

    /// Number of the event with the byte behind this place; 0 if there is none.
    fn event_number_behind(&self, place: EventEnd) -> u32 {
        let index = self.event_ends.partition_point(|end| *end as usize <= place.next_start);
        if index == self.event_ends.len() { 0 } else { index as u32 + 1 }
    }

    /// Whether an event ends at each of these places.
    fn has_each_event_end(&self, part: &DifferingPart) -> bool {
        part.event_ends.iter().all(|place| self.has_event_end(*place))
    }

    /// Numbers of the events at the begin and at the end of a part; 0 for an event that does not exist.
    fn events_at_both_ends(&self, part: &DifferingPart) -> [u32; 2] {
        let [first, _middle, last] = part.event_ends;
        // All three are one place if the written arguments lack the part. Then the events are those on both sides of it.
        if first == last {
            return [self.event_number_before(first), self.event_number_behind(first)];
        }
        [self.event_number_behind(first), self.event_number_before(last)]
    }

    /// Compares the arguments of the call with those that the engine sent: the `object` in its text, if it is known. `is_cut`: the text may
    /// end within the object.
    fn compare_arguments(
        &self,
        object: Option<&Range<usize>>,
        text: &str,
        is_cut: bool,
        budget: &mut StepBudget,
    ) -> Comparison {
        if budget.is_exceeded() {
            return Comparison::new(ToolCallOutcome::Unjudged);
        }
        let Some(object) = object else { return Comparison::new(self.outcome_without_object(budget)) };
        let sent = &text[object.clone()];
        let is_sent_complete = object_length(sent).is_some();
        let mut comparison = arguments::compare_arguments(&self.arguments, sent, is_sent_complete, budget);
        // The damage may be at the end that was not generated.
        if is_cut && comparison.outcome.is_damaged() {
            let is_sent_complete = false;
            comparison = arguments::compare_arguments(&self.arguments, sent, is_sent_complete, budget);
        }
        // The arguments may be those of another call, which a parser left out.
        let belongs_to_another_object =
            comparison.outcome.is_damaged() && self.belongs_to_another_object(object, text, budget);
        if belongs_to_another_object || budget.is_exceeded() {
            comparison = Comparison::new(ToolCallOutcome::Unjudged);
        }
        comparison
    }

    /// Outcome of a call with no object to compare with. Valid JSON may be that of a call in another form.
    fn outcome_without_object(&self, budget: &mut StepBudget) -> ToolCallOutcome {
        let is_json = budget.take_steps(self.arguments.len() * STEPS_TO_PARSE_BYTE)
            && arguments::parse_json(&self.arguments).is_some();
        if is_json { ToolCallOutcome::Rewritten } else { ToolCallOutcome::Unjudged }
    }

    /// Whether another object of the text than `object` has these arguments, or too many would have to be compared.
    fn belongs_to_another_object(&self, object: &Range<usize>, text: &str, budget: &mut StepBudget) -> bool {
        let Some(value) = arguments::parse_json(&self.arguments) else { return false };
        for (start, _) in text.match_indices('{') {
            if start == object.start {
                continue;
            }
            // The search for the end of an object without one has read the rest of the text.
            let length = object_length(&text[start..]);
            let steps = length.map_or(text.len() - start, |length| length * STEPS_TO_PARSE_BYTE);
            if !budget.take_steps(steps) {
                return true;
            }
            let Some(length) = length else { continue };
            if arguments::parse_json(&text[start..start + length]).as_ref() == Some(&value) {
                return true;
            }
        }
        false
    }
}

impl SearchedText<'_> {
    /// Whether the part of the object may begin and end where chunks end.
    fn may_be_whole_chunks(&self, object: &Range<usize>, part: &DifferingPart) -> bool {
        // Characters that are not compared may lie between the part and its neighbours, and a chunk may end among them.
        let begins_with_chunk =
            self.has_chunk_end_between(object.start + part.previous_end, object.start + part.bytes.start);
        let ends_with_chunk = self.has_chunk_end_between(object.start + part.bytes.end, object.start + part.next_start);
        begins_with_chunk && ends_with_chunk
    }

    /// Whether a chunk ends between these bytes, or the text begins there.
    fn has_chunk_end_between(&self, from: usize, to: usize) -> bool {
        if from == 0 {
            return true;
        }
        let first = self.chunk_ends.partition_point(|end| end.bytes < from);
        self.chunk_ends.get(first).is_some_and(|end| end.bytes <= to)
    }

    /// Describes the part of a call's arguments in which the response differs from the `object` in the text. In text that repeats itself,
    /// several `parts` explain the difference: prefers one of whole events of the response, then one of whole chunks of the text. `None`
    /// without any part.
    fn describe_part(
        &self,
        object: &Range<usize>,
        parts: &[DifferingPart],
        call: &ResponseCall,
    ) -> Option<ArgumentsPart> {
        let part = parts.iter().min_by_key(|part| {
            // False is less than true, and the first of equal parts is taken.
            [!call.has_each_event_end(part), !self.may_be_whole_chunks(object, part)]
        })?;
        let from = object.start + part.bytes.start;
        let to = object.start + part.bytes.end;
        Some(ArgumentsPart {
            at: self.count_chars(object.start..from) + 1,
            chars: self.count_chars(from..to),
            tokens: self.token_range(from..to),
            whole_chunks: self.may_be_whole_chunks(object, part),
            events: call.events_at_both_ends(part),
            whole_events: call.has_each_event_end(part),
        })
    }

    /// Number of characters in these bytes of the text.
    fn count_chars(&self, bytes: Range<usize>) -> u32 {
        self.text.get(bytes).map_or(0, |text| text.chars().count() as u32)
    }

    /// Positions of the first and the last token with these bytes, counted from 1 in the request's output.
    fn token_range(&self, bytes: Range<usize>) -> [u32; 2] {
        let first_chunk = self.chunk_of_byte(bytes.start);
        let last_chunk = self.chunk_of_byte(bytes.end.saturating_sub(1));
        // The last byte may be behind all chunks.
        let chunk_behind = (last_chunk + 1).min(self.chunk_ends.len());
        [self.tokens_before_chunk(first_chunk) + 1, self.tokens_before_chunk(chunk_behind)]
    }

    /// Index of the chunk that contains the byte; the number of chunks if it is behind them.
    fn chunk_of_byte(&self, byte: usize) -> usize {
        self.chunk_ends.partition_point(|end| end.bytes <= byte)
    }

    /// Number of the request's tokens before the chunk with this index.
    fn tokens_before_chunk(&self, index: usize) -> u32 {
        match index.checked_sub(1) {
            Some(previous) => self.chunk_ends[previous].tokens,
            None => self.tokens_before,
        }
    }
}

/// A call in the engine's text.
struct LocatedCall {
    /// Where its name begins.
    name_start: usize,
    /// Its arguments.
    object: Range<usize>,
}

/// Finds the last occurrence of a call's name with a JSON object, its arguments, behind it. `None` if there is none, if the name occurs
/// again behind that object, or above the budget. The object may be incomplete if the text ends with it (`may_be_incomplete`).
fn locate_call(name: &str, text: &str, may_be_incomplete: bool, budget: &mut StepBudget) -> Option<LocatedCall> {
    // Any other text could occur anywhere.
    if !is_name(name) {
        return None;
    }
    // Start of the last occurrence without an object behind it.
    let mut last_without_object = None;
    let mut searched_from = text.len();
    for (name_start, _) in text.rmatch_indices(name) {
        if !budget.take_steps(searched_from - name_start + STEPS_TO_LOOK_BEHIND) {
            return None;
        }
        searched_from = name_start;
        let name_end = name_start + name.len();
        if is_part_of_name(text, name_start..name_end) {
            continue;
        }
        let Some(offset) = arguments_behind(&text[name_end..]) else {
            last_without_object.get_or_insert(name_start);
            continue;
        };
        let object_start = name_end + offset;
        let object_end = end_of_object(text, object_start, may_be_incomplete)?;
        // The later occurrence may be the call itself, in a form without an object.
        if last_without_object.is_some_and(|start| start >= object_end) {
            return None;
        }
        return Some(LocatedCall { name_start, object: object_start..object_end });
    }
    None
}

/// Whether these bytes of the text are a part of a longer name.
fn is_part_of_name(text: &str, bytes: Range<usize>) -> bool {
    text[..bytes.start].ends_with(is_name_char) || text[bytes.end..].starts_with(is_name_char)
}

/// Where the object ends that begins at `start`: with the text, if it `may_be_incomplete` and has no end. `None` if its end is unknown.
fn end_of_object(text: &str, start: usize, may_be_incomplete: bool) -> Option<usize> {
    match scan_object(&text[start..]) {
        Ok(length) => Some(start + length),
        Err(Endless::Open) if may_be_incomplete => Some(text.len()),
        Err(_) => None,
    }
}

/// Whether a function can have this name. A parser that reads another form may take any text for one.
fn is_name(name: &str) -> bool {
    let has_letter = name.chars().any(char::is_alphabetic);
    has_letter && name.chars().all(|char| is_name_char(char) || matches!(char, '-' | '.' | ':' | '/'))
}

/// Whether a character before or behind a name belongs to it.
fn is_name_char(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// Goes behind a marker (`<|marker|>`), whose `<` was read before. Its bars may be full-width ones, as some models write. `None` if this is
/// no marker, or one without an end.
fn skip_marker(rest: &mut impl Iterator<Item = (usize, char)>) -> Option<()> {
    let (_, bar) = rest.next()?;
    if !matches!(bar, '|' | '\u{ff5c}') {
        return None;
    }
    rest.find(|(_, char)| *char == '>')?;
    Some(())
}

/// Offset of the object with a call's arguments in the text behind the call's name. `None` if anything precedes the object but punctuation,
/// numbers, markers (`<|marker|>`), and the keys of the arguments.
fn arguments_behind(text: &str) -> Option<usize> {
    // The letters up to the current character.
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
        // Models write one of these keys, or none.
        let is_key_or_empty = matches!(&*word, "" | "arguments" | "parameters" | "json");
        if !is_key_or_empty {
            return None;
        }
        word.clear();
        match char {
            '{' => return Some(offset),
            '<' => skip_marker(&mut rest)?,
            '"' | ',' | ':' | '.' | '-' | '`' | '(' | '[' => {}
            char if char.is_whitespace() || char.is_ascii_digit() => {}
            _ => return None,
        }
    }
    None
}

/// Length of the JSON object at the begin of `text`; `None` if it is incomplete or invalid.
fn object_length(text: &str) -> Option<usize> {
    scan_object(text).ok()
}

/// Why a JSON object has no end.
enum Endless {
    Open,
    Invalid,
}

/// Length of the JSON object at the begin of `text`, found by its brackets: its values are not checked. The error says why it has no end.
fn scan_object(text: &str) -> Result<usize, Endless> {
    // Number of open brackets.
    let mut depth = 0_usize;
    let mut in_string = false;
    // Whether a backslash comes before the byte, which then has no meaning of its own.
    let mut is_escaped = false;
    for (index, byte) in text.bytes().enumerate() {
        if is_escaped {
            is_escaped = false;
            continue;
        }
        if in_string {
            match byte {
                b'\\' => is_escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 1 => return Ok(index + 1),
            b'}' | b']' => depth = depth.saturating_sub(1),
            // An escape outside of a string means that the object is itself part of a string, and `<` that it is markup.
            b'\\' | b'<' => return Err(Endless::Invalid),
            _ => {}
        }
    }
    Err(Endless::Open)
}

#[cfg(test)]
mod tests;
