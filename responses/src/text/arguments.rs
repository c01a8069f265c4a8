//! Arguments of one tool call in a response, compared with the JSON object that the engine sent.
//!
//! Parsers of engines write the object again, with other blanks and escapes. So the values are compared first; then the characters, as they
//! are and without blanks and escapes.

use std::ops::Range;

use serde_json::Value;
use trace::event::ToolCallOutcome;

/// Longest differing part that is searched for exchanged halves, in characters.
const MAX_SWAPPED: usize = 2_048;
/// Maximum number of characters that two exchanged parts share at their ends.
const MAX_SHARED: usize = 32;
/// Maximum number of steps to compare the tool calls of a response: about 4 ms, on the thread that reads the probe's ring.
const MAX_STEPS: usize = 4_000_000;
/// Steps to parse a byte.
const PARSED: usize = 3;
/// Steps to compare the characters of a byte.
const COMPARED: usize = 20;
/// Steps to describe a place.
const DESCRIBED: usize = 100;

/// Remaining work of a comparison, in steps of about a nanosecond.
#[derive(Debug)]
pub(super) struct StepBudget(Option<usize>);

impl Default for StepBudget {
    fn default() -> Self {
        Self(Some(MAX_STEPS))
    }
}

impl StepBudget {
    /// Takes the steps of the next part. Returns false, then and in all later calls, if they exceed the rest of the budget.
    pub(super) fn take_steps(&mut self, steps: usize) -> bool {
        self.0 = self.0.and_then(|left| left.checked_sub(steps));
        self.0.is_some()
    }

    /// Whether a part was left out, so that nothing is known about the comparison.
    pub(super) fn is_exceeded(&self) -> bool {
        self.0.is_none()
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
    pub(super) after: usize,
    /// Begin of the character behind it.
    pub(super) before: usize,
    /// Where the written arguments are cut, in order: an event must end at each if whole events explain the difference.
    pub(super) cuts: [Cut; 3],
}

/// A place between two characters of the written arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// End of the character before it.
    pub(super) after: usize,
    /// Begin of the character behind it; `usize::MAX` at the end.
    pub(super) before: usize,
}

impl Comparison {
    pub(super) fn new(outcome: ToolCallOutcome) -> Self {
        Self { outcome, parts: Vec::new() }
    }
}

/// Compares the arguments in a response with the sent object. `whole`: the sent object is complete.
pub(super) fn compare_arguments(written: &str, sent: &str, whole: bool, budget: &mut StepBudget) -> Comparison {
    let bytes = written.len() + sent.len();
    let unjudged = Comparison::new(ToolCallOutcome::Unjudged);
    if !budget.take_steps(bytes * PARSED) {
        return unjudged;
    }
    if !whole {
        return if budget.take_steps(bytes * COMPARED) { compare_unfinished(written, sent) } else { unjudged };
    }
    let value = parse_json(written);
    let expected = parse_json(sent);
    let equal = match (&value, &expected) {
        (Some(value), Some(expected)) => value == expected,
        // Some parsers write nothing for an empty object.
        (None, Some(expected)) => {
            written.trim().is_empty() && expected.as_object().is_some_and(serde_json::Map::is_empty)
        }
        // Invalid JSON of the model.
        _ => budget.take_steps(bytes * COMPARED) && plain_characters(written) == plain_characters(sent),
    };
    if equal || written.trim() == sent {
        return Comparison::new(ToolCallOutcome::Complete);
    }
    // A parser may have completed or shortened invalid JSON.
    if expected.is_none() || !budget.take_steps(bytes * COMPARED) {
        return unjudged;
    }
    let without_blanks = plain_characters(written);
    let expected = plain_characters(sent);
    // A parser may remove blanks.
    if without_blanks == expected {
        return unjudged;
    }
    // Before other damage, because each replacement stands for a character that was cut.
    if (written.contains(char::REPLACEMENT_CHARACTER) || written.contains("\\ufffd"))
        && let Some(garbled) = find_garbled(&without_blanks, &expected)
    {
        return garbled;
    }
    let damage = find_damage(&exact_characters(written), &exact_characters(sent), budget);
    let damage = damage.or_else(|| find_damage(&without_blanks, &expected, budget));
    damage.unwrap_or(unjudged)
}

/// Value of complete JSON.
pub(super) fn parse_json(json: &str) -> Option<Value> {
    serde_json::from_str(json).ok()
}

