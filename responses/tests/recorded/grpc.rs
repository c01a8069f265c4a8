//! gRPC: a recorded connection of SGLang's native service, and messages that could be misread.

use proptest::prelude::*;
use responses::Unreadable;
use trace::event::AnswerEnd;

use super::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, fields, frame, read, settings};
use super::{Connection, Observed, damaged, recorded};

/// Messages of `Generate` and `TextGenerate` with this field 1.
fn output(rid: &str, field: &[u8], claimed: u32, last: bool) -> Vec<u8> {
    let text = |number: u8, value: &[u8]| [&[number << 3 | 2, value.len() as u8], value].concat();
    let entry = |key: &str, value: &str| text(2, &[text(1, key.as_bytes()), text(2, value.as_bytes())].concat());
    let reason = if last { r#"{"type": "length"}"# } else { "null" };
    let mut message = text(1, field);
    message.extend(entry("id", &format!("\"{rid}\"")));
    message.extend(entry("completion_tokens", &claimed.to_string()));
    message.extend(entry("finish_reason", reason));
    message.extend_from_slice(if last { &[3 << 3, 1] } else { &[] });
    message
}

fn prefixed(message: &[u8]) -> Vec<u8> {
    [&[0], &(message.len() as u32).to_be_bytes()[..], message].concat()
}

/// A connection with one response of these messages.
fn response(messages: &[Vec<u8>]) -> Vec<u8> {
    let block = fields(&mut loona_hpack::Encoder::new(), "application/grpc");
    let mut bytes = [settings(), frame(HEADERS, END_HEADERS, 1, &block)].concat();
    for message in messages {
        bytes.extend(frame(DATA, 0, 1, &prefixed(message)));
    }
    bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, 1, &[]));
    bytes
}

fn ids(ids: &[u16]) -> Vec<u8> {
    ids.iter()
        .flat_map(|id| match id {
            0..128 => vec![*id as u8],
            _ => vec![*id as u8 | 0x80, (*id >> 7) as u8],
        })
        .collect()
}

#[test]
fn responses_of_the_real_service_are_counted_exactly() {
    let (_, bytes) = recorded("grpc").swap_remove(0);
    for lengths in [&[usize::MAX][..], &[1], &[9, 1, 100], &[1460]] {
        let connection = read(&bytes, lengths);
        let mut found = connection.answers();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let whole = |rid: &str, n: u32| (rid.to_owned(), Some(n), Some(n), AnswerEnd::Whole);
        let text = |rid: &str, stated: Option<u32>| (rid.to_owned(), None, stated, AnswerEnd::Whole);
        let expected = [
            text("c-1", None),
            text("c-2", Some(8)),
            whole("r-0", 20),
            whole("r-1", 21),
            whole("r-3", 23),
            whole("r-4", 24),
            text("t-1", Some(9)),
            text("t-2", Some(9)),
        ];
        assert_eq!(found, expected, "{lengths:?}");
        let words = "4 responses carried text without token ids; their number of delivered tokens is not observable";
        assert_eq!(connection.server.degraded_lines(), [format!("egress: {words}")]);
    }
}

#[test]
fn lost_ids_are_missing_in_both_modes() {
    let incremental =
        [output("a", &ids(&[300]), 1, false), output("a", &ids(&[7, 500]), 5, false), output("a", &ids(&[9]), 6, true)];
    let connection = read(&response(&incremental), &[usize::MAX]);
    assert_eq!(connection.answers(), [("a".to_owned(), Some(4), Some(6), AnswerEnd::Whole)]);
}

#[test]
fn ids_that_could_be_text_are_counted_once_another_message_has_none() {
    let messages = [
        output("a", &ids(&[65]), 1, false),
        output("a", &ids(&[65, 66]), 2, false),
        output("a", &ids(&[65, 66, 300]), 3, true),
    ];
    let connection = read(&response(&messages), &[usize::MAX]);
    assert_eq!(connection.answers(), [("a".to_owned(), Some(3), Some(3), AnswerEnd::Whole)]);
    assert!(connection.server.unreadable.is_empty());
}

#[test]
fn text_is_not_taken_for_lost_ids() {
    let cumulative = [output("a", b"A", 1, false), output("a", b"A", 2, false), output("a", b"A bc", 3, true)];
    let other_script = [output("a", "é".as_bytes(), 1, false), output("a", "éa".as_bytes(), 4, true)];
    let without = [output("a", b"", 1, false), output("a", b"", 2, true)];
    let two = [output("a", b"AB", 2, false), output("b", b"ABCD", 5, true)];
    for messages in [&cumulative[..], &other_script, &without, &two] {
        let connection = read(&response(messages), &[usize::MAX]);
        assert!(connection.answers().iter().all(|(_, tokens, ..)| tokens.is_none()), "{messages:?}");
        let delivered = connection.events.iter().filter_map(|event| match event {
            Observed::Delivered(_, tokens, ..) => Some(*tokens),
            _ => None,
        });
        assert_eq!(delivered.sum::<u32>(), 0, "{messages:?}");
        assert!(!connection.server.shows_deliveries());
    }
}

#[test]
fn a_response_that_the_server_ends_early_is_not_complete() {
    let messages = [output("a", &ids(&[300]), 1, false)];
    let connection = read(&response(&messages), &[usize::MAX]);
    assert_eq!(connection.answers(), [("a".to_owned(), Some(1), Some(1), AnswerEnd::ServerLeft)]);
}

#[test]
fn a_connection_joined_late_is_read_from_the_next_message() {
    let mut connection = Connection::new(None);
    for n in 3..6 {
        let message = output("a", &ids(&[300]), n, n == 5);
        connection.feed(&frame(DATA, 0, 1, &prefixed(&message)), true);
    }
    connection.feed(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xbe]), true);
    // A response whose fields refer to unobserved ones.
    connection.feed(&frame(HEADERS, END_HEADERS, 3, &[0xbe]), true);
    let message = output("b", &ids(&[300]), 1, true);
    connection.feed(&frame(DATA, 0, 3, &prefixed(&message)), true);
    connection.feed(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &[0xbe]), true);
    let expected = [("a", None, 5), ("b", Some(1), 1)];
    let expected = expected.map(|(rid, tokens, stated)| (rid.to_owned(), tokens, Some(stated), AnswerEnd::Whole));
    assert_eq!(connection.answers(), expected);
}

#[test]
fn compressed_messages_are_not_read() {
    let mut bytes = response(&[output("a", &ids(&[300]), 1, true), output("a", &ids(&[300]), 1, true)]);
    let at = bytes
        .windows(5)
        .position(|window| window[0] == 0 && window[4] as usize == output("a", &ids(&[300]), 1, true).len());
    bytes[at.unwrap()] = 1;
    let connection = read(&bytes, &[usize::MAX]);
    assert_eq!(connection.server.unreadable, [(Unreadable::Grpc, 1)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn damaged_connections_are_independent_of_read_boundaries(
        bytes in damaged(Just(recorded("grpc").swap_remove(0).1), 4), length in 1_usize..600,
    ) {
        prop_assert_eq!(read(&bytes, &[bytes.len()]).before_gap(), read(&bytes, &[length]).before_gap());
    }

    #[test]
    fn arbitrary_messages_never_panic(
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..20), length in 1_usize..90,
    ) {
        read(&response(&messages), &[length]);
    }
}
