//! Recorded responses of SGLang's `/generate`, served by uvicorn.

use std::collections::BTreeMap;

use proptest::prelude::*;
use trace::engine::Mode;
use trace::event::AnswerEnd;

use super::{Connection, Observed, recorded};

type Delivery = (String, Option<u32>, Option<u32>, bool);

/// The events that Python's parser found in the same bytes.
fn truth(name: &str) -> Vec<Delivery> {
    let path = format!("{}/fixtures/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn deliveries(events: &[Observed]) -> Vec<Delivery> {
    events
        .iter()
        .filter_map(|event| match event {
            Observed::Delivered(rid, tokens, stated, finished, _) => {
                Some((rid.clone(), Some(*tokens), *stated, *finished))
            }
            _ => None,
        })
        .collect()
}

#[test]
fn every_event_decodes_as_in_the_reference_parser() {
    for (name, bytes) in recorded("") {
        let mut connection = Connection::new(None);
        connection.feed(&bytes, true);
        assert_eq!(deliveries(&connection.events), truth(&name), "{name}");
        assert!(!connection.events.contains(&Observed::Missed), "{name}");
    }
}

#[test]
fn token_sums_of_a_response_match_the_reported_counts() {
    for (name, bytes) in recorded("") {
        let mode = if name.contains("cumulative") { Mode::Cumulative } else { Mode::Incremental };
        let mut connection = Connection::new(None);
        connection.feed(&bytes, true);
        let mut carried: BTreeMap<String, (u32, u32)> = BTreeMap::new();
        for (rid, ids, stated, _) in truth(&name) {
            let (sum, last) = carried.entry(rid).or_default();
            let ids = ids.unwrap();
            *sum = if mode == Mode::Cumulative { ids } else { *sum + ids };
            *last = stated.unwrap();
        }
        let answers: BTreeMap<String, (u32, u32)> = connection
            .events
            .iter()
            .filter_map(|event| match event {
                Observed::Answered(rid, tokens, stated, AnswerEnd::Whole) => {
                    Some((rid.clone(), (tokens.unwrap(), stated.unwrap())))
                }
                _ => None,
            })
            .collect();
        assert_eq!(answers, carried, "{name}");
        let lost: u32 = answers.values().map(|(tokens, stated)| stated - tokens).sum();
        // Only a release that keeps just the last chunk of a backlog, in incremental mode, loses tokens.
        assert_eq!(lost > 0, name.starts_with("0.5.9-incremental") || name == "0.5.9-text", "{name}: {lost}");
    }
}

#[test]
fn no_event_contradicts_the_configured_mode() {
    for (name, bytes) in recorded("") {
        let mode = if name.contains("cumulative") { Mode::Cumulative } else { Mode::Incremental };
        let mut connection = Connection::new(Some(mode));
        connection.feed(&bytes, true);
        for event in &connection.events {
            assert!(!matches!(event, Observed::Delivered(.., other) if *other != mode), "{name}: {event:?}");
        }
    }
}

#[test]
fn a_client_disconnect_is_not_reported_as_a_loss() {
    for (name, bytes) in recorded("") {
        let mut connection = Connection::new(None);
        let first_event = memchr::memmem::find(&bytes, b"}}\n\n").unwrap() + 4;
        connection.feed(&bytes[..first_event], true);
        connection.closed(true);
        let last = connection.events.last().unwrap();
        assert!(matches!(last, Observed::Answered(.., AnswerEnd::ClientLeft)), "{name}: {last:?}");
    }
}

#[test]
fn a_client_that_closes_at_the_final_marker_has_not_left() {
    let marker = b"data: [DONE]\n\n";
    for (name, bytes) in recorded("") {
        let Some(at) = memchr::memmem::find(&bytes, marker) else { continue };
        // The end of the body is never written.
        let mut connection = Connection::new(None);
        connection.feed(&bytes[..at + marker.len()], true);
        connection.closed(true);
        let last = connection.events.last().unwrap();
        assert!(matches!(last, Observed::Answered(.., AnswerEnd::Whole)), "{name}: {last:?}");
    }
}

#[test]
fn only_errors_of_the_engine_s_endpoints_are_rejections() {
    let mut connection = Connection::new(None);
    let error = r#"{"error":{"message":"no"}}"#;
    for (head, body) in [
        ("200 OK", error),
        ("429 Too Many Requests", error),
        ("503 Service Unavailable", ""),
        ("404 Not Found", r#"{"detail":"Not Found"}"#),
        ("405 Method Not Allowed", r#"{"detail":"Method Not Allowed"}"#),
        ("404 Not Found", r#"{"error":{"message":"no such model"}}"#),
        ("503 Service Unavailable", error),
    ] {
        let length = body.len();
        let head = format!("HTTP/1.1 {head}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
        connection.pieces(format!("{head}{body}").as_bytes(), &[7, 1, 30]);
    }
    assert_eq!(connection.events, [429, 404, 503].map(Observed::Rejected));
}

/// A stream begins with status 200 before the engine has accepted its request.
#[test]
fn a_stream_with_only_an_error_is_a_rejection() {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    let error = "data: {\"error\": {\"message\": \"The request queue is full.\"}}\n\n";
    let chunk = "data: {\"output_ids\":[7],\"meta_info\":{\"id\":\"a\",\"completion_tokens\":1}}\n\n";
    let stream = |head: &str, events: &[&str]| {
        let chunks = events.iter().map(|event| format!("{:x}\r\n{event}\r\n", event.len()));
        format!("{head}{}0\r\n\r\n", chunks.collect::<String>())
    };
    let done = "data: [DONE]\n\n";
    let mut connection = Connection::new(None);
    // The next response of the connection is none.
    let refused = stream(head, &[error, done]) + &stream(head, &[": ping\n\n"]);
    connection.pieces(refused.as_bytes(), &[7, 1, 30]);
    assert_eq!(connection.events, [Observed::Rejected(200)]);

    let status = head.replace("200 OK", "503 Service Unavailable");
    let mut connection = Connection::new(None);
    connection.pieces(stream(&status, &[error, done]).as_bytes(), &[11]);
    assert_eq!(connection.events, [Observed::Rejected(503)], "counted once");

    let mut connection = Connection::new(None);
    connection.pieces(stream(head, &[chunk, error, done]).as_bytes(), &[11]);
    let failed = Observed::Answered("a".to_owned(), Some(1), Some(1), AnswerEnd::Failed);
    assert_eq!(connection.events.last(), Some(&failed), "it has an id");
    assert!(!connection.events.contains(&Observed::Rejected(200)));

    // After a missed part, earlier events may have named the request.
    let mut connection = Connection::new(None);
    connection.feed(head.as_bytes(), true);
    connection.missed();
    connection.feed(stream("", &[error, done]).as_bytes(), true);
    assert!(!connection.events.contains(&Observed::Rejected(200)), "{:?}", connection.events);

    // The client leaves before the end of the body.
    let mut connection = Connection::new(None);
    let cut = stream(head, &[error]);
    connection.feed(&cut.as_bytes()[..cut.len() - 5], true);
    connection.closed(true);
    assert_eq!(connection.events, [Observed::Rejected(200)]);
}

fn any_recorded() -> impl Strategy<Value = (String, Vec<u8>)> {
    let all = recorded("");
    (0..all.len()).prop_map(move |place| all[place].clone())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_gap_loses_events_and_invents_none((name, bytes) in any_recorded(), from: prop::sample::Index, length in 1_usize..900) {
        let from = from.index(bytes.len());
        let to = bytes.len().min(from + length);
        let mut connection = Connection::new(None);
        connection.feed(&bytes[..from], true);
        connection.missed();
        connection.feed(&bytes[to..], false);
        let all = truth(&name);
        let mut left = all.iter();
        for delivery in deliveries(&connection.events) {
            prop_assert!(left.any(|known| *known == delivery), "{name}: {delivery:?} out of nothing");
        }
        prop_assert!(connection.events.contains(&Observed::Missed));
        for event in &connection.events {
            let Observed::Answered(rid, Some(tokens), _, AnswerEnd::Whole) = event else { continue };
            // An answer reported as whole must match the one in the unbroken recording.
            let mut reference = Connection::new(None);
            reference.feed(&bytes, true);
            prop_assert!(reference.events.iter().any(|other| matches!(other, Observed::Answered(r, Some(t), ..) if r == rid && t == tokens)), "{name}: {event:?}");
        }
    }

    #[test]
    fn a_stream_joined_at_any_write_decodes_from_there((name, bytes) in any_recorded(), skip in 1_usize..12) {
        // uvicorn writes one event at a time, and each write begins with the chunk size.
        let mut starts = memchr::memmem::find_iter(&bytes, b"\r\ndata: {").map(|at| {
            let digits = bytes[..at].iter().rev().take_while(|byte| byte.is_ascii_hexdigit()).count();
            at - digits
        });
        let Some(start) = starts.nth(skip) else { return Ok(()) };
        let mut connection = Connection::new(None);
        connection.feed(&bytes[start..], true);
        let all = truth(&name);
        let seen = deliveries(&connection.events);
        prop_assert!(!seen.is_empty() && all.ends_with(&seen), "{name}: {seen:?}");
        prop_assert!(!connection.events.contains(&Observed::Missed));
    }
}
