//! Arguments of one tool call in a response, compared with the JSON object that the engine sent.
//!
//! Parsers of engines write the object again, with other blanks and escapes. So the values are compared first; then the characters, as they
//! are and without blanks and escapes.

use std::ops::{Range, RangeInclusive};

use serde_json::Value;
use trace::event::ToolCallOutcome;

/// Longest differing part that is searched for exchanged halves, in characters.
const MAX_SWAPPED: usize = 2_048;
/// Maximum number of characters that two exchanged parts share at their ends.
const MAX_SHARED: usize = 32;
/// Maximum number of steps to compare the tool calls of a response: about 4 ms, on the thread that reads the probe's ring.
const MAX_STEPS: usize = 4_000_000;
/// Steps to parse a byte.
const STEPS_TO_PARSE_BYTE: usize = 3;
/// Steps to compare the characters of a byte.
const STEPS_TO_COMPARE_BYTE: usize = 20;
/// Steps to describe a place.
const STEPS_TO_DESCRIBE_PLACE: usize = 100;

/// Remaining work of a comparison, in steps of about a nanosecond.
#[derive(Debug)]
pub(super) struct StepBudget {
    /// `None` once a part exceeded the budget.
    left: Option<usize>,
}

impl Default for StepBudget {
    fn default() -> Self {
        Self { left: Some(MAX_STEPS) }
    }
}

impl StepBudget {
    /// Takes the steps of the next part. Returns false, then and in all later calls, if they exceed the rest of the budget.
    pub(super) fn take_steps(&mut self, steps: usize) -> bool {
        self.left = self.left.and_then(|left| left.checked_sub(steps));
        self.left.is_some()
    }

    /// Whether a part was left out, so that nothing is known about the comparison.
    pub(super) fn is_exceeded(&self) -> bool {
        self.left.is_none()
    }
}

/// Result of a comparison. The places are bytes of the sent object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Comparison {
    pub(super) outcome: ToolCallOutcome,
    /// Where the part that differs may begin, and its end for each. Several places are possible if characters repeat.
    pub(super) parts: Vec<DifferingPart>,
}

/// A possible place of the part that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DifferingPart {
    pub(super) bytes: Range<usize>,
    /// End of the character before it. Characters that are not compared may lie between.
    pub(super) previous_end: usize,
    /// Begin of the character behind it.
    pub(super) next_start: usize,
    /// Places in the written arguments, in order: an event must end at each if whole events explain the difference.
    pub(super) event_ends: [EventEnd; 3],
}

/// A place between two characters of the written arguments, where an event may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventEnd {
    /// End of the character before it.
    pub(super) previous_end: usize,
    /// Begin of the character behind it; `usize::MAX` at the end.
    pub(super) next_start: usize,
}

impl Comparison {
    /// Result without a part that differs.
    pub(super) fn new(outcome: ToolCallOutcome) -> Self {
        Self { outcome, parts: Vec::new() }
    }
}

/// Compares the arguments of a tool call as `written` to a client with the JSON object in the text that the engine `sent`, which may be cut
/// off (`!is_sent_complete`). Unjudged if the difference has no certain explanation, or if the work exceeds the budget.
pub(super) fn compare_arguments(
    written: &str,
    sent: &str,
    is_sent_complete: bool,
    budget: &mut StepBudget,
) -> Comparison {
    let bytes = written.len() + sent.len();
    let unjudged = Comparison::new(ToolCallOutcome::Unjudged);
    if !budget.take_steps(bytes * STEPS_TO_PARSE_BYTE) {
        return unjudged;
    }
    if !is_sent_complete {
        let is_within_budget = budget.take_steps(bytes * STEPS_TO_COMPARE_BYTE);
        return if is_within_budget { compare_unfinished(written, sent) } else { unjudged };
    }
    let sent_value = parse_json(sent);
    if are_same_arguments(written, sent, sent_value.as_ref(), budget) {
        return Comparison::new(ToolCallOutcome::Complete);
    }
    // A parser may have completed or shortened invalid JSON.
    if sent_value.is_none() || !budget.take_steps(bytes * STEPS_TO_COMPARE_BYTE) {
        return unjudged;
    }
    explain_difference(written, sent, budget).unwrap_or(unjudged)
}

