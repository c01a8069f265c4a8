//! Tool calls against the text of the engine.

use super::*;

/// Calls with these names and arguments, in pieces.
fn calls(calls: &[(&str, &[&str])]) -> ResponseCalls {
    let mut found = ResponseCalls::default();
    for (index, (name, pieces)) in calls.iter().enumerate() {
        let element = |function| serde_json::json!([{ "index": index, "function": function }]).to_string();
        found.add_event(&element(serde_json::json!({ "name": name, "arguments": "" })));
        for piece in *pieces {
            found.add_event(&element(serde_json::json!({ "name": null, "arguments": piece })));
        }
    }
    found
}

fn judge(calls: &ResponseCalls, chunks: &[&str], finish: Finish) -> Option<ToolCalls> {
    compare(calls, chunks, finish).expect("known calls and a known end")
}

/// Compares with these chunks of one token each.
fn compare(calls: &ResponseCalls, chunks: &[&str], finish: Finish) -> Result<Option<ToolCalls>, UnjudgedReason> {
    let text = chunks.concat();
    let mut ends: Vec<ChunkEnd> = Vec::new();
    for (tokens, chunk) in (11..).zip(chunks) {
        let bytes = ends.last().map_or(0, |end| end.bytes) + chunk.len();
        ends.push(ChunkEnd { bytes, tokens });
    }
    calls.compare_with_text(&SearchedText {
        text: &text,
        finish: Some(finish),
        chunk_ends: &ends,
        tokens_before: 10,
        carried_bytes: 0,
    })
}

fn outcome(calls: &ResponseCalls, text: &str) -> ToolCallOutcome {
    judge(calls, &[text], Finish::Stop).expect("tool calls").outcome
}

/// Numbers of calls in the response, of absent ones, and the first of these.
fn absent(calls: &ResponseCalls, text: &str) -> Option<(u32, u32, u32)> {
    let found = judge(calls, &[text], Finish::Stop)?;
    (found.outcome == ToolCallOutcome::Absent).then_some((found.calls, found.absent, found.call))
}

const HERMES: [&str; 9] = [
    "<tool_call>\n",
    "{\"name\": \"find\", ",
    "\"arguments\": ",
    "{\"city\": ",
    "\"New ",
    "York\"",
    "}",
    "}\n",
    "</tool_call>",
];

#[test]
fn a_complete_call_is_found_in_each_form_of_json() {
    let call = calls(&[("find", &["{\"city\":", "\"New York\"}"])]);
    for text in [
        &*HERMES.concat(),
        "<think>Use find with {\"city\": \"Rome\"}.</think>[TOOL_CALLS] [{\"name\": \"find\", \"arguments\": {\"city\": \"New York\"}}]",
        "<|tool_call_begin|>functions.find:0<|tool_call_argument_begin|>{\"city\": \"New York\"}<|tool_call_end|>",
        "{\"name\": \"find\", \"parameters\": {\"city\": \"New York\"}}",
        "find\n```json\n{\"city\": \"New York\"}\n```",
    ] {
        assert_eq!(outcome(&call, text), ToolCallOutcome::Complete, "{text}");
    }
}

#[test]
fn other_forms_are_not_compared() {
    let call = calls(&[("find", &["{\"city\": \"Paris\"}"])]);
    for text in [
        "<think>find {\"city\": \"Paris, France\"}</think><function=find>\n<parameter=city>\nParis\n</parameter>\n</function>",
        "<function=find>\n<parameter=city>\n{\"city\": \"Paris, France\"}\n</parameter>",
        "[find(city=\"Paris\")]",
        "{\"arguments\": {\"city\": \"Paris\"}, \"name\": \"find\"}",
        "{\"name\": \"find\", \"arguments\": \"{\\\"city\\\": \\\"Paris\\\"}\"}",
    ] {
        assert_eq!(outcome(&call, text), ToolCallOutcome::Rewritten, "{text}");
    }
    let cut = calls(&[("find", &["{\"city\": \"Par"])]);
    assert_eq!(outcome(&cut, "[find(city=\"Par"), ToolCallOutcome::Unjudged);
}

#[test]
fn a_lost_chunk_is_told_from_a_part_that_a_parser_removed() {
    let lost = judge(&calls(&[("find", &["{\"city\": ", "York\"}"])]), &HERMES, Finish::Stop).expect("tool calls");
    let part = lost.part.expect("a place");
    assert_eq!((lost.calls, lost.call, lost.outcome), (1, 1, ToolCallOutcome::Missing));
    assert_eq!((part.at, part.chars, part.tokens, part.whole_chunks), (10, 5, [15, 15], true));
    assert_eq!((part.events, part.whole_events, lost.events, lost.is_by_parser()), ([1, 2], true, 2, false));
    let eaten =
        judge(&calls(&[("find", &["{\"city\": \"New ", "Yor\"}"])]), &HERMES, Finish::Stop).expect("tool calls");
    let part = eaten.part.expect("a place");
    assert_eq!((part.at, part.chars, part.tokens, part.whole_chunks), (18, 1, [16, 16], false));
    assert_eq!((part.events, part.whole_events, eaten.is_by_parser()), ([2, 2], false, true));
    let brace = judge(&calls(&[("find", &["{\"city\": \"New York\""])]), &HERMES, Finish::Stop).expect("tool calls");
    let part = brace.part.expect("a place");
    assert_eq!((brace.outcome, part.at, part.chars, part.tokens), (ToolCallOutcome::Missing, 20, 1, [17, 17]));
}

