//! Header fields of HTTP/2 responses. The compression refers to earlier fields of the connection, so it needs all of them.

use std::fmt;

use loona_hpack::Decoder;

use super::super::Unreadable;
use super::super::payload::Content;

/// Largest table of earlier fields in bytes. Clients usually permit 4 KiB.
const MAX_TABLE: usize = 64 << 10;

/// Fields of a response that decide how its body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Response {
    /// Another response of the same stream follows.
    Informational,
    /// Content of the body, and why it cannot be read.
    Final(Content, Option<Unreadable>),
    /// The fields cannot be decompressed.
    Unknown,
}

/// Decoder of one connection's header fields.
pub(super) struct Fields(Option<Decoder<'static>>);

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fields").field(&self.0.is_some()).finish()
    }
}

impl Fields {
    /// `from_start`: every field of the connection will be observed.
    pub(super) fn new(from_start: bool) -> Self {
        Self(from_start.then(|| {
            let mut decoder = Decoder::new();
            decoder.set_max_allowed_table_size(MAX_TABLE);
            decoder
        }))
    }

    /// Records that a field block was not observed completely.
    pub(super) fn missed(&mut self) {
        self.0 = None;
    }

    /// Decompresses a block of fields.
    pub(super) fn read(&mut self, block: &[u8]) -> Response {
        let Some(decoder) = &mut self.0 else {
            return Response::Unknown;
        };
        let (mut kind, mut compressed, mut informational) = (None, false, false);
        let read = decoder.decode_with_cb(block, |name, value| match &*name {
            b":status" => informational = value.starts_with(b"1"),
            b"content-type" => kind = Some(value.into_owned()),
            b"content-encoding" => compressed = !value.eq_ignore_ascii_case(b"identity"),
            _ => {}
        });
        if read.is_err() {
            self.missed();
            return Response::Unknown;
        }
        if informational {
            return Response::Informational;
        }
        let (content, unreadable) = Content::of(kind.as_deref(), compressed);
        Response::Final(content, unreadable)
    }
}