/// Compares arguments whose end was not sent. A parser may hold back the last characters, or complete the JSON.
fn compare_unfinished(written: &str, sent: &str) -> Comparison {
    let written = plain_characters(written);
    let sent = plain_characters(sent);
    let common = common_length(written.iter(), sent.iter());
    // A parser that completes the JSON adds only such characters.
    let rest = written[common..].iter();
    if !rest.into_iter().all(|unit| matches!(unit.char, '"' | ']' | '}')) {
        return Comparison::new(ToolCallOutcome::Unjudged);
    }
    let cuts = [cut_before(&written, common); 3];
    let place = sent.get(common).zip(sent.last());
    Comparison {
        outcome: ToolCallOutcome::Unfinished,
        parts: place.map(|(first, last)| differing_part(&sent, first.from..last.to, cuts)).into_iter().collect(),
    }
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

fn exact_characters(text: &str) -> Vec<CharSpan> {
    let chars = text.char_indices();
    chars.map(|(from, char)| CharSpan { char, from, to: from + char.len_utf8() }).collect()
}

/// The characters without blanks, escapes replaced. Strings are not told apart from the rest, so a part of a text has the same characters.
fn plain_characters(text: &str) -> Vec<CharSpan> {
    let mut units = Vec::with_capacity(text.len());
    let mut rest = text.char_indices().peekable();
    while let Some((from, char)) = rest.next() {
        let mut to = from + char.len_utf8();
        let char = match char {
            '\\' => {
                // An escape that is cut at the end of the text.
                let Some((decoded, len)) = unescape(&text[from..]) else {
                    break;
                };
                to = from + len;
                while rest.next_if(|(at, _)| *at < to).is_some() {}
                decoded
            }
            char => char,
        };
        if !char.is_whitespace() {
            units.push(CharSpan { char, from, to });
        }
    }
    units
}

/// The four hexadecimal digits at `at`.
fn code_unit_at(text: &str, at: usize) -> Option<u32> {
    u32::from_str_radix(text.get(at..at + 4)?, 16).ok()
}

/// The character of the escape at the begin of `text`, and its length. `None` if it is incomplete.
fn unescape(text: &str) -> Option<(char, usize)> {
    match text.as_bytes().get(1)? {
        b'u' => {
            let first = code_unit_at(text, 2)?;
            // Characters beyond the basic plane are two escapes, a surrogate pair.
            if (0xd800..0xdc00).contains(&first) && text.get(6..8) == Some("\\u") {
                let second = code_unit_at(text, 8)?;
                let joined = 0x10000 + ((first - 0xd800) << 10) + (second.wrapping_sub(0xdc00) & 0x3ff);
                return Some((char::from_u32(joined)?, 12));
            }
            Some((char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER), 6))
        }
        // Blanks are left out, so any of them serves.
        b'n' | b'r' | b't' => Some((' ', 2)),
        _ => {
            let char = text[1..].chars().next()?;
            Some((char, 1 + char.len_utf8()))
        }
    }
}

/// Number of equal elements at the begin.
fn common_length<'a>(a: impl Iterator<Item = &'a CharSpan>, b: impl Iterator<Item = &'a CharSpan>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).count()
}

fn may_be_number(units: &[CharSpan]) -> bool {
    let mut chars = units.iter().map(|unit| unit.char);
    chars.clone().all(|char| char.is_ascii_digit() || "+-.eE".contains(char)) && chars.any(|char| !"eE".contains(char))
}

/// Finds one missing, repeated, or exchanged part that explains the whole difference.
fn find_damage(written: &[CharSpan], sent: &[CharSpan], budget: &mut StepBudget) -> Option<Comparison> {
    let begin = common_length(written.iter(), sent.iter());
    let end = common_length(written.iter().rev(), sent.iter().rev());
    let shorter = written.len().min(sent.len());
    let longer = written.len().max(sent.len());
    let len = longer - shorter;
    if len == 0 {
        return find_swapped(written, sent, begin, end, budget);
    }
    // The equal ends do not cover the shorter text, so more than one part differs.
    if begin + end < shorter {
        return None;
    }
    let places = shorter - end.min(shorter)..=begin;
    // In text that repeats itself, the part may be anywhere.
    if !budget.take_steps(places.clone().count().saturating_mul(len + DESCRIBED)) {
        return None;
    }
    let missing = written.len() < sent.len();
    let all = if missing { sent } else { written };
    // Numbers may be written in another form.
    if places.clone().any(|at| may_be_number(&all[at..at + len])) {
        return None;
    }
    let outcome = if missing { ToolCallOutcome::Missing } else { ToolCallOutcome::Repeated };
    let parts: Vec<DifferingPart> = places
        .filter_map(|at| {
            let place = if missing {
                at
            } else {
                // The part before the inserted one is equal to it.
                at.checked_sub(len).filter(|before| all[*before..at] == all[at..at + len])?
            };
            let bytes = sent.get(place)?.from..sent.get(place + len - 1)?.to;
            let cuts = if missing { [at; 3] } else { [place, at, at + len] };
            Some(differing_part(sent, bytes, cuts.map(|at| cut_before(written, at))))
        })
        .collect();
    (!parts.is_empty()).then_some(Comparison { outcome, parts })
}

