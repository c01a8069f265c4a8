//! vLLM's messages as seen by the relay and the probe: how a message begins, and its decoder behind the generic trait.
//!
//! Probability that a message seems to begin at one position of random bytes, in addition to the frame header's 2^-7: a known length of the
//! message (6 of 256), an engine index (2^-1) or none, a list of outputs (2^-4), a known length of an output (2^-4.4), a string header
//! (2^-3), and 8 characters of a request id (each 2^-1.9). Together below 2^-30. A message without outputs is not recognised in the middle
//! of a stream.

use adapter::decode::{Decode, Decoded, Format, Opening, Refused};
use trace::event::Kind;
use trace::path::Ends;

use super::NAME;
use super::decoder::{Decoder, classify_other_message};
use super::layout::envelope_with_fields;
use super::requests::read_requests;
use super::response_id::response_id_and_choice;
use crate::msgpack::type_byte::{
    ARRAY_16, FIXARRAY_0, FIXARRAY_1, FIXARRAY_2, FIXARRAY_4, FIXARRAY_7, FIXARRAY_9, FIXARRAY_15, FIXINT_MAX,
    FIXSTR_0, FIXSTR_31, STR_8,
};

/// vLLM's message format.
pub const FORMAT: Format = Format {
    engine: NAME,
    decoder: |longest| Box::new(Decoder::new(longest)),
    may_begin_with: |byte| (FIXARRAY_0..=FIXARRAY_15).contains(&byte),
    opening: |body, _| require_opening(body).map_or_else(|certain| certain, |()| Opening::Yes(None)),
    hop: |kind| matches!(kind, Kind::TokenIds | Kind::Embedding).then_some(Ends::new("engine-core", "api-server")),
    receivers: &["api-server"],
    response_id: Some(response_id_and_choice),
    read_requests,
    read_pair_message: |_, _| None,
};

/// Characters of a request id that are tested.
const TESTED_ID_BYTES: usize = 8;

impl Decode for Decoder {
    /// Whether a vLLM engine sends or receives such a message: one that begins like a list of outputs, or one of the other known messages.
    fn recognises(&self, parts: &[&[u8]]) -> bool {
        if classify_other_message(parts).is_some() {
            return true;
        }
        let Some(first_part) = parts.first() else { return false };
        // A message is a msgpack array of 1, 2 or 4 fields, the first of which is the list of outputs. From 0.8.3 on it has 7 to 9 fields,
        // and the engine's index comes first.
        matches!(
            **first_part,
            [FIXARRAY_1 | FIXARRAY_2 | FIXARRAY_4, FIXARRAY_0..=FIXARRAY_15 | ARRAY_16, ..]
                | [FIXARRAY_7..=FIXARRAY_9, 0..=FIXINT_MAX, FIXARRAY_0..=FIXARRAY_15 | ARRAY_16, ..]
        )
    }

    fn keep_ids(&mut self) {
        // The method of the type itself, not this one.
        self.keep_ids();
    }

    fn decode<'a>(&'a mut self, parts: &[&'a [u8]]) -> Result<Decoded<'a>, Refused> {
        // The method of the type itself, not this one.
        Ok(self.decode(parts)?)
    }
}

/// Tests whether a message with outputs begins with these bytes. Returns `Ok` if it does. The error is [`Opening::No`] if it does not, or
/// [`Opening::More`] if more bytes are needed.
fn require_opening(body: &[u8]) -> Result<(), Opening> {
    let mut rest = body;
    // The message: an array of at most 15 fields.
    let first = take_byte(&mut rest)?;
    refuse_unless((FIXARRAY_0..=FIXARRAY_15).contains(&first))?;
    let fields = u32::from(first - FIXARRAY_0);
    // The layout of the message, which the number of fields determines.
    let envelope = envelope_with_fields(fields).ok_or(Opening::No)?;
    // From 0.8.3 on the engine's index comes before the list of outputs.
    if envelope.outputs_index == 1 {
        let engine_index = take_byte(&mut rest)?;
        refuse_unless(engine_index <= FIXINT_MAX)?;
    }
    // The list of outputs, which is not empty.
    let outputs = take_array_length(&mut rest)?;
    refuse_unless(outputs > 0)?;
    // The first output, an array of as many fields as one of its layouts has.
    let fields = take_array_length(&mut rest)?;
    refuse_unless(envelope.layouts.iter().any(|layout| layout.field_count == fields))?;
    // Its first field, the id of a request, of which the first characters are tested.
    let id_bytes = take_string_length(&mut rest)?;
    refuse_unless(id_bytes >= TESTED_ID_BYTES)?;
    for _ in 0..TESTED_ID_BYTES {
        let character = take_byte(&mut rest)?;
        refuse_unless(character.is_ascii_alphanumeric() || matches!(character, b'-' | b'_' | b'.' | b':'))?;
    }
    Ok(())
}

/// Removes the head of an array of fewer than 65,536 elements. Returns their number.
fn take_array_length(rest: &mut &[u8]) -> Result<u32, Opening> {
    match take_byte(rest)? {
        short @ FIXARRAY_0..=FIXARRAY_15 => Ok(u32::from(short - FIXARRAY_0)),
        // The number is in two bytes.
        ARRAY_16 => Ok(u32::from(u16::from_be_bytes([take_byte(rest)?, take_byte(rest)?]))),
        _ => Err(Opening::No),
    }
}

/// Removes the head of a string of at most 255 bytes. Returns its length.
fn take_string_length(rest: &mut &[u8]) -> Result<usize, Opening> {
    match take_byte(rest)? {
        short @ FIXSTR_0..=FIXSTR_31 => Ok(usize::from(short - FIXSTR_0)),
        // The length is in one byte.
        STR_8 => Ok(usize::from(take_byte(rest)?)),
        _ => Err(Opening::No),
    }
}

/// Removes and returns the first byte. Without one, more bytes are needed.
fn take_byte(rest: &mut &[u8]) -> Result<u8, Opening> {
    let (first, after) = rest.split_first().ok_or(Opening::More)?;
    *rest = after;
    Ok(*first)
}

/// Fails unless the condition holds, with the answer that this is no message with outputs.
fn refuse_unless(holds: bool) -> Result<(), Opening> {
    if holds { Ok(()) } else { Err(Opening::No) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_with_outputs_is_recognised_from_any_prefix_on() {
        let body = b"\x99\x00\x91\xdc\x00\x13\xd9\x32chatcmpl-6428a04600e45671";
        for length in 0..body.len() {
            let seen = (FORMAT.opening)(&body[..length], 90);
            let expected = if length < 16 { Opening::More } else { Opening::Yes(None) };
            assert_eq!(seen, expected, "{length}");
        }
    }

    #[test]
    fn other_bytes_are_rejected() {
        for body in [
            &b"\x98\x00\x90\xc0"[..],
            b"\x93\x00\x91",
            b"\x98\x80",
            b"\x98\x00\x91\x9fabc",
            b"\x98\x00\x91\x9d\xa7",
            b"\x98\x00\x91\x9d\xa9chat\x00",
            b"\x80\x04\x95",
            b"ENGINE_CORE_DEAD",
        ] {
            assert_eq!((FORMAT.opening)(body, 90), Opening::No, "{body:02x?}");
        }
    }
}