/// Whether the `written` arguments are those that were `sent`: as values of JSON, or else as text. `sent_value` is the value of the sent
/// ones; `None` if they are invalid.
#[inline]
fn are_same_arguments(written: &str, sent: &str, sent_value: Option<&Value>, budget: &mut StepBudget) -> bool {
    let are_equal = match (parse_json(written), sent_value) {
        (Some(written_value), Some(sent_value)) => written_value == *sent_value,
        // Some parsers write nothing for an empty object.
        (None, Some(sent_value)) => {
            written.trim().is_empty() && sent_value.as_object().is_some_and(serde_json::Map::is_empty)
        }
        // Invalid JSON of the model is compared without blanks and escapes.
        (_, None) => {
            let bytes = written.len() + sent.len();
            budget.take_steps(bytes * STEPS_TO_COMPARE_BYTE) && plain_characters(written) == plain_characters(sent)
        }
    };
    are_equal || written.trim() == sent
}

/// Finds the damage that turns the arguments `sent` into those `written`. `None` if there is none that explains the whole difference, or
/// above the budget.
fn explain_difference(written: &str, sent: &str, budget: &mut StepBudget) -> Option<Comparison> {
    let written_plain = plain_characters(written);
    let sent_plain = plain_characters(sent);
    // Only blanks and escapes differ, which a parser may change.
    if written_plain == sent_plain {
        return None;
    }
    let has_replacements = written.contains(char::REPLACEMENT_CHARACTER) || written.contains("\\ufffd");
    // Before other damage, because each replacement stands for a character that was cut.
    if has_replacements && let Some(garbled) = find_garbled(&written_plain, &sent_plain) {
        return Some(garbled);
    }
    let damage = find_damage(&exact_characters(written), &exact_characters(sent), budget);
    // Without blanks and escapes if these differ, too.
    damage.or_else(|| find_damage(&written_plain, &sent_plain, budget))
}

/// Value of complete JSON. `None` if the text is invalid or incomplete.
pub(super) fn parse_json(json: &str) -> Option<Value> {
    serde_json::from_str(json).ok()
}

/// Compares arguments whose end was not sent. A parser may hold back the last characters, or complete the JSON. Unjudged if anything else
/// differs.
fn compare_unfinished(written: &str, sent: &str) -> Comparison {
    let written = plain_characters(written);
    let sent = plain_characters(sent);
    // Number of equal characters at the begin.
    let equal_start = count_equal_at_start(written.iter(), sent.iter());
    // A parser that completes the JSON adds only such characters.
    let is_completion = written[equal_start..].iter().all(|span| matches!(span.char, '"' | ']' | '}'));
    if !is_completion {
        return Comparison::new(ToolCallOutcome::Unjudged);
    }
    let mut comparison = Comparison::new(ToolCallOutcome::Unfinished);
    // The part of the sent text that was not written.
    if let (Some(first), Some(last)) = (sent.get(equal_start), sent.last()) {
        let event_ends = three_equal_event_ends_before(&written, equal_start);
        comparison.parts.push(differing_part(&sent, first.from..last.to, event_ends));
    }
    comparison
}

/// A character and its bytes. Characters are equal without regard to their place.
#[derive(Clone, Copy, Debug)]
struct CharSpan {
    char: char,
    from: usize,
    to: usize,
}

impl PartialEq for CharSpan {
    fn eq(&self, other: &Self) -> bool {
        self.char == other.char
    }
}

/// All characters of the text, as they are.
fn exact_characters(text: &str) -> Vec<CharSpan> {
    let chars = text.char_indices();
    chars.map(|(from, char)| CharSpan { char, from, to: from + char.len_utf8() }).collect()
}

/// The characters of JSON without blanks, and with each escape, such as `\n`, replaced by its character. Strings are treated like the rest
/// of the JSON, so a part of the text has the same characters alone as in the whole.
fn plain_characters(text: &str) -> Vec<CharSpan> {
    let mut spans = Vec::with_capacity(text.len());
    let mut from = 0;
    while let Some(written_char) = text[from..].chars().next() {
        let mut plain_char = written_char;
        let mut bytes = written_char.len_utf8();
        if written_char == '\\' {
            // `None` for an escape that is cut at the end of the text.
            let Some(escape) = parse_escape(&text[from..]) else { break };
            plain_char = escape.char;
            bytes = escape.bytes;
        }
        let to = from + bytes;
        if !plain_char.is_whitespace() {
            spans.push(CharSpan { char: plain_char, from, to });
        }
        from = to;
    }
    spans
}