#[test]
fn repeated_and_swapped_chunks_are_told_apart() {
    let repeated = calls(&[("find", &["{\"city\": ", "\"New ", "\"New ", "York\"}"])]);
    let found = judge(&repeated, &HERMES, Finish::Stop).expect("tool calls");
    assert_eq!((found.outcome, found.part.map(|part| part.tokens)), (ToolCallOutcome::Repeated, Some([15, 15])));
    let swapped = calls(&[("find", &["{\"city\": ", "York\"", "\"New ", "}"])]);
    let found = judge(&swapped, &HERMES, Finish::Stop).expect("tool calls");
    assert_eq!((found.outcome, found.part.map(|part| part.tokens)), (ToolCallOutcome::Swapped, Some([15, 16])));
}

#[test]
fn damage_that_ends_where_events_do_is_not_the_parsers_for_certain() {
    let by_parser = |pieces: &[&str]| {
        let found = judge(&calls(&[("find", pieces)]), &HERMES, Finish::Stop).expect("tool calls");
        assert!(found.outcome.is_damaged(), "{found:?}");
        let part = found.part.expect("a place");
        (part.whole_chunks, part.whole_events, part.events, found.is_by_parser())
    };
    // The parser holds back characters, so that events end elsewhere than chunks.
    assert_eq!(by_parser(&["{\"ci", " York\"}"]), (false, true, [1, 2], false));
    assert_eq!(by_parser(&["{\"city\": \"New York\""]), (true, true, [1, 0], false));
    assert_eq!(by_parser(&["ity\": \"New York\"}"]), (false, true, [0, 1], false));
    assert_eq!(by_parser(&["{\"city\": \"Ne", "w Y", "w Y", "ork\"}"]), (false, true, [2, 3], false));
    assert_eq!(by_parser(&["{\"city\": \"Ne", "w Yw Y", "ork\"}"]), (false, false, [2, 2], true));
    assert_eq!(by_parser(&["{\"ci", " \"New", "ty\":", " York\"}"]), (false, true, [2, 3], false));
}

#[test]
fn cut_characters_are_found_and_other_replacements_are_not() {
    let text = "{\"name\": \"find\", \"arguments\": {\"city\": \"S\u{e3}o \u{6771}\u{4eac}\"}}";
    for (written, expected) in [
        ("{\"city\": \"S\u{fffd}o \u{6771}\u{4eac}\"}", ToolCallOutcome::Garbled),
        ("{\"city\": \"S\u{fffd}\u{fffd}o \u{fffd}\u{4eac}\"}", ToolCallOutcome::Garbled),
        ("{\"city\": \"S\u{fffd} \u{6771}\u{4eac}\"}", ToolCallOutcome::Unjudged),
        ("{\"city\": \"\u{fffd}\u{e3}o \u{6771}\u{4eac}\"}", ToolCallOutcome::Unjudged),
        ("{\"city\": \"S?o \u{6771}\u{4eac}\"}", ToolCallOutcome::Unjudged),
    ] {
        assert_eq!(outcome(&calls(&[("find", &[written])]), text), expected, "{written}");
    }
    // The model wrote it.
    let text = text.replace('\u{e3}', "\u{fffd}");
    let written = "{\"city\": \"S\u{fffd}o \u{6771}\u{4eac}\"}";
    assert_eq!(outcome(&calls(&[("find", &[written])]), &text), ToolCallOutcome::Complete);
}

#[test]
fn a_call_in_no_field_of_the_response_is_absent() {
    let text = HERMES.concat() + "\n" + &HERMES.concat().replace("New York", "Rome");
    let none = ResponseCalls::default();
    assert_eq!(absent(&none, &text), Some((0, 2, 1)));
    assert_eq!(absent(&calls(&[("find", &["{\"city\": \"New York\"}"])]), &text), Some((1, 1, 2)));
    // Content that may have it.
    let sent = SearchedText {
        text: &text,
        finish: Some(Finish::Stop),
        chunk_ends: &[],
        tokens_before: 0,
        carried_bytes: text.len() as u64,
    };
    assert_eq!(none.compare_with_text(&sent), Ok(None));
    // Calls inside of arguments, incomplete ones, and text in another form.
    for text in [
        "{\"name\": \"find\", \"arguments\": {\"city\": \"New ",
        "{\"name\": \"New York\", \"arguments\": {\"city\": 1}}",
        "{\"name\": \"x\", \"city\": {}}",
        "{\"name\": 1}{\"name\": \"find",
        "{\"a\": \"{\\\"name\\\": \\\"find\\\", \\\"arguments\\\": {}}\"}",
    ] {
        assert_eq!(judge(&none, &[text], Finish::Stop), None, "{text}");
    }
    let nested = "{\"name\": \"run\", \"arguments\": {\"name\": \"find\", \"arguments\": {}}}";
    let call = calls(&[("run", &["{\"name\": \"find\", \"arguments\": {}}"])]);
    assert_eq!(outcome(&call, nested), ToolCallOutcome::Complete);
    // The parser may still wait for its end.
    assert_eq!(judge(&none, &HERMES, Finish::Length), None);
}

