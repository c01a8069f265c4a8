//! Arbitrary bytes and damaged recordings must not cause panics or unbounded work. Splits of recordings must not change their events.

use proptest::prelude::*;
use responses::{Limits, Unreadable};
use trace::event::AnswerEnd;

use super::{Connection, damaged, recorded};

fn any_bytes(folders: &[&str]) -> impl Strategy<Value = Vec<u8>> {
    let all: Vec<_> = folders.iter().flat_map(|folder| recorded(folder)).map(|(_, bytes)| bytes).collect();
    prop::sample::select(all)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600), lengths in prop::collection::vec(1_usize..90, 1..9)) {
        let mut connection = Connection::new(None);
        connection.pieces(&bytes, &lengths);
        connection.closed(false);
    }

    #[test]
    fn damaged_recordings_never_panic(bytes in damaged(any_bytes(&["", "http2"]), 12), lengths in prop::collection::vec(1_usize..900, 1..9)) {
        let mut connection = Connection::new(None);
        connection.pieces(&bytes, &lengths);
        connection.missed();
        connection.pieces(&bytes, &lengths);
        connection.closed(true);
    }

    #[test]
    fn events_are_independent_of_read_boundaries(bytes in any_bytes(&[""]), lengths in prop::collection::vec(1_usize..400, 1..20)) {
        let (mut whole, mut cut) = (Connection::new(None), Connection::new(None));
        whole.feed(&bytes, true);
        cut.pieces(&bytes, &lengths);
        prop_assert_eq!(cut.events, whole.events);
    }
}

#[test]
fn unreadable_connections_are_counted_by_reason() {
    let cases: [(&[u8], Unreadable); 4] = [
        (&[0x16, 3, 3, 0, 122, 2, 0, 0, 118, 3, 3], Unreadable::Tls),
        (b"POST /v2/events HTTP/1.1\r\n", Unreadable::Request),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n", Unreadable::Upgraded),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
            Unreadable::Compressed,
        ),
    ];
    for (bytes, why) in cases {
        let mut connection = Connection::new(None);
        connection.feed(bytes, true);
        assert_eq!(connection.server.unreadable, [(why, 1)]);
        assert!(connection.events.is_empty());
    }
}

#[test]
fn a_connection_of_unknown_protocol_is_abandoned() {
    let mut connection = Connection::new(None);
    let limit = Limits::default().seek_bytes;
    for _ in 0..=limit / 1000 {
        connection.feed(&[0x55; 1000], true);
    }
    assert_eq!(connection.server.unreadable, [(Unreadable::Unknown, 1)]);
    assert!(connection.reader.is_unreadable());
}

#[test]
fn a_piece_of_a_body_that_looks_like_a_head_does_not_end_it() {
    let mut connection = Connection::new(None);
    let json = r#"{"output_ids":[1],"meta_info":{"id":"a","finish_reason":null,"completion_tokens":1}}"#;
    for (kind, pieces) in [("text/plain", ["0123456789", "HTTP/1.1 20"].as_slice()), ("application/json", &[json])] {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n");
        for piece in [&*head].iter().chain(pieces) {
            connection.feed(piece.as_bytes(), true);
        }
    }
    assert_eq!(connection.answers(), [("a".to_owned(), Some(1), Some(1), AnswerEnd::Whole)]);
    assert!(connection.server.unreadable.is_empty());
}