/// Length of the escape of a UTF-16 code unit, such as `\u00e9`.
const UNIT_ESCAPE_BYTES: usize = 6;
/// First code units of both halves of a surrogate pair.
const HIGH_SURROGATES_START: u32 = 0xd800;
const LOW_SURROGATES_START: u32 = 0xdc00;

/// The UTF-16 code unit whose escape, such as `\u00e9`, is at the begin of `text`. `None` if there is none.
fn escaped_code_unit(text: &str) -> Option<u32> {
    // The digits follow `\u`.
    let digits = text.get(2..UNIT_ESCAPE_BYTES)?;
    u32::from_str_radix(digits, 16).ok()
}

/// The character of a surrogate pair. `None` if its code point is no character.
fn join_surrogates(high: u32, low: u32) -> Option<char> {
    const FIRST_CODE_POINT: u32 = 0x10000;
    // Each half has ten bits of the code point.
    let high_bits = (high - HIGH_SURROGATES_START) << 10;
    let low_bits = low.wrapping_sub(LOW_SURROGATES_START) & 0x3ff;
    char::from_u32(FIRST_CODE_POINT + high_bits + low_bits)
}

/// An escape of a JSON string.
struct Escape {
    /// The character that it stands for.
    char: char,
    /// Its own length.
    bytes: usize,
}

/// The escape of a JSON string at the begin of `text`, which is a backslash. `None` if the escape is incomplete.
fn parse_escape(text: &str) -> Option<Escape> {
    match text.as_bytes().get(1)? {
        b'u' => {
            let first = escaped_code_unit(text)?;
            let behind_first = &text[UNIT_ESCAPE_BYTES..];
            // Characters beyond the basic plane are two escapes, a surrogate pair: `\ud83d\ude00`.
            let begins_pair =
                (HIGH_SURROGATES_START..LOW_SURROGATES_START).contains(&first) && behind_first.starts_with("\\u");
            if begins_pair {
                let second = escaped_code_unit(behind_first)?;
                let char = join_surrogates(first, second)?;
                return Some(Escape { char, bytes: 2 * UNIT_ESCAPE_BYTES });
            }
            // Half of a pair is no character.
            let char = char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER);
            Some(Escape { char, bytes: UNIT_ESCAPE_BYTES })
        }
        // Blanks are left out, so any of them serves.
        b'n' | b'r' | b't' => Some(Escape { char: ' ', bytes: 2 }),
        _ => {
            let char = text[1..].chars().next()?;
            Some(Escape { char, bytes: 1 + char.len_utf8() })
        }
    }
}

/// Number of equal characters at the begin of both texts.
fn count_equal_at_start<'a>(
    written: impl Iterator<Item = &'a CharSpan>,
    sent: impl Iterator<Item = &'a CharSpan>,
) -> usize {
    written.zip(sent).take_while(|(written_char, sent_char)| written_char == sent_char).count()
}

/// Whether the characters may be a part of a number.
fn may_be_number(spans: &[CharSpan]) -> bool {
    let mut chars = spans.iter().map(|span| span.char);
    let are_all_of_number = chars.clone().all(|char| char.is_ascii_digit() || "+-.eE".contains(char));
    // Letters alone are a part of a word.
    are_all_of_number && chars.any(|char| !"eE".contains(char))
}

/// Where a part that only the longer of two texts has may begin. The texts have `equal_start` equal characters at the begin, and
/// `equal_end` at the end. In text that repeats itself, there are several places. `None` if the equal characters do not cover the shorter
/// text, so that more than one part differs.
fn possible_starts(equal_start: usize, equal_end: usize, shorter_length: usize) -> Option<RangeInclusive<usize>> {
    if equal_start + equal_end < shorter_length {
        return None;
    }
    // All characters of the shorter text from here on are also at the end of the longer one.
    let first_start = shorter_length - equal_end.min(shorter_length);
    Some(first_start..=equal_start)
}