/// Finds characters that were replaced by U+FFFD. Each run of it stands for characters that have several bytes.
fn find_garbled(written: &[CharSpan], sent: &[CharSpan]) -> Option<Comparison> {
    const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;
    let mut at = 0;
    let mut in_sent = 0;
    let mut from = None;
    while let Some(unit) = written.get(at) {
        if sent.get(in_sent) == Some(unit) {
            at += 1;
            in_sent += 1;
            continue;
        }
        if unit.char != REPLACEMENT {
            return None;
        }
        // The run stands for all characters up to the next one that both texts have.
        let first = in_sent;
        at += written[at..].iter().take_while(|unit| unit.char == REPLACEMENT).count();
        while sent.get(in_sent).is_some_and(|unit| !unit.char.is_ascii())
            && (in_sent == first || sent.get(in_sent) != written.get(at))
        {
            in_sent += 1;
        }
        if in_sent == first {
            return None;
        }
        let (begin, _) = *from.get_or_insert((first, in_sent));
        from = Some((begin, in_sent));
    }
    let (begin, end) = from.filter(|_| in_sent == sent.len())?;
    let bytes = sent[begin].from..sent[end - 1].to;
    let cuts = [cut_before(written, begin); 3];
    Some(Comparison { outcome: ToolCallOutcome::Garbled, parts: vec![differing_part(sent, bytes, cuts)] })
}

/// Finds two neighbouring parts that were exchanged, with `begin` and `end` equal characters around the difference. The parts may begin or
/// end with the same characters, so they may reach into the equal ones.
fn find_swapped(
    written: &[CharSpan],
    sent: &[CharSpan],
    begin: usize,
    end: usize,
    budget: &mut StepBudget,
) -> Option<Comparison> {
    let until = sent.len().checked_sub(end).filter(|until| *until > begin)?;
    // The search below tries each place for the boundary.
    if until - begin > MAX_SWAPPED {
        return None;
    }
    let leads = 0..=begin.min(MAX_SHARED);
    let mut middles = leads.flat_map(|lead| (0..=end.min(MAX_SHARED)).map(move |trail| begin - lead..until + trail));
    let (middle, second) = middles.find_map(|middle| {
        let second = find_rotation(&written[middle.clone()], &sent[middle.clone()], budget)?;
        Some((middle, second))
    })?;
    let cuts = [middle.start, middle.start + second, middle.end].map(|at| cut_before(written, at));
    let bytes = sent[middle.start].from..sent[middle.end - 1].to;
    Some(Comparison { outcome: ToolCallOutcome::Swapped, parts: vec![differing_part(sent, bytes, cuts)] })
}

/// Length of the later part if `written` is a later and an earlier part of `sent`, in this order.
fn find_rotation(written: &[CharSpan], sent: &[CharSpan], budget: &mut StepBudget) -> Option<usize> {
    if budget.is_exceeded() {
        return None;
    }
    let mut places = 1..sent.len();
    let at = places.find(|&at| {
        let (first, second) = sent.split_at(at);
        let same = common_length(written.iter(), second.iter());
        budget.take_steps(same + 1) && same == second.len() && written[same..] == *first
    })?;
    Some(sent.len() - at)
}

/// The place before a character of the written arguments.
fn cut_before(written: &[CharSpan], at: usize) -> Cut {
    Cut {
        after: at.checked_sub(1).map_or(0, |before| written[before].to),
        before: written.get(at).map_or(usize::MAX, |unit| unit.from),
    }
}

/// The part of the arguments between the last equal unit before these bytes and the first one behind them.
fn differing_part(units: &[CharSpan], bytes: Range<usize>, cuts: [Cut; 3]) -> DifferingPart {
    let before = units.partition_point(|unit| unit.to <= bytes.start);
    let behind = units.partition_point(|unit| unit.from < bytes.end);
    DifferingPart {
        after: before.checked_sub(1).map_or(0, |at| units[at].to),
        before: units.get(behind).map_or(bytes.end, |unit| unit.from),
        bytes,
        cuts,
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
