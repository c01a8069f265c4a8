//! Comparison of tool calls written by the engines' own parsers (`testbed/real/tool_calls.py`), with intact and with damaged events.

use std::path::PathBuf;

use responses::{ResponseReader, Server};
use serde::Deserialize;
use serde_json::Value;
use trace::MonoNs;
use trace::event::{Answer, AnswerEnd, Chunk, Event, Finish, ToolCallOutcome, ToolCalls, UnjudgedReason, What};

use super::send_text;

/// A response of an engine.
#[derive(Deserialize)]
struct Response {
    parser: String,
    /// Text of each chunk; each has one token.
    chunks: Vec<String>,
    finish: String,
    /// Arguments of the calls that the model wrote.
    calls: Vec<Value>,
    events: Vec<String>,
}

/// Recorded responses, by engine.
fn recorded() -> Vec<(String, Response)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/tool_calls");
    let mut found = Vec::new();
    for file in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let engine = file.file_stem().unwrap().to_str().unwrap().to_owned();
        for line in std::fs::read_to_string(&file).unwrap().lines() {
            found.push((engine.clone(), serde_json::from_str(line).unwrap()));
        }
    }
    assert!(!found.is_empty());
    found
}

/// Reads the events of a response whose frames carried these chunks.
fn read(chunks: &[String], finish: &str, events: &[String]) -> Option<ToolCalls> {
    let mut server = Server::new(None);
    send(&mut server, chunks, finish);
    answered(&mut server, &response(finish, events).concat(), true)
}

/// Sends frames with these chunks.
fn send(server: &mut Server, chunks: &[String], finish: &str) {
    for (n, text) in (1..).zip(chunks) {
        let finish = if finish == "length" { Finish::Length } else { Finish::Stop };
        let chunk = Chunk {
            listed: Some(1),
            completion_tokens: Some(n),
            finish: (n as usize == chunks.len()).then_some(finish),
            text: Some(text),
            ..Chunk::new("r")
        };
        send_text(server, n, chunk);
    }
}

/// Bytes of the head, of each event, and of the end.
fn response(finish: &str, events: &[String]) -> Vec<String> {
    let end = format!(r#"{{"id":"r","choices":[{{"index":0,"delta":{{}},"finish_reason":"{finish}"}}]}}"#);
    let data = events.iter().map(String::as_str).chain([&*end, "[DONE]"]);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let data = data.map(|data| format!("data: {data}\n\n"));
    let chunks = data.map(|data| format!("{:x}\r\n{data}\r\n", data.len()));
    let (head, end) = (head.to_owned(), "0\r\n\r\n".to_owned());
    [head].into_iter().chain(chunks).chain([end]).collect()
}

/// The tool calls of the response with these bytes, whose connection then closes. `begins`: they are its first.
fn answered(server: &mut Server, bytes: &str, begins: bool) -> Option<ToolCalls> {
    let (mut reader, mut found) = (ResponseReader::default(), None);
    let mut observe = |event: &Event<'_>| {
        if let What::Answered(Answer { tool_calls, .. }) = event.what {
            found = tool_calls;
        }
    };
    reader.read_bytes(MonoNs(1), bytes.as_bytes(), begins, server, &mut observe);
    reader.end_connection(MonoNs(2), AnswerEnd::ClientLeft, None, server, &mut observe);
    found
}

impl Response {
    fn read(&self) -> Option<ToolCalls> {
        read(&self.chunks, &self.finish, &self.events)
    }

    /// The arguments in the events, by tool call in the order of their first events.
    fn arguments(&self) -> Vec<String> {
        let mut found: Vec<(Value, String)> = Vec::new();
        for call in self.events.iter().flat_map(|event| calls(event)) {
            let place = found.iter().position(|(index, _)| *index == call["index"]);
            let place = place.unwrap_or_else(|| {
                found.push((call["index"].clone(), String::new()));
                found.len() - 1
            });
            found[place].1.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
        }
        found.into_iter().map(|(_, arguments)| arguments).collect()
    }

