//! Dynamo's response plane, recorded from real runtimes: one token per chunk, errors, and a client that stops.

use proptest::prelude::*;
use trace::event::AnswerEnd;

use super::{Connection, Observed, damaged, recorded, recording};

/// For each recording: token count, count stated in the last chunk, and whether the generator completed. Decoded by a separate program from
/// Dynamo's documented framing.
fn truth(name: &str) -> Option<(u32, Option<u32>, bool)> {
    Some(match name.rsplit_once('-')? {
        ("v0.8.1" | "v1.0.0" | "v1.6.1", "01") => (5, Some(5), true),
        ("v0.8.1" | "v1.0.0" | "v1.6.1", "02" | "06") => (2, Some(2), true),
        // The generator failed after two chunks. 0.8.1 still sent the final marker.
        ("v0.8.1" | "v1.0.0" | "v1.6.1", "03") => (2, None, false),
        ("v1.0.0-frontend", "03") | ("v1.6.1-frontend", "04") => (8, Some(8), true),
        _ => return None,
    })
}

#[test]
fn the_last_chunk_of_a_stream_has_the_total_count() {
    let mut checked = 0;
    for (name, bytes) in recorded("dynamo/responses") {
        let Some((tokens, stated, done)) = truth(&name) else { continue };
        let mut connection = Connection::new(None);
        connection.feed(&bytes, true);
        connection.closed(false);
        let end = if done { AnswerEnd::Whole } else { AnswerEnd::Failed };
        let [(subject, ..)] = &connection.answers()[..] else { panic!("{name}: {:?}", connection.events) };
        assert_eq!(subject.len(), 36, "{name}");
        assert_eq!(connection.events, [Observed::Answered(subject.clone(), Some(tokens), stated, end)], "{name}");
        checked += 1;
    }
    assert_eq!(checked, 14);
}

#[test]
fn the_response_of_the_frontend_is_text() {
    let bytes = recording("dynamo/responses", "v1.6.1-frontend-http");
    let mut connection = Connection::new(None);
    connection.feed(&bytes, true);
    let answers = connection.answers();
    assert!(matches!(&answers[..], [(id, None, ..)] if id.starts_with("chatcmpl-")), "{answers:?}");
    assert_eq!(connection.server.text_only, 1);
}

#[test]
fn a_removed_chunk_is_a_loss() {
    let bytes = recording("dynamo/responses", "v1.6.1-01");
    // The first chunk follows the handshake (99 bytes) and the prologue (38). Its prefix contains its length.
    let (at, prefix) = (137, 24);
    let body = u64::from_be_bytes(bytes[at + 8..at + 16].try_into().unwrap()) as usize;
    let without = [&bytes[..at], &bytes[at + prefix + body..]].concat();
    let mut connection = Connection::new(None);
    connection.feed(&without, true);
    let answers = connection.answers();
    assert!(matches!(&answers[..], [(_, Some(4), Some(5), AnswerEnd::Whole)]), "{answers:?}");
}

fn any_stream() -> impl Strategy<Value = Vec<u8>> {
    prop::sample::select(recorded("dynamo/responses").into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn damaged_streams_never_panic(bytes in damaged(any_stream(), 12), lengths in prop::collection::vec(1_usize..900, 1..9)) {
        let mut connection = Connection::new(None);
        connection.pieces(&bytes, &lengths);
        connection.missed();
        connection.pieces(&bytes, &lengths);
        connection.closed(true);
    }

    #[test]
    fn events_are_independent_of_read_boundaries(bytes in any_stream(), lengths in prop::collection::vec(1_usize..400, 1..20)) {
        let (mut whole, mut cut) = (Connection::new(None), Connection::new(None));
        whole.feed(&bytes, true);
        cut.pieces(&bytes, &lengths);
        prop_assert_eq!(cut.events, whole.events);
    }
}
