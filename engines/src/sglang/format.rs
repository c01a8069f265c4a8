//! SGLang's messages as seen by the relay and the probe: how a message begins, and its decoder behind the generic trait.
//!
//! Probability that a message seems to begin at one position of random bytes, in addition to the frame header's 2^-7:
//! - pickle 4 and 5 (Python 3.8 and later): `80 04|05 95` (2^-23), then the pickle's own eight-byte frame length. That length must be the
//!   ZMTP length less 11 or, in a large pickle of several frames, lie between 4 and that;
//! - msgpack: array header with a string header (2^-6), and a class name of 8 to 64 characters, a capital followed by letters, digits or
//!   underscores (2^-3.3 and 7 times 2^-2 or less).
//!
//! Together below 2^-30 for any frame length.

use adapter::decode::{Decode, Decoded, Format, Opening, Refused};
use trace::event::Kind;
use trace::path::Ends;

use super::NAME;
use super::pair::read_pair_message;
use super::wire::{Decoder, Limits, read_requests};
use crate::msgpack::type_byte::{ARRAY_16, FIXARRAY_0, FIXARRAY_1, FIXARRAY_15, FIXSTR_0, FIXSTR_31, STR_8};

/// SGLang's message format.
pub const FORMAT: Format = Format {
    engine: NAME,
    decoder: new_decoder,
    may_begin_with,
    opening: check_opening,
    hop: |kind| match kind {
        Kind::Text => Some(Ends::new("detokenizer", "tokenizer")),
        Kind::TokenIds | Kind::Embedding => Some(Ends::new("scheduler", "upstream")),
        Kind::Multimodal | Kind::Abort | Kind::Control | Kind::Failed => None,
    },
    receivers: &["tokenizer", "worker"],
    response_id: None,
    read_requests: |parts, requests| match parts {
        &[message] => Ok(read_requests(message, requests)?),
        _ => Err(refuse_multipart(parts.len())),
    },
    read_pair_message,
};

/// The first opcode of every pickle.
const PICKLE_PROTO: u8 = 0x80;
/// The second opcode of a pickle of protocol 4 or 5.
const PICKLE_FRAME: u8 = 0x95;
const MIN_NAME: usize = 8;
const MAX_NAME: usize = 64;
/// Length of `PROTO n`, `FRAME` and the frame length of a pickle.
const PICKLE_HEAD: u64 = 11;

/// Error for a message of several parts.
fn refuse_multipart(parts: usize) -> Refused {
    Refused { reason: "multipart", detail: format!("a message of {parts} parts, and SGLang sends one") }
}

fn new_decoder(longest: usize) -> Box<dyn Decode> {
    Box::new(Decoder::new(Limits { message: longest, ..Limits::default() }))
}

impl Decode for Decoder {
    /// Whether the message has one part that begins like a pickle, or like a msgpack array whose first item is a string.
    fn recognises(&self, parts: &[&[u8]]) -> bool {
        // An array of msgpack has a head of one byte or, if it is longer than 15, of three bytes.
        matches!(
            parts,
            [[PICKLE_PROTO, ..]
                | [FIXARRAY_0..=FIXARRAY_15, FIXSTR_0..=FIXSTR_31 | STR_8, ..]
                | [ARRAY_16, _, _, FIXSTR_0..=FIXSTR_31 | STR_8, ..]]
        )
    }

    fn keep_ids(&mut self) {
        // The method of the type itself, not this one.
        self.keep_ids();
    }

    fn keep_text(&mut self) {
        // The method of the type itself, not this one.
        self.keep_text();
    }

