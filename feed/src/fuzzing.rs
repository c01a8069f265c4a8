//! Entry points for the fuzz targets in `fuzz/`, which the tests also use.
#![allow(clippy::missing_panics_doc, reason = "a panic is a failed check")]

use bytes::Bytes;
use serde_bytes::ByteBuf;
use trace::record::Payload;

use crate::image::Image;
use crate::message::{Head, Kind, SCHEMA, Start, encode};
use crate::zmtp::{Input, LIMITS, Role, opening, parse};

/// Encodes a start message that carries `state`, which may be arbitrary bytes.
pub fn start(state: Vec<u8>) -> Vec<u8> {
    let image = Image(state).pack().expect("bytes can be packed");
    let start = Start {
        tokengap: "0.1.0".into(),
        source: "tap".into(),
        payload: Payload::Tokens,
        image: Some(ByteBuf::from(image)),
        ..Start::default()
    };
    let start = rmp_serde::to_vec_named(&start).expect("a start can be written");
    encode(&head(Kind::Start), &start).expect("a message can be written")
}

pub(crate) fn head(kind: Kind) -> Head {
    let (schema, pod, instance) = (SCHEMA.into(), "pod-7".into(), "00ff".into());
    Head { schema, kind, pod, instance, seq: 3, mono_ns: 5, wall_ns: 7 }
}

/// Feeds a connection's bytes whole and in pieces: both must give the same result and stay within the limits.
pub fn connection(bytes: &[u8], piece: usize, publisher: bool) {
    let (role, peer) =
        if publisher { (Role::Publisher, Role::Subscriber) } else { (Role::Subscriber, Role::Publisher) };
    let opened = [&opening(peer)[..], bytes].concat();
    for bytes in [bytes, &opened] {
        let (whole, error) = parse(role, bytes, bytes.len().max(1));
        for input in &whole {
            if let Input::Message(frames) = input {
                assert!(frames.len() <= LIMITS.frames);
                assert!(frames.iter().map(Bytes::len).sum::<usize>() <= LIMITS.message);
            }
        }
        assert_eq!(parse(role, bytes, piece), (whole, error));
    }
}
