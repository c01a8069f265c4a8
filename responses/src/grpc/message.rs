//! Messages of SGLang's native gRPC service (`sglang.runtime.v1`), in the wire format of protobuf.
//!
//! A message does not name its type, so the type follows from the fields. `GenerateResponse` and `TextGenerateResponse` differ only in
//! field 1: token ids, or text.

use super::super::event::{Completion, ResponseForm};
use super::super::fields::BorrowedText;

/// Number of the field with the ids, the text or the JSON of a message.
const CONTENT: u64 = 1;
/// Number of the field with entries of `meta_info`. In `OpenAIStreamChunk`, it is that of `finished`.
const META_OR_FINISHED: u64 = 2;
/// Number of the field `finished` in `GenerateResponse`.
const FINISHED: u64 = 3;

/// A message by its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrpcMessage<'a> {
    /// `GenerateResponse` or `TextGenerateResponse`.
    Output(GrpcOutput<'a>),
    /// `OpenAIStreamChunk`: JSON of an `OpenAI` endpoint. `is_whole_body`: the response does not stream.
    Json { json: &'a [u8], is_whole_body: bool },
    /// Neither text nor bytes, such as the result of a health check. `is_last`: the end of a stream.
    Empty { is_last: bool },
    /// Another type, or invalid.
    Other,
}

/// Output of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GrpcOutput<'a> {
    /// Field 1: the ids, or text.
    ids: &'a [u8],
    /// `meta_info["id"]`, in JSON.
    rid: &'a [u8],
    /// `meta_info["completion_tokens"]`.
    pub(super) completion_tokens: u32,
    /// Whether the request has a finish reason.
    is_finished: bool,
    /// The last message of its response.
    pub(super) is_last: bool,
    /// Whether the response has no other message.
    pub(super) is_whole_body: bool,
}

impl<'a> GrpcMessage<'a> {
    /// Parses a message without its prefix; `Other` if it is invalid.
    pub(super) fn parse(message: &'a [u8]) -> Self {
        Self::parse_fields(message).unwrap_or(Self::Other)
    }

    /// Parses the fields of a message. `None` if it is of no known kind. An output of a request has the fields 1 (ids or text), 2
    /// (`meta_info`) and 3 (`finished`), and a chunk of an `OpenAI` endpoint the fields 1 (JSON) and 2 (`finished`).
    fn parse_fields(mut rest: &'a [u8]) -> Option<Self> {
        let mut content_field = None;
        let mut meta = MetaEntries::default();
        let mut is_last = false;
        let mut has_bytes = false;
        while !rest.is_empty() {
            let MessageField { number, value } = take_field(&mut rest)?;
            match value {
                FieldValue::Bytes(bytes) => {
                    has_bytes = true;
                    if number == CONTENT {
                        // The field is not repeated in any message of interest.
                        if content_field.is_some() {
                            return None;
                        }
                        content_field = Some(bytes);
                    } else if number == META_OR_FINISHED {
                        let is_valid = meta.record_entry(&MetaEntry::parse(bytes)?);
                        if !is_valid {
                            return None;
                        }
                    }
                }
                // `finished` is a number, whichever of the two fields it is.
                FieldValue::Number(value) if matches!(number, META_OR_FINISHED | FINISHED) => is_last = value != 0,
                FieldValue::Number(_) | FieldValue::Fixed => {}
            }
        }
        // Neither an output nor a chunk is without text or bytes.
        if !has_bytes {
            return Some(Self::Empty { is_last });
        }
        let content = content_field.unwrap_or_default();
        Self::from_content(content, meta, is_last)
    }

    /// Classifies a message by its content of field 1 and its `meta_info`, which only outputs have. `is_last`: the message is the last of
    /// its response. `None` if it is of no known kind.
    fn from_content(content: &'a [u8], meta: MetaEntries<'a>, is_last: bool) -> Option<Self> {
        if let Some(rid) = meta.rid {
            return Some(Self::Output(GrpcOutput {
                ids: content,
                rid,
                completion_tokens: meta.completion_tokens?,
                is_finished: meta.is_finished,
                is_last,
                // Set by the caller, which knows whether other messages came before.
                is_whole_body: false,
            }));
        }
        let is_json = content.trim_ascii_start().first() == Some(&b'{');
        is_json.then_some(Self::Json { json: content, is_whole_body: is_last })
    }
}