#[test]
fn the_length_limit_cuts_a_call_and_nobody_lost_it() {
    let cut = calls(&[("find", &["{\"city\": \"New "])]);
    let found = judge(&cut, &HERMES[..6], Finish::Length).expect("tool calls");
    assert_eq!((found.outcome, found.finish), (ToolCallOutcome::Unfinished, Some(Finish::Length)));
    assert_eq!(found.part.map(|part| part.chars), Some(5));
    // The engine sent the rest.
    assert_eq!(judge(&cut, &HERMES, Finish::Stop).map(|found| found.outcome), Some(ToolCallOutcome::Missing));
}

#[test]
fn the_worst_of_several_calls_is_described() {
    let text =
        "{\"name\": \"a\", \"arguments\": {\"x\": \"find\"}}; {\"name\": \"find\", \"arguments\": {\"x\": \"yes\"}}";
    let found = judge(&calls(&[("a", &["{\"x\":\"find\"}"]), ("find", &["{\"x\":\"ys\"}"])]), &[text], Finish::Stop);
    assert_eq!(found.map(|found| (found.calls, found.call, found.outcome)), Some((2, 2, ToolCallOutcome::Missing)));
    // The second call is in no event.
    let text =
        "{\"name\": \"find\", \"arguments\": {\"q\": \"cat\"}}\n{\"name\": \"find\", \"arguments\": {\"q\": \"cats\"}}";
    assert_eq!(absent(&calls(&[("find", &["{\"q\": \"cat\"}"])]), text), Some((1, 1, 2)));
    assert_eq!(absent(&calls(&[("find", &["{\"q\": \"cats\"}"])]), text), Some((1, 1, 1)));
}

#[test]
fn unknown_forms_and_excess_are_not_judged() {
    let unreadable = Err(UnjudgedReason::Unreadable);
    for json in ["{}", "[1]", "[{\"index\": -1}]", "[{\"function\": {\"arguments\": {\"a\": 1}}}]"] {
        let mut found = calls(&[("find", &["{}"])]);
        found.add_event(json);
        assert_eq!(compare(&found, &HERMES, Finish::Stop), unreadable, "{json}");
    }
    let mut found = ResponseCalls::default();
    for index in 0..=MAX_CALLS {
        found.add_event(&format!("[{{\"index\": {index}}}]"));
    }
    assert_eq!((found.bytes, compare(&found, &HERMES, Finish::Stop)), (0, unreadable));
}

#[test]
fn text_that_is_no_name_is_not_searched() {
    // A parser took a part of an array for the name.
    let call = calls(&[("2,", &["{}"])]);
    assert_eq!(outcome(&call, "[1, 2, {\"z\": null}]"), ToolCallOutcome::Rewritten);
    let call = calls(&[("find", &["{}"])]);
    assert_eq!(outcome(&call, "{\"name\": \"refind\", \"arguments\": {\"z\": null}}"), ToolCallOutcome::Rewritten);
}

#[test]
fn the_work_of_a_comparison_is_bounded() {
    let text = |object: &str| format!("{{\"name\": \"write\", \"arguments\": {object}}}");
    let lines = (0..4_000).fold(String::new(), |lines, n| lines + "line " + &n.to_string() + "\\n");
    let whole = format!("{{\"file\": \"{lines}\"}}");
    let cut = whole.replacen("line 200\\n", "", 1);
    assert_eq!(outcome(&calls(&[("write", &[&cut])]), &text(&whole)), ToolCallOutcome::Missing);
    // The missing part may be anywhere.
    let (short, long) = ("a".repeat(100_000), "a".repeat(130_000));
    for (written, sent) in [(&short, &long), (&long, &short)] {
        let written = format!("{{\"file\": \"{written}\"}}");
        let sent = text(&format!("{{\"file\": \"{sent}\"}}"));
        assert_eq!(outcome(&calls(&[("write", &[&written])]), &sent), ToolCallOutcome::Unjudged);
    }
    let name_everywhere = "a ".repeat(100_000);
    assert_eq!(outcome(&calls(&[("a", &["{}"])]), &name_everywhere), ToolCallOutcome::Unjudged);
}