    /// Indices of the events with a part of the last call's arguments that has at least two letters. A call without its name is not found.
    fn pieces(&self) -> Vec<usize> {
        let events: Vec<_> = self.events.iter().map(|event| calls(event).pop()).collect();
        let last = events.iter().flatten().next_back().map(|call| call["index"].clone());
        let is_piece = |call: &Value| {
            let text = call["function"]["arguments"].as_str().unwrap_or_default();
            // Blanks prove nothing.
            let text = text.replace("\\n", "").replace("\\t", "");
            call["function"]["name"].as_str().is_none_or(str::is_empty)
                && Some(&call["index"]) == last.as_ref()
                && text.chars().filter(|char| char.is_alphabetic()).count() > 1
        };
        let places = (0..events.len()).filter(|&at| events[at].as_ref().is_some_and(is_piece));
        places.collect()
    }

    /// The outcome with these events instead.
    fn with(&self, change: impl FnOnce(&mut Vec<String>)) -> Option<ToolCalls> {
        let mut events = self.events.clone();
        change(&mut events);
        read(&self.chunks, &self.finish, &events)
    }
}

fn calls(event: &str) -> Vec<Value> {
    let event: Value = serde_json::from_str(event).unwrap();
    let calls = &event["choices"][0]["delta"]["tool_calls"];
    calls.as_array().cloned().unwrap_or_default()
}

/// Arguments in the last call of an event.
fn arguments(event: &str) -> Option<String> {
    Some(calls(event).pop()?["function"]["arguments"].as_str()?.to_owned())
}

fn replace(event: &mut String, change: impl Fn(&str) -> String) {
    let mut json: Value = serde_json::from_str(event).unwrap();
    let arguments = &mut json["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"];
    *arguments = change(arguments.as_str().unwrap()).into();
    *event = json.to_string();
}

/// Compares with the arguments that the model wrote, which only the fixture knows.
#[test]
fn only_arguments_that_a_parser_damaged_are_accused() {
    let (mut complete, mut damaged) = (0, 0);
    for (engine, response) in recorded() {
        let Some(found) = response.read() else { continue };
        if found.outcome == ToolCallOutcome::Absent {
            assert!(response.calls.len() >= (found.calls + found.absent) as usize, "{found:?}");
            continue;
        }
        let written = response.arguments().swap_remove(found.call as usize - 1);
        let value = serde_json::from_str::<Value>(&written).ok();
        let is_as_sent = |value: &Value| response.calls.contains(value);
        let about = format!("{engine} {} {found:?}: {written} of {:?}", response.parser, response.calls);
        match found.outcome {
            ToolCallOutcome::Complete => {
                complete += 1;
                let empty = written.trim().is_empty() && response.calls.contains(&serde_json::json!({}));
                assert!(empty || value.is_some_and(|value| is_as_sent(&value)), "{about}");
            }
            outcome if outcome.is_damaged() => {
                damaged += 1;
                assert!(!value.is_some_and(|value| is_as_sent(&value)), "{about}");
                assert!(found.call < found.calls || response.finish == "stop", "{about}");
            }
            _ => {}
        }
    }
    assert!(complete > 40 && damaged > 0, "{complete} complete, {damaged} damaged");
}

/// Responses whose last call consists of several pieces, without fault.
fn in_pieces() -> Vec<Response> {
    let all = recorded().into_iter().map(|(_, response)| response);
    let whole = |response: &Response| {
        let complete = response.read().is_some_and(|found| found.outcome == ToolCallOutcome::Complete);
        complete && response.finish == "stop"
    };
    let found: Vec<_> = all.filter(|response| whole(response) && response.pieces().len() > 2).collect();
    assert!(found.len() > 10, "{}", found.len());
    found
}

#[test]
fn a_dropped_event_is_missing_text_at_its_place() {
    for response in in_pieces() {
        let pieces = response.pieces();
        for &at in &pieces {
            let piece = arguments(&response.events[at]).unwrap();
            let found = response.with(|events| drop(events.remove(at))).unwrap();
            let about = format!("{} without {piece:?}: {found:?}", response.parser);
            assert!(matches!(found.outcome, ToolCallOutcome::Missing), "{about}");
            let part = found.part.unwrap();
            assert!(part.chars as usize <= piece.len() * 6 + 16 && part.tokens[0] <= part.tokens[1], "{about}");
        }
    }
}

