//! A server's response bytes: the deliveries do not depend on how the bytes are split, up to the first malformed place. After that place
//! the reader resumes at the next readable write, so the split matters. A gap in the bytes must not cause a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trace::MonoNs;
use zmq_tap::egress::{Closing, Limits, Reader, Server};

/// Small limits, so that inputs reach them.
const LIMITS: Limits = Limits {
    event_bytes: 4 << 10,
    head_bytes: 1 << 10,
    seek_bytes: 8 << 10,
    requests: 8,
};

/// Events reported for a connection of one write, read in pieces; a gap precedes piece `hole`.
fn told(bytes: &[u8], piece: usize, hole: Option<usize>, by_client: bool) -> Vec<String> {
    let (mut reader, mut server) = (Reader::new(LIMITS), Server::new(None));
    let mut told = Vec::new();
    for (index, part) in bytes.chunks(piece).enumerate() {
        if Some(index) == hole {
            reader.missed(MonoNs(1), &mut |event| told.push(format!("{event:?}")));
        }
        reader.feed(MonoNs(1), part, index == 0, &mut server, &mut |event| told.push(format!("{event:?}")));
    }
    let closing = Closing { by_client, unacknowledged: None };
    reader.closed(MonoNs(1), closing, &mut server, &mut |event| told.push(format!("{event:?}")));
    told
}

fn up_to_trouble(told: &[String]) -> &[String] {
    let trouble = told.iter().position(|event| event.contains("Lost"));
    &told[..trouble.unwrap_or(told.len())]
}

fuzz_target!(|input: &[u8]| {
    let [how, piece, bytes @ ..] = input else { return };
    let (piece, by_client) = (usize::from(*piece) + 1, how & 1 == 1);
    let cut = told(bytes, piece, None, by_client);
    let whole = told(bytes, bytes.len().max(1), None, by_client);
    assert_eq!(up_to_trouble(&whole), up_to_trouble(&cut));
    told(bytes, piece, Some(usize::from(how >> 1)), by_client);
});