/// Finds one missing, repeated, or exchanged part that explains the whole difference. `None` if there is none, or above the budget.
fn find_damage(written: &[CharSpan], sent: &[CharSpan], budget: &mut StepBudget) -> Option<Comparison> {
    // Numbers of equal characters at the begin and at the end.
    let equal_start = count_equal_at_start(written.iter(), sent.iter());
    let equal_end = count_equal_at_start(written.iter().rev(), sent.iter().rev());
    let shorter_length = written.len().min(sent.len());
    let longer_length = written.len().max(sent.len());
    let part_length = longer_length - shorter_length;
    if part_length == 0 {
        return find_swapped(written, sent, equal_start, equal_end, budget);
    }
    let starts = possible_starts(equal_start, equal_end, shorter_length)?;
    let steps_of_start = part_length + STEPS_TO_DESCRIBE_PLACE;
    if !budget.take_steps(starts.clone().count().saturating_mul(steps_of_start)) {
        return None;
    }
    let is_missing = written.len() < sent.len();
    let longer_text = if is_missing { sent } else { written };
    // A parser may write a number in another form, which is no damage.
    let may_be_reformatted_number = starts.clone().any(|start| may_be_number(&longer_text[start..start + part_length]));
    if may_be_reformatted_number {
        return None;
    }
    let mut parts = Vec::new();
    for start in starts {
        let part = if is_missing {
            missing_part(written, sent, start, part_length)
        } else {
            // Additional characters are damage only if they repeat those before them.
            repeated_part(written, sent, start, part_length)
        };
        parts.extend(part);
    }
    if parts.is_empty() {
        return None;
    }
    let outcome = if is_missing { ToolCallOutcome::Missing } else { ToolCallOutcome::Repeated };
    Some(Comparison { outcome, parts })
}

/// Describes the `length` characters of `sent` from `start` on, which `written` lacks at the same position. `None` if `sent` is shorter.
fn missing_part(written: &[CharSpan], sent: &[CharSpan], start: usize, length: usize) -> Option<DifferingPart> {
    let first = sent.get(start)?;
    let last = sent.get(start + length - 1)?;
    // If whole events are missing, an event ends before the missing part.
    let event_ends = three_equal_event_ends_before(written, start);
    Some(differing_part(sent, first.from..last.to, event_ends))
}

/// Describes the `length` characters of `written` from `start` on, if they repeat those before them. `None` if they do not.
fn repeated_part(written: &[CharSpan], sent: &[CharSpan], start: usize, length: usize) -> Option<DifferingPart> {
    let original = start.checked_sub(length)?;
    if written[original..start] != written[start..start + length] {
        return None;
    }
    let first = sent.get(original)?;
    let last = sent.get(original + length - 1)?;
    // If whole events were repeated, events end before the original, before the repetition and behind it.
    let event_ends = [original, start, start + length].map(|index| event_end_before(written, index));
    Some(differing_part(sent, first.from..last.to, event_ends))
}

/// Finds characters that were replaced by U+FFFD, because a cut between their bytes made them invalid. Each run of U+FFFD stands for one or
/// more characters of several bytes. `None` if anything else differs.
fn find_garbled(written: &[CharSpan], sent: &[CharSpan]) -> Option<Comparison> {
    let mut written_index = 0;
    let mut sent_index = 0;
    // From the first to the last replaced character of the sent text.
    let mut replaced: Option<Range<usize>> = None;
    while let Some(span) = written.get(written_index) {
        let is_equal = sent.get(sent_index) == Some(span);
        if is_equal {
            written_index += 1;
            sent_index += 1;
            continue;
        }
        if span.char != char::REPLACEMENT_CHARACTER {
            return None;
        }
        let run_start = sent_index;
        written_index += length_of_replacement_run(&written[written_index..]);
        sent_index = end_of_replaced(sent, run_start, written.get(written_index));
        // U+FFFD stands for no character of the sent text.
        if sent_index == run_start {
            return None;
        }
        let first = replaced.map_or(run_start, |range| range.start);
        replaced = Some(first..sent_index);
    }
    // The end of the sent text was not written.
    if sent_index != sent.len() {
        return None;
    }
    let parts = vec![garbled_part(written, sent, replaced?)];
    Some(Comparison { outcome: ToolCallOutcome::Garbled, parts })
}

/// Number of U+FFFD at the start of these characters.
fn length_of_replacement_run(written: &[CharSpan]) -> usize {
    written.iter().take_while(|span| span.char == char::REPLACEMENT_CHARACTER).count()
}