impl GrpcOutput<'_> {
    /// Number of token ids in field 1. `None` if it can only be text.
    pub(super) fn count_ids(&self) -> Option<u32> {
        // Each id is a varint of one or more bytes, and only its last byte is below this number.
        const LAST_BYTE_END: u8 = 0x80;
        let ends_with_varint = self.ids.last().is_none_or(|byte| *byte < LAST_BYTE_END);
        if !ends_with_varint {
            return None;
        }
        let count = self.ids.iter().filter(|byte| **byte < LAST_BYTE_END).count();
        u32::try_from(count).ok()
    }

    /// Whether both are output of one request.
    pub(super) fn has_same_request(&self, other: &Self) -> bool {
        self.rid == other.rid
    }

    /// Whether field 1 must be token ids, because it is not valid text.
    pub(super) fn must_be_ids(&self) -> bool {
        std::str::from_utf8(self.ids).is_err()
    }

    /// The output as an event of `/generate`. Text does not show its number of tokens. `None` if the request id is empty or invalid.
    pub(super) fn as_completion(&self, is_text: bool) -> Option<Completion<'_>> {
        let BorrowedText(rid) = serde_json::from_slice(self.rid).ok()?;
        if rid.is_empty() {
            return None;
        }
        Some(Completion {
            rid,
            // Ids are read like those of the engine's own HTTP endpoint.
            form: if is_text { ResponseForm::GrpcText } else { ResponseForm::Generate },
            tokens: if is_text { None } else { self.count_ids() },
            stated_tokens: Some(self.completion_tokens),
            finished: self.is_finished,
            is_whole_body: self.is_whole_body,
            ..Completion::default()
        })
    }
}

/// Entries of `meta_info`, whose values are JSON.
#[derive(Clone, Copy, Debug, Default)]
struct MetaEntries<'a> {
    rid: Option<&'a [u8]>,
    completion_tokens: Option<u32>,
    is_finished: bool,
}

struct MetaEntry<'a> {
    key: &'a [u8],
    json: &'a [u8],
}

impl<'a> MetaEntries<'a> {
    /// Records an entry of `meta_info`: a key, and a value in JSON. Returns false if the value is invalid.
    fn record_entry(&mut self, entry: &MetaEntry<'a>) -> bool {
        match entry.key {
            b"id" => self.rid = Some(entry.json),
            b"completion_tokens" => match serde_json::from_slice(entry.json) {
                Ok(count) => self.completion_tokens = Some(count),
                Err(_) => return false,
            },
            b"finish_reason" => self.is_finished = entry.json != b"null",
            _ => {}
        }
        true
    }
}

impl<'a> MetaEntry<'a> {
    /// Parses an entry of a protobuf map. `None` if it is invalid.
    fn parse(mut rest: &'a [u8]) -> Option<Self> {
        let mut key: &[u8] = &[];
        let mut json: &[u8] = &[];
        while !rest.is_empty() {
            let MessageField { number, value: FieldValue::Bytes(value) } = take_field(&mut rest)? else {
                return None;
            };
            // Protobuf writes the key of a map entry as field 1, and its value as field 2.
            match number {
                1 => key = value,
                2 => json = value,
                _ => return None,
            }
        }
        Some(Self { key, json })
    }
}

/// A field of a protobuf message.
struct MessageField<'a> {
    number: u64,
    value: FieldValue<'a>,
}

enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed,
}

/// Wire types of protobuf.
const WIRE_VARINT: u64 = 0;
const WIRE_FIXED_64: u64 = 1;
const WIRE_LENGTH: u64 = 2;
const WIRE_FIXED_32: u64 = 5;

/// Removes and returns the next field of a message; `None` if it is invalid. Numbers of fixed length are skipped.
fn take_field<'a>(rest: &mut &'a [u8]) -> Option<MessageField<'a>> {
    let tag = take_varint(rest)?;
    // The lower three bits of a tag are the wire type, the others the number of the field.
    let wire_type = tag & 7;
    let number = tag >> 3;
    if number == 0 {
        return None;
    }
    let value = match wire_type {
        WIRE_VARINT => FieldValue::Number(take_varint(rest)?),
        WIRE_LENGTH => {
            let length = take_varint(rest)?;
            let length = usize::try_from(length).ok()?;
            FieldValue::Bytes(take_bytes(rest, length)?)
        }
        WIRE_FIXED_64 => {
            take_bytes(rest, 8)?;
            FieldValue::Fixed
        }
        WIRE_FIXED_32 => {
            take_bytes(rest, 4)?;
            FieldValue::Fixed
        }
        _ => return None,
    };
    Some(MessageField { number, value })
}

/// Removes and returns the next `length` bytes; `None` if there are fewer.
fn take_bytes<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (value, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(value)
}

/// Removes and returns a number in groups of seven bits, the lowest first. `None` if it is incomplete or has more than 64 bits.
fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        // The upper bit says that another group follows.
        if *byte < 0x80 {
            return Some(value);
        }
    }
    None
}
