//! HTTP/2: recorded connections of real servers, and frames that they send rarely.

use loona_hpack::Encoder;
use proptest::prelude::*;
use responses::Unreadable;
use trace::event::AnswerEnd;

use super::{Answers, Connection, Observed, damaged, recorded, recording};

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

pub(super) fn settings() -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100])
}

pub(super) fn fields(encoder: &mut Encoder<'_>, kind: &str) -> Vec<u8> {
    encoder.encode([(&b":status"[..], &b"200"[..]), (b"content-type", kind.as_bytes())])
}

fn event(rid: &str, token: u32, last: bool) -> Vec<u8> {
    let finish = if last { r#"{"type":"stop"}"# } else { "null" };
    let json = format!(
        r#"{{"output_ids":[7],"meta_info":{{"id":"{rid}","finish_reason":{finish},"completion_tokens":{token}}}}}"#
    );
    format!("data: {json}\n\n").into_bytes()
}

pub(super) fn read(bytes: &[u8], lengths: &[usize]) -> Connection {
    let mut connection = Connection::new(None);
    connection.pieces(bytes, lengths);
    connection.closed(true);
    connection
}

/// Answers of the recorded connections, sorted: requests 0 to 4 at once, then 0 and 1 again. Request 2 lacks every third event; request 4
/// does not stream.
fn of_recording() -> Answers {
    let of = |number: u32, tokens: u32| {
        let rid = format!("r-{number}");
        (rid, Some(tokens), Some(20 + number), AnswerEnd::Whole)
    };
    vec![of(0, 20), of(0, 20), of(1, 21), of(1, 21), of(2, 15), of(3, 23), of(4, 24)]
}

#[test]
fn an_error_status_is_a_rejection() {
    let mut encoder = Encoder::new();
    let encode = |(status, length): (&str, &str)| {
        encoder.encode([(&b":status"[..], status.as_bytes()), (&b"content-length"[..], length.as_bytes())])
    };
    // The 404 of 22 bytes is one of the framework, for a path that does not exist.
    let blocks = [("200", "9"), ("429", "9"), ("404", "22"), ("404", "90"), ("503", "9")].map(encode);
    let heads = blocks.iter().zip([1, 3, 5, 7, 9]).map(|(block, stream)| frame(HEADERS, END_HEADERS, stream, block));
    let bytes = [vec![settings()], heads.collect()].concat().concat();
    let connection = read(&bytes, &[usize::MAX]);
    assert_eq!(connection.events, [429, 404, 503].map(Observed::Rejected));
}

#[test]
fn interleaved_responses_of_real_servers_are_counted_exactly() {
    for (name, bytes) in recorded("http2").into_iter().filter(|(name, _)| name != "grpc") {
        for lengths in [&[usize::MAX][..], &[1], &[9, 1, 100], &[1460]] {
            let connection = read(&bytes, lengths);
            let mut found = connection.answers();
            found.sort_by(|a, b| a.0.cmp(&b.0));
            assert_eq!(found, of_recording(), "{name} {lengths:?}");
            assert!(connection.server.unreadable.is_empty() && !connection.events.contains(&Observed::Missed));
        }
    }
}

#[test]
fn grpc_messages_are_counted_and_not_judged() {
    let bytes = recording("http2", "grpc");
    let connection = read(&bytes, &[100]);
    assert_eq!(connection.server.unreadable, [(Unreadable::Grpc, 3)]);
    assert!(connection.events.is_empty() && !connection.server.shows_deliveries());
    // Half of its messages have neither text nor bytes.
    let words = "cannot read the deliveries of 3 connections or responses: its messages are gRPC (30 messages)";
    assert_eq!(connection.server.degraded_lines(), [format!("egress: {words}")]);
}

#[test]
fn padding_priorities_and_continued_fields_parse() {
    let mut encoder = Encoder::new();
    let block = fields(&mut encoder, "text/event-stream");
    let (first, rest) = block.split_at(3);
    // A padding of 4 bytes, and priorities.
    let start = [&[4, 0, 0, 0, 0, 16], first, &[0; 4]].concat();
    let one = event("a", 1, true);
    let (head, tail) = one.split_at(20);
    let bytes = [
        settings(),
        frame(HEADERS, 0x28, 1, &start),
        frame(CONTINUATION, 0, 1, &[]),
        frame(CONTINUATION, END_HEADERS, 1, rest),
        frame(DATA, 8, 1, &[&[200], head, &[9; 200]].concat()),
        frame(0x55, 0xff, 1, b"unknown kinds are skipped"),
        frame(DATA, END_STREAM, 1, tail),
    ];
    for lengths in [&[usize::MAX][..], &[1], &[13]] {
        let connection = read(&bytes.concat(), lengths);
        assert_eq!(connection.answers(), [("a".to_owned(), Some(1), Some(1), AnswerEnd::Whole)]);
    }
}

#[test]
fn each_end_of_a_stream_is_distinguished() {
    let mut encoder = Encoder::new();
    let mut bytes = settings();
    for (stream, rid) in [(1, "a"), (3, "b"), (5, "c")] {
        let block = fields(&mut encoder, "text/event-stream");
        bytes.extend(frame(HEADERS, END_HEADERS, stream, &block));
        bytes.extend(frame(DATA, 0, stream, &event(rid, 1, false)));
    }
    bytes.extend(frame(DATA, END_STREAM, 1, &[]));
    bytes.extend(frame(RST_STREAM, 0, 3, &[0, 0, 0, 2]));
    for (by_client, open) in [(true, AnswerEnd::ClientLeft), (false, AnswerEnd::Unknown)] {
        let mut connection = Connection::new(None);
        connection.feed(&bytes, true);
        connection.closed(by_client);
        let ends: Vec<_> = connection.answers().into_iter().map(|(rid, .., end)| (rid, end)).collect();
        let expected = [("a", AnswerEnd::Whole), ("b", AnswerEnd::ServerLeft), ("c", open)];
        assert_eq!(ends, expected.map(|(rid, end)| (rid.to_owned(), end)));
    }
}

#[test]
fn a_connection_joined_late_is_read_where_its_content_shows() {
    let mut encoder = Encoder::new();
    // Unobserved: these fields are referred to by the next ones.
    fields(&mut encoder, "text/event-stream");
    let mut connection = Connection::new(None);
    connection.feed(&frame(DATA, 0, 1, &event("a", 4, false)), true);
    connection.feed(&frame(DATA, END_STREAM, 1, &event("a", 5, true)), true);
    let block = fields(&mut encoder, "text/event-stream");
    connection.feed(&frame(HEADERS, END_HEADERS, 3, &block), true);
    connection.feed(&frame(DATA, END_STREAM, 3, &event("b", 1, true)), true);
    connection.feed(&frame(HEADERS, END_HEADERS, 5, &block), true);
    connection.feed(&frame(DATA, END_STREAM, 5, &[0x1f, 0x8b, 8]), true);
    let expected = [("a", None, 5), ("b", Some(1), 1)];
    let expected = expected.map(|(rid, tokens, stated)| (rid.to_owned(), tokens, Some(stated), AnswerEnd::Whole));
    assert_eq!(connection.answers(), expected);
    assert_eq!(connection.server.unreadable, [(Unreadable::Fields, 1)]);
}

#[test]
fn responses_of_unknown_fields_are_independent_of_read_boundaries() {
    let mut encoder = Encoder::new();
    fields(&mut encoder, "text/event-stream");
    let block = fields(&mut encoder, "text/event-stream");
    let json = br#"{"output_ids":[1,2],"meta_info":{"id":"b","finish_reason":{"type":"stop"},"completion_tokens":2}}"#;
    let bytes = [
        frame(HEADERS, END_HEADERS, 1, &block),
        frame(DATA, 0, 1, &[]),
        frame(DATA, 0, 1, &event("a", 1, false)[..3]),
        frame(DATA, 0, 1, &event("a", 1, false)[3..]),
        frame(HEADERS, END_HEADERS, 3, &block),
        frame(DATA, END_STREAM, 3, json),
        frame(DATA, END_STREAM, 1, &event("a", 2, true)),
    ];
    let expected = [("b", 2), ("a", 2)].map(|(rid, n)| (rid.to_owned(), Some(n), Some(n), AnswerEnd::Whole));
    for length in [1, 2, 5, 9, 14, 30, usize::MAX] {
        assert_eq!(read(&bytes.concat(), &[length]).answers(), expected, "{length}");
    }
}

#[test]
fn missed_bytes_leave_the_open_responses_uncounted() {
    let mut encoder = Encoder::new();
    let block = fields(&mut encoder, "text/event-stream");
    let mut connection = Connection::new(None);
    connection.feed(&[settings(), frame(HEADERS, END_HEADERS, 1, &block)].concat(), true);
    connection.feed(&frame(DATA, 0, 1, &event("a", 1, false)), true);
    connection.missed();
    connection.feed(&frame(DATA, END_STREAM, 1, &event("a", 3, true)), true);
    assert_eq!(connection.answers(), [("a".to_owned(), None, Some(3), AnswerEnd::Whole)]);
    assert!(connection.events.contains(&Observed::Missed));
}

#[test]
fn an_invalid_frame_leaves_every_open_response_uncounted() {
    let mut encoder = Encoder::new();
    let mut connection = Connection::new(None);
    connection.feed(&settings(), true);
    for (stream, rid) in [(1, "a"), (3, "b")] {
        let block = fields(&mut encoder, "text/event-stream");
        connection.feed(&frame(HEADERS, END_HEADERS, stream, &block), true);
        connection.feed(&frame(DATA, 0, stream, &event(rid, 1, false)), true);
    }
    // Clients open streams with odd numbers only.
    connection.feed(&frame(DATA, 0, 2, &[]), true);
    connection.closed(true);
    let expected = ["a", "b"].map(|rid| (rid.to_owned(), None, Some(1), AnswerEnd::ClientLeft));
    assert_eq!(connection.answers(), expected);
    assert_eq!(connection.server.unreadable, [(Unreadable::Frames, 1)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn damaged_connections_are_independent_of_read_boundaries(
        mut bytes in damaged((0_usize..3).prop_map(|place| recorded("http2").swap_remove(place).1), 3),
        start in 0_usize..400, length in 1_usize..600,
    ) {
        bytes.drain(..start);
        let read = |length: usize| {
            let mut connection = Connection::new(None);
            for (at, piece) in bytes.chunks(length).enumerate() {
                connection.feed(piece, at == 0);
            }
            connection.closed(true);
            connection
        };
        prop_assert_eq!(read(bytes.len()).before_gap(), read(length).before_gap());
    }

    #[test]
    fn arbitrary_frames_never_panic(
        frames in prop::collection::vec((0_u8..11, any::<u8>(), 0_u32..9, prop::collection::vec(any::<u8>(), 0..40)), 0..30),
        lengths in prop::collection::vec(1_usize..90, 1..9),
    ) {
        let frames = frames.iter().map(|(kind, flags, stream, payload)| frame(*kind, *flags, *stream, payload));
        let bytes = [settings(), frames.collect::<Vec<_>>().concat()].concat();
        read(&bytes, &lengths);
    }
}