/// The part from the first to the last replaced character of the sent text.
fn garbled_part(written: &[CharSpan], sent: &[CharSpan], replaced: Range<usize>) -> DifferingPart {
    let bytes = sent[replaced.start].from..sent[replaced.end - 1].to;
    differing_part(sent, bytes, three_equal_event_ends_before(written, replaced.start))
}

/// End of the characters from `start` on for which a run of U+FFFD stands. They reach to the next character that both texts have, or to an
/// ASCII character, which is never replaced. `next_written`: the written character behind the run.
fn end_of_replaced(sent: &[CharSpan], start: usize, next_written: Option<&CharSpan>) -> usize {
    let mut end = start;
    while let Some(span) = sent.get(end) {
        // The run stands for at least one character.
        let is_behind_run = end > start && Some(span) == next_written;
        if is_behind_run || span.char.is_ascii() {
            break;
        }
        end += 1;
    }
    end
}

/// Finds two neighbouring parts that were exchanged. `equal_start` and `equal_end`: numbers of equal characters before and behind the
/// difference. Some of these also belong to the parts, if both parts begin or end with them.
fn find_swapped(
    written: &[CharSpan],
    sent: &[CharSpan],
    equal_start: usize,
    equal_end: usize,
    budget: &mut StepBudget,
) -> Option<Comparison> {
    let difference_end = sent.len().checked_sub(equal_end).filter(|end| *end > equal_start)?;
    // The search below tries each character as the boundary of the parts, so its work grows with the square of the length.
    if difference_end - equal_start > MAX_SWAPPED {
        return None;
    }
    // `lead` and `trail`: numbers of equal characters before and behind the difference that belong to the parts.
    for lead in 0..=equal_start.min(MAX_SHARED) {
        for trail in 0..=equal_end.min(MAX_SHARED) {
            let swapped = equal_start - lead..difference_end + trail;
            let boundary = find_rotation(&written[swapped.clone()], &sent[swapped.clone()], budget);
            if let Some(boundary) = boundary {
                let parts = vec![swapped_part(written, sent, swapped, boundary)];
                return Some(Comparison { outcome: ToolCallOutcome::Swapped, parts });
            }
        }
    }
    None
}

/// The two exchanged parts as one differing part. `boundary`: number of characters before the second of them in the written text.
fn swapped_part(written: &[CharSpan], sent: &[CharSpan], swapped: Range<usize>, boundary: usize) -> DifferingPart {
    // If whole events were exchanged, events end before, between and behind the parts.
    let indices_behind_ends = [swapped.start, swapped.start + boundary, swapped.end];
    let event_ends = indices_behind_ends.map(|index| event_end_before(written, index));
    let bytes = sent[swapped.start].from..sent[swapped.end - 1].to;
    differing_part(sent, bytes, event_ends)
}

/// Finds a place in `sent` whose two sides were exchanged in `written`. Returns the length of the side behind it, which comes first in
/// `written`. `None` if there is no such place, or above the budget.
fn find_rotation(written: &[CharSpan], sent: &[CharSpan], budget: &mut StepBudget) -> Option<usize> {
    if budget.is_exceeded() {
        return None;
    }
    for boundary in 1..sent.len() {
        let (earlier, later) = sent.split_at(boundary);
        let equal_length = count_equal_at_start(written.iter(), later.iter());
        if !budget.take_steps(equal_length + 1) {
            return None;
        }
        if equal_length == later.len() && written[equal_length..] == *earlier {
            return Some(later.len());
        }
    }
    None
}

/// The place before the character `index` of the written arguments, as the only one where an event must end if whole events explain the
/// difference. It stands for all three event ends of a part.
fn three_equal_event_ends_before(written: &[CharSpan], index: usize) -> [EventEnd; 3] {
    [event_end_before(written, index); 3]
}

/// The place before the character `index` of the written arguments, which is the end if there is no such character.
fn event_end_before(written: &[CharSpan], index: usize) -> EventEnd {
    EventEnd {
        previous_end: index.checked_sub(1).map_or(0, |previous| written[previous].to),
        next_start: written.get(index).map_or(usize::MAX, |next| next.from),
    }
}