    /// Decodes a message, which has one part.
    fn decode<'a>(&'a mut self, parts: &[&'a [u8]]) -> Result<Decoded<'a>, Refused> {
        let &[message] = parts else { return Err(refuse_multipart(parts.len())) };
        // The decoder's own method, not this one. Its batch also has SGLang's columns, which are dropped here.
        Ok(self.decode(message)?.into_decoded())
    }
}

fn may_begin_with(byte: u8) -> bool {
    matches!(byte, PICKLE_PROTO | FIXARRAY_1..=FIXARRAY_15 | ARRAY_16)
}

/// Tests whether a message of this length may begin with these bytes, by the form of its codec.
fn check_opening(message: &[u8], message_bytes: u64) -> Opening {
    match message.first() {
        None => Opening::More,
        Some(&PICKLE_PROTO) => check_pickle_opening(message, message_bytes),
        Some(_) => check_msgpack_opening(message, message_bytes),
    }
}

/// Tests whether a pickle of `message_bytes` bytes begins with the bytes of `body`: whether its first frame fits into it. An
/// [`Opening::Yes`] has the byte with which the message must end.
fn check_pickle_opening(body: &[u8], message_bytes: u64) -> Opening {
    let frame_length = match *body {
        // PROTO with its version, then FRAME with its length, which may not have arrived yet.
        [PICKLE_PROTO, 4 | 5, PICKLE_FRAME, ref rest @ ..] => rest.first_chunk::<8>(),
        [PICKLE_PROTO] | [PICKLE_PROTO, 4 | 5] => None,
        _ => return Opening::No,
    };
    let Some(frame_length) = frame_length else { return Opening::More };
    if !may_be_first_frame(u64::from_le_bytes(*frame_length), message_bytes) {
        return Opening::No;
    }
    // The opcode STOP is the last byte of each pickle.
    let last_byte = b'.';
    Opening::Yes(Some(last_byte))
}

/// Whether a pickle of `pickle_length` bytes may begin with a frame of this length: its only one, or one of several.
fn may_be_first_frame(frame_length: u64, pickle_length: u64) -> bool {
    // A pickler ends a frame at this size, or earlier when it writes a large object outside of any frame.
    const FULL_FRAME_BYTES: u64 = 64 << 10;
    const MIN_FRAME_BYTES: u64 = 4;
    let Some(rest_length) = pickle_length.checked_sub(PICKLE_HEAD) else { return false };
    let is_one_of_several = (MIN_FRAME_BYTES..rest_length).contains(&frame_length) && rest_length > FULL_FRAME_BYTES;
    frame_length == rest_length || is_one_of_several
}

/// Tests whether a message of `message_bytes` bytes begins with an array whose first item may be the name of a Python class.
fn check_msgpack_opening(body: &[u8], message_bytes: u64) -> Opening {
    let name = match read_class_name(body) {
        Ok(name) => name,
        Err(opening) => return opening,
    };
    let is_usual_length = (MIN_NAME..=MAX_NAME).contains(&name.length);
    let fits_message = (name.length as u64) < message_bytes;
    if !is_usual_length || !fits_message || !name.may_be_identifier() {
        Opening::No
    } else if name.captured.len() < name.length {
        Opening::More
    } else {
        // An array has no defined last byte.
        Opening::Yes(None)
    }
}

/// The bytes after the head of an array of msgpack, which has one byte, or three from 16 items on. If there is no such head, or not all of
/// it yet, fails with that answer.
#[inline]
fn bytes_after_array_head(body: &[u8]) -> Result<&[u8], Opening> {
    match *body {
        [FIXARRAY_1..=FIXARRAY_15, ref rest @ ..] | [ARRAY_16, _, _, ref rest @ ..] => Ok(rest),
        [ARRAY_16, ..] => Err(Opening::More),
        _ => Err(Opening::No),
    }
}

/// The name of a class at the beginning of a message.
struct ClassName<'a> {
    /// Its length.
    length: usize,
    /// Its bytes, as far as they have been captured.
    captured: &'a [u8],
}

impl ClassName<'_> {
    /// Whether the captured bytes can begin the name of a class, which has a capital first.
    #[inline]
    fn may_be_identifier(&self) -> bool {
        let Some((first, others)) = self.captured.split_first() else { return true };
        first.is_ascii_uppercase() && others.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
    }
}

/// Reads the string that is the first item of a msgpack array. Its head has one byte, or two from 32 bytes on. If there is no such head, or
/// not all of it yet, fails with that answer.
#[inline]
fn read_class_name(body: &[u8]) -> Result<ClassName<'_>, Opening> {
    let (length, rest) = match *bytes_after_array_head(body)? {
        [head @ FIXSTR_0..=FIXSTR_31, ref rest @ ..] => (usize::from(head - FIXSTR_0), rest),
        [STR_8, length, ref rest @ ..] => (usize::from(length), rest),
        [] | [STR_8] => return Err(Opening::More),
        _ => return Err(Opening::No),
    };
    let captured = &rest[..rest.len().min(length)];
    Ok(ClassName { length, captured })
}