#[test]
fn a_repeated_event_is_repeated_text() {
    for response in in_pieces() {
        for at in response.pieces() {
            let found = response.with(|events| events.insert(at, events[at].clone())).unwrap();
            // A member of an object may be repeated without another value.
            let expected = matches!(found.outcome, ToolCallOutcome::Repeated | ToolCallOutcome::Complete);
            assert!(expected, "{} {:?} {found:?}", response.parser, response.events[at]);
        }
    }
}

#[test]
fn swapped_events_are_swapped_text() {
    let (mut swapped, mut unjudged) = (0, 0);
    for response in in_pieces() {
        let pieces = response.pieces();
        for pair in pieces.windows(2).filter(|pair| pair[0] + 1 == pair[1]) {
            let piece = |at: usize| calls(&response.events[at]).pop().unwrap()["function"]["arguments"].clone();
            if piece(pair[0]) == piece(pair[1]) {
                continue;
            }
            match response.with(|events| events.swap(pair[0], pair[1])).unwrap().outcome {
                ToolCallOutcome::Swapped => swapped += 1,
                // Members of an object in another order.
                ToolCallOutcome::Complete => {}
                // Equal characters at the ends of both hide where they begin.
                ToolCallOutcome::Unjudged => unjudged += 1,
                outcome => panic!("{} {pair:?} {outcome:?}", response.parser),
            }
        }
    }
    assert!(swapped > 5 * unjudged, "{swapped} {unjudged}");
}

#[test]
fn a_parser_that_eats_a_brace_is_told_from_a_lost_event() {
    for response in in_pieces() {
        let with_brace = |event: &String| arguments(event).is_some_and(|text| text.ends_with('}'));
        let Some(last) = response.events.iter().rposition(with_brace) else { continue };
        let found =
            response.with(|events| replace(&mut events[last], |text| text[..text.len() - 1].to_owned())).unwrap();
        let part = found.part.unwrap();
        assert_eq!((found.outcome, part.chars), (ToolCallOutcome::Missing, 1), "{}", response.parser);
    }
}

#[test]
fn an_incomplete_character_is_garbled_text() {
    for response in in_pieces() {
        let with_character = |event: &String| arguments(event).is_some_and(|text| !text.is_ascii());
        let Some(at) = response.events.iter().position(with_character) else { continue };
        let cut = |text: &str| text.chars().map(|char| if char.is_ascii() { char } else { '\u{fffd}' }).collect();
        let found = response.with(|events| replace(&mut events[at], cut)).unwrap();
        assert_eq!(found.outcome, ToolCallOutcome::Garbled, "{}", response.parser);
    }
}

#[test]
fn joined_events_are_complete() {
    for response in in_pieces() {
        let pieces = response.pieces();
        let Some(pair) = pieces.windows(2).find(|pair| pair[0] + 1 == pair[1]) else { continue };
        let second = arguments(&response.events[pair[1]]).unwrap();
        let found = response.with(|events| {
            replace(&mut events[pair[0]], |text| format!("{text}{second}"));
            events.remove(pair[1]);
        });
        assert_eq!(found.map(|found| found.outcome), Some(ToolCallOutcome::Complete));
    }
}

#[test]
fn tool_calls_that_cannot_be_compared_are_unjudged_with_the_reason() {
    let mut recorded = recorded().into_iter().map(|(_, response)| response);
    let found = recorded.find(|response| response.finish != "length" && response.pieces().len() > 4);
    let recorded = found.expect("a streamed call");
    let bytes = response(&recorded.finish, &recorded.events);
    let read = |frames: bool, bytes: &[String], begins| {
        let mut server = Server::new(None);
        if frames {
            send(&mut server, &recorded.chunks, &recorded.finish);
        }
        let calls = answered(&mut server, &bytes.concat(), begins).expect("tool calls");
        (calls.outcome, calls.reason)
    };
    let unjudged = |reason| (ToolCallOutcome::Unjudged, Some(reason));
    // The head and the first events come before the attach.
    let behind = 1 + recorded.pieces()[1];
    assert_eq!(read(true, &bytes[behind..], false), unjudged(UnjudgedReason::Missed));
    let left = 1 + recorded.pieces()[3];
    assert_eq!(read(true, &bytes[..left], true), unjudged(UnjudgedReason::EndedEarly));
    assert_eq!(read(false, &bytes, true), unjudged(UnjudgedReason::NoText));
    assert_eq!(read(true, &bytes, true), (ToolCallOutcome::Complete, None));
}
