//! Response bytes of a server: up to the first malformed byte, the deliveries do not depend on how the bytes are split. After it, the
//! reader resumes at the next readable write, so the split matters. A gap in the bytes must not cause a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use responses::{Limits, ResponseReader, Server};
use trace::MonoNs;
use trace::event::AnswerEnd;

/// Small limits, so that inputs reach them.
const LIMITS: Limits =
    Limits { event_bytes: 4 << 10, head_bytes: 1 << 10, seek_bytes: 8 << 10, requests: 8, streams: 4 };

/// Events reported for a connection of one write, read in pieces; a gap precedes piece `hole`.
fn read_events(bytes: &[u8], piece: usize, hole: Option<usize>, by_client: bool) -> Vec<String> {
    let (mut reader, mut server) = (ResponseReader::new(LIMITS), Server::new(None));
    let mut events = Vec::new();
    for (index, part) in bytes.chunks(piece).enumerate() {
        if Some(index) == hole {
            reader.record_gap(MonoNs(1), &mut |event| events.push(format!("{event:?}")));
        }
        reader.read_bytes(MonoNs(1), part, index == 0, &mut server, &mut |event| events.push(format!("{event:?}")));
    }
    let end = if by_client { AnswerEnd::ClientLeft } else { AnswerEnd::ServerLeft };
    reader.end_connection(MonoNs(1), end, None, &mut server, &mut |event| events.push(format!("{event:?}")));
    events
}

fn before_gap(events: &[String]) -> &[String] {
    let gap = events.iter().position(|event| event.contains("Missed"));
    &events[..gap.unwrap_or(events.len())]
}

fuzz_target!(|input: &[u8]| {
    let [options, piece, bytes @ ..] = input else { return };
    let (piece, by_client) = (usize::from(*piece) + 1, options & 1 == 1);
    let cut = read_events(bytes, piece, None, by_client);
    let whole = read_events(bytes, bytes.len().max(1), None, by_client);
    assert_eq!(before_gap(&whole), before_gap(&cut));
    read_events(bytes, piece, Some(usize::from(options >> 1)), by_client);
});
