//! Dynamo's response plane: valid frames around arbitrary bodies, split arbitrarily, and malformed frames.
#![no_main]

use libfuzzer_sys::fuzz_target;
use responses::{ResponseReader, Server};
use trace::MonoNs;
use trace::event::AnswerEnd;

const HEAD: &[u8] = br#"{"subject":"0f7b3f0e-0000-4000-8000-000000000000","stream_type":"response"}"#;
const PROLOGUE: &[u8] = br#"{"error":null}"#;

fn frame(stream: &mut Vec<u8>, header: &[u8], body: &[u8]) {
    for part in [header.len() as u64, body.len() as u64, 0] {
        stream.extend(part.to_be_bytes());
    }
    stream.extend(header);
    stream.extend(body);
}

fn read_events(bytes: &[u8], piece: usize) -> Vec<String> {
    let (mut reader, mut server) = (ResponseReader::default().with_protocols(engines::PROTOCOLS), Server::new(None));
    let mut events = Vec::new();
    for (index, part) in bytes.chunks(piece).enumerate() {
        reader.read_bytes(MonoNs(1), part, index == 0, &mut server, &mut |event| events.push(format!("{event:?}")));
    }
    reader.end_connection(MonoNs(1), AnswerEnd::ServerLeft, None, &mut server, &mut |event| {
        events.push(format!("{event:?}"))
    });
    events
}

fuzz_target!(|input: &[u8]| {
    let [options, piece, bodies @ ..] = input else { return };
    let mut stream = Vec::new();
    frame(&mut stream, HEAD, b"");
    frame(&mut stream, PROLOGUE, b"");
    if options & 1 == 0 {
        // Take the bodies from the input, split at zero bytes.
        for body in bodies.split(|byte| *byte == 0) {
            frame(&mut stream, b"", body);
        }
        frame(&mut stream, b"\"sentinel\"", b"");
    } else {
        stream.extend(bodies);
    }
    assert_eq!(read_events(&stream, stream.len()), read_events(&stream, usize::from(*piece) + 1));
});
