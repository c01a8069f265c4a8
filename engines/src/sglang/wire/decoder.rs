//! The decoder: turns a message into a [`Batch`] in memory that it reuses.

use adapter::decode::{Decoded, Shape, recycle};
use trace::event::{Chunk, IdColumn, Kind};

use super::arena::Arena;
use super::batch::{Batch, Codec};
use super::columns::{Rowwise, Table};
use super::doc::Doc;
use super::identify::{self, Found};
use super::schema::Layout;
use super::{Limits, Undecoded, not_a_codec, pickle, tokens};
use crate::sglang::NAME;

/// Label of a layout that is not in the table.
const UNLISTED: &str = "unlisted";

/// Decodes messages one after another. After the first few messages it no longer allocates.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    payload: bool,
    text: bool,
    arena: Arena,
    scratch: pickle::Scratch,
    rows: Rowwise,
    chunks: Vec<Chunk<'static>>,
    last: Option<&'static Layout>,
}

impl Decoder {
    /// Creates a decoder that counts token ids and does not collect them.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            payload: false,
            text: false,
            arena: Arena::default(),
            scratch: pickle::Scratch::default(),
            rows: Rowwise::default(),
            chunks: Vec::new(),
            last: None,
        }
    }

    /// Also fills [`Chunk::ids`].
    #[must_use]
    pub fn with_ids(mut self) -> Self {
        self.keep_ids();
        self
    }

    /// Fills [`Chunk::ids`] from the next message on.
    pub fn keep_ids(&mut self) {
        self.payload = true;
    }

    /// Fills [`Chunk::text`] from the next message on.
    pub fn keep_text(&mut self) {
        self.text = true;
    }

    /// Decodes one message. On error no part of the message is used.
    pub fn decode<'a>(&'a mut self, message: &'a [u8]) -> Result<Batch<'a>, Undecoded> {
        if message.len() > self.limits.message {
            return Err(Undecoded::Limit { limit: "message", value: self.limits.message });
        }
        let Self { limits, payload, text, arena, scratch, rows, chunks: home, last } = self;
        rows.clear();
        let (codec, found) = match message {
            // A pickle ends with the opcode STOP.
            [0x80, .., b'.'] => {
                let (value, protocol) = pickle::load(message, arena, scratch, limits)?;
                let doc = Doc { bytes: message, arena };
                (Codec::Pickle { protocol }, identify::pickled(doc, value, rows, *last)?)
            }
            [0x80, 2..=5, ..] => return Err(Undecoded::Truncated { at: message.len() }),
            // In msgpack 0x80 is an empty map, but every message is an array.
            [0x90..=0x9f | 0xdc | 0xdd, ..] => {
                arena.clear();
                (Codec::Msgpack, identify::packed(message, &mut rows.values, limits)?)
            }
            _ => return Err(not_a_codec(message)),
        };
        if let Found::Listed(layout) = found {
            *last = Some(layout);
        }
        let doc = Doc { bytes: message, arena };
        let mut chunks: Vec<Chunk<'a>> = std::mem::take(home);
        match fill(doc, codec, &found, limits, *text, rows, &mut chunks) {
            Ok(shape) => {
                let Rowwise { listed, finished, ids, .. } = rows;
                if *payload {
                    for node in &*listed {
                        tokens::extend(ids, doc, *node);
                    }
                    let mut ids = ids.as_slice();
                    for chunk in &mut chunks {
                        (chunk.ids, ids) = ids.split_at(chunk.listed.unwrap_or(0) as usize);
                    }
                }
                Ok(Batch { doc, codec, decoded: Decoded::new(shape, chunks, home), finished })
            }
            Err(why) => {
                *home = recycle(chunks);
                Err(why)
            }
        }
    }
}

/// Reads the columns into `chunks`.
fn fill<'a>(
    doc: Doc<'a>,
    codec: Codec,
    found: &Found,
    limits: &Limits,
    text: bool,
    rows: &mut Rowwise,
    chunks: &mut Vec<Chunk<'a>>,
) -> Result<Shape, Undecoded> {
    let (layout, columns) = (found.layout(), found.columns());
    let Rowwise { values, listed, finished, .. } = rows;
    let table = Table { doc, class: layout.class, columns, values, limits };
    let mut ids = IdColumn::Absent;
    match layout.kind {
        Kind::Control | Kind::Failed => {}
        Kind::Abort => table.aborted(chunks)?,
        Kind::TokenIds | Kind::Text | Kind::Embedding | Kind::Multimodal => {
            table.requests(chunks)?;
            table.counts(chunks, finished)?;
            if table.listed(chunks, listed)? || chunks.is_empty() {
                ids = id_column(layout.ids, chunks);
            }
        }
    }
    if matches!(layout.kind, Kind::TokenIds | Kind::Text) && !chunks.is_empty() {
        table.generates(chunks)?;
        if text {
            table.texts(chunks)?;
        }
    }
    let (schema, waiter) = match found {
        Found::Listed(layout) => (layout.releases, layout.waiter),
        Found::Unlisted(..) => (UNLISTED, None),
    };
    Ok(Shape { engine: NAME, class: layout.class, codec: codec.as_str(), schema, kind: layout.kind, ids, waiter })
}

/// Meaning of the id column: taken from the layout or, if the layout is ambiguous, from evidence in this frame.
fn id_column(ids: IdColumn, chunks: &[Chunk<'_>]) -> IdColumn {
    // A cumulative list always has as many ids as its count states.
    let is_delta = || chunks.iter().any(|chunk| chunk.listed < chunk.completion_tokens);
    if ids == IdColumn::Undecided && is_delta() { IdColumn::Delta } else { ids }
}