/// The part of the arguments with these bytes, bounded by the last character before it and the first one behind it.
fn differing_part(spans: &[CharSpan], bytes: Range<usize>, event_ends: [EventEnd; 3]) -> DifferingPart {
    let spans_before = spans.partition_point(|span| span.to <= bytes.start);
    let next_span = spans.partition_point(|span| span.from < bytes.end);
    DifferingPart {
        previous_end: spans_before.checked_sub(1).map_or(0, |last_before| spans[last_before].to),
        next_start: spans.get(next_span).map_or(bytes.end, |span| span.from),
        bytes,
        event_ends,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: &str = r#"{"city": "New York", "note": "a \"b\" \u00e9", "n": 1.50}"#;

    fn outcome(written: &str, sent: &str, whole: bool) -> ToolCallOutcome {
        compare_arguments(written, sent, whole, &mut StepBudget::default()).outcome
    }

    fn part_of(written: &str, sent: &str) -> (ToolCallOutcome, Option<String>) {
        let found = compare_arguments(written, sent, true, &mut StepBudget::default());
        let part = found.parts.first().map(|part| sent[part.bytes.clone()].to_owned());
        (found.outcome, part)
    }

    #[test]
    fn the_same_value_in_another_form_is_complete() {
        for written in [
            SENT,
            "{\"city\":\"New York\",\"note\":\"a \\\"b\\\" \u{e9}\",\"n\":1.5}",
            r#" {"n": 1.5, "note": "a \"b\" \u00E9", "city": "New York"}"#,
        ] {
            assert_eq!(outcome(written, SENT, true), ToolCallOutcome::Complete, "{written}");
        }
        assert_eq!(outcome("", "{ }", true), ToolCallOutcome::Complete);
        // Invalid JSON that is written as it is.
        assert_eq!(outcome("{\"a\": NaN,}", "{\"a\":NaN, }", true), ToolCallOutcome::Complete);
    }

    #[test]
    fn a_missing_part_is_found_wherever_it_is() {
        for part in ["{\"city\"", "New ", "York\", \"note\": \"a ", "\": 1.50}", "}"] {
            let written = SENT.replacen(part, "", 1);
            let (outcome, _) = part_of(&written, SENT);
            assert_eq!(outcome, ToolCallOutcome::Missing, "{written}");
        }
        assert_eq!(part_of("", r#"{"a":"b"}"#), (ToolCallOutcome::Missing, Some(r#"{"a":"b"}"#.to_owned())));
    }

    #[test]
    fn a_repeated_and_a_swapped_part_are_found() {
        let written = SENT.replace("York", "YorkX");
        assert_eq!(outcome(&written, SENT, true), ToolCallOutcome::Unjudged);
        let written = SENT.replace("York", "YorYork");
        assert_eq!(part_of(&written, SENT), (ToolCallOutcome::Repeated, Some("Yor".to_owned())));
        let written = SENT.replace("New York", "YorkNew ");
        assert_eq!(part_of(&written, SENT), (ToolCallOutcome::Swapped, Some("New York".to_owned())));
    }

    #[test]
    fn numbers_in_another_form_and_completed_json_prove_nothing() {
        assert_eq!(
            outcome(r#"{"n":0.30000000000000004}"#, r#"{"n":0.300000000000000044408920985006261616945}"#, true),
            ToolCallOutcome::Complete
        );
        assert_eq!(outcome(r#"{"n":1}"#, r#"{"n":12}"#, true), ToolCallOutcome::Unjudged);
        assert_eq!(outcome(&SENT.replace("w Y", "wY"), SENT, true), ToolCallOutcome::Unjudged);
        assert_eq!(outcome(r#"{"n":1}"#, r#"{"n":1,}"#, true), ToolCallOutcome::Unjudged);
        assert_eq!(outcome(r#"{"city":"Paris"}"#, r#"{"town":"Rome"}"#, true), ToolCallOutcome::Unjudged);
    }

    #[test]
    fn arguments_that_the_engine_did_not_finish_are_no_loss() {
        let sent = r#"{"city": "New Yo"#;
        for written in [sent, "", r#"{"city": "#, r#"{"city":"New Yo"}"#] {
            assert_eq!(outcome(written, sent, false), ToolCallOutcome::Unfinished, "{written}");
        }
        assert_eq!(outcome(r#"{"city": "Yo"#, sent, false), ToolCallOutcome::Unjudged);
    }
}
