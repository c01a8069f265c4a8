//! Decoder of the compressed header fields of a connection (HPACK), and those that decide how a response is read.

use std::borrow::Cow;
use std::fmt;

use loona_hpack::Decoder;

use crate::body_parser::ContentParser;
use crate::http::parse_decimal;

/// Largest table of earlier fields in bytes. Clients usually permit 4 KiB.
const MAX_TABLE: usize = 64 << 10;

/// Fields of a response that decide how its body is read.
pub(super) enum ResponseHead {
    /// Another response of the same stream follows.
    Informational,
    /// Start of the response.
    Final(ResponseFields),
    /// The fields cannot be decompressed.
    Unknown,
}

/// Facts about a response and its body.
pub(super) struct ResponseFields {
    pub(super) content: ContentParser,
    pub(super) status: Option<u16>,
    pub(super) body_bytes: Option<u64>,
}

/// Values of the fields of interest in one block.
#[derive(Default)]
struct FieldValues {
    status: Option<u16>,
    body_bytes: Option<u64>,
    content_type: Option<Vec<u8>>,
    is_compressed: bool,
}

impl FieldValues {
    /// Keeps the value of a field that decides how the body is read.
    fn record_field(&mut self, name: &[u8], value: Cow<'_, [u8]>) {
        match name {
            b":status" => self.status = parse_decimal(&value),
            b"content-length" => self.body_bytes = parse_decimal(&value),
            b"content-type" => self.content_type = Some(value.into_owned()),
            b"content-encoding" => self.is_compressed = !value.eq_ignore_ascii_case(b"identity"),
            _ => {}
        }
    }
}

/// Decoder of one connection's header fields. Their compression refers to earlier ones, so it needs all of them.
#[derive(Default)]
pub(super) struct FieldDecoder {
    /// `None` once a field has been missed.
    decoder: Option<Decoder<'static>>,
}

impl fmt::Debug for FieldDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FieldDecoder").field(&self.decoder.is_some()).finish()
    }
}

impl FieldDecoder {
    /// Decoder of a connection whose fields will all be observed.
    pub(super) fn for_whole_connection() -> Self {
        let mut decoder = Decoder::new();
        decoder.set_max_allowed_table_size(MAX_TABLE);
        Self { decoder: Some(decoder) }
    }

    /// Records that a field block was not decoded. All later blocks may refer to its fields.
    pub(super) fn forget_table(&mut self) {
        self.decoder = None;
    }

    /// Decompresses a block of fields. [`ResponseHead::Unknown`] if the block is invalid, or fields before it were missed.
    pub(super) fn decode_block(&mut self, block: &[u8]) -> ResponseHead {
        let Some(decoder) = &mut self.decoder else { return ResponseHead::Unknown };
        let mut values = FieldValues::default();
        let decoded = decoder.decode_with_cb(block, |name, value| values.record_field(&name, value));
        // The sender's table of fields has changed with this block, so later blocks cannot be read either.
        if decoded.is_err() {
            self.forget_table();
            return ResponseHead::Unknown;
        }
        let FieldValues { status, body_bytes, content_type, is_compressed } = values;
        if status.is_some_and(|status| (100..200).contains(&status)) {
            return ResponseHead::Informational;
        }
        let content = ContentParser::for_content(content_type.as_deref(), is_compressed);
        ResponseHead::Final(ResponseFields { content, status, body_bytes })
    }
}
