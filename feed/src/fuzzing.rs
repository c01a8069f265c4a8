//! Entry points for the fuzz targets in `fuzz/`; compiled only with the `fuzzing` feature.

use serde_bytes::ByteBuf;
use trace::record::Payload;

use crate::image::Image;
use crate::message::{Head, Kind, SCHEMA, Start, body, encode};
use crate::zmtp::{Input, Limits, Role, Zmtp, ZmtpError, opening};

/// Encodes a start message that carries `state`, which may be arbitrary bytes.
pub fn start(state: Vec<u8>) -> Vec<u8> {
    let image = Image::unpacked(state).pack().expect("bytes can be packed");
    let start = Start {
        tokengap: "0.1.0".into(),
        source: "tap".into(),
        payload: Payload::Tokens,
        image: Some(ByteBuf::from(image)),
        ..Start::default()
    };
    let head = Head {
        schema: SCHEMA.into(),
        kind: Kind::Start,
        pod: "pod".into(),
        instance: "00".into(),
        seq: 1,
        mono_ns: 1,
        wall_ns: 1,
    };
    encode(&head, &body::start(&start).expect("a start can be written")).expect("a message can be written")
}

/// Feeds a connection's bytes whole and in pieces: both must give the same result and stay within the limits.
pub fn connection(bytes: &[u8], piece: usize, publisher: bool) {
    let (role, peer) = if publisher {
        (Role::Publisher, Role::Subscriber)
    } else {
        (Role::Subscriber, Role::Publisher)
    };
    let opened = [&opening(peer)[..], bytes].concat();
    for bytes in [bytes, &opened] {
        assert_eq!(read(role, bytes, piece), read(role, bytes, bytes.len().max(1)));
    }
}

fn read(role: Role, bytes: &[u8], piece: usize) -> (Vec<Input>, Option<ZmtpError>) {
    const LIMITS: Limits = Limits {
        message: 4_096,
        frames: 3,
    };
    let (mut zmtp, mut inputs) = (Zmtp::new(role, LIMITS), Vec::new());
    for part in bytes.chunks(piece) {
        zmtp.inbox.extend_from_slice(part);
        loop {
            match zmtp.next_input() {
                Ok(Some(Input::Message(frames))) => {
                    assert!(frames.len() <= LIMITS.frames);
                    assert!(frames.iter().map(|frame| frame.len()).sum::<usize>() <= LIMITS.message);
                    inputs.push(Input::Message(frames));
                }
                Ok(Some(input)) => inputs.push(input),
                Ok(None) => break,
                Err(error) => return (inputs, Some(error)),
            }
        }
    }
    (inputs, None)
}
