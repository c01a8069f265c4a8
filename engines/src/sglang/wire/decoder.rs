//! The decoder: turns a message into a [`Batch`] in memory that it reuses.

use adapter::decode::{Decoded, Shape, recycle};
use trace::event::{Chunk, IdColumn, Kind};

use super::arena::{Arena, Node};
use super::batch::{Batch, Codec};
use super::columns::{MessageColumns, RowBuffers};
use super::doc::Doc;
use super::identify::{self, FoundLayout};
use super::schema::{self, MessageLayout};
use super::{Limits, Undecoded, not_a_codec, pickle, tokens};
use crate::sglang::NAME;

/// Label of a layout that is not in the table.
const UNLISTED: &str = "unlisted";

/// Decodes messages one after another. After the first few messages it no longer allocates.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    /// Token ids are collected, and not only counted.
    keeps_ids: bool,
    /// The text of chunks is read.
    keeps_text: bool,
    arena: Arena,
    scratch: pickle::Scratch,
    rows: RowBuffers,
    chunks: Vec<Chunk<'static>>,
    last_layout: Option<&'static MessageLayout>,
}

impl Decoder {
    /// Creates a decoder that counts token ids and does not collect them.
    pub fn new(limits: Limits) -> Self {
        // So that the first message does not wait for it.
        schema::load_layouts();
        Self {
            limits,
            keeps_ids: false,
            keeps_text: false,
            arena: Arena::default(),
            scratch: pickle::Scratch::default(),
            rows: RowBuffers::default(),
            chunks: Vec::new(),
            last_layout: None,
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
        self.keeps_ids = true;
    }

    /// Fills [`Chunk::text`] from the next message on.
    pub fn keep_text(&mut self) {
        self.keeps_text = true;
    }

    /// Decodes one message: finds its layout (the class and its fields), and then reads the columns, which have an item for each request.
    /// On error no part of the message is used.
    pub fn decode<'a>(&'a mut self, message: &'a [u8]) -> Result<Batch<'a>, Undecoded> {
        if message.len() > self.limits.message {
            return Err(Undecoded::Limit { limit: "message", value: self.limits.message });
        }
        // `chunk_memory` is taken for the chunks of this message, and returns when the batch is dropped, or at an error.
        let Self { limits, keeps_ids, keeps_text, arena, scratch, rows, chunks: chunk_memory, last_layout } = self;
        // The buffers keep their memory for the next message.
        rows.clear();
        let (codec, found) = load_and_identify_message(message, arena, scratch, rows, limits, *last_layout)?;
        // A layout that no release has is not tried on the next message.
        if let FoundLayout::Listed(layout) = found {
            *last_layout = Some(layout);
        }
        let doc = Doc { bytes: message, arena };
        let mut chunks: Vec<Chunk<'a>> = std::mem::take(chunk_memory);
        match read_columns(doc, codec, &found, limits, *keeps_text, rows, &mut chunks) {
            Ok(shape) => {
                let RowBuffers { listed, finished, ids, times, .. } = rows;
                if *keeps_ids {
                    collect_ids_into_chunks(&mut chunks, doc, listed, ids);
                }
                let mut decoded = Decoded::new(shape, chunks, chunk_memory);
                decoded.engine_seconds = times;
                Ok(Batch { doc, codec, decoded, finished })
            }
            Err(why) => {
                *chunk_memory = recycle(chunks);
                Err(why)
            }
        }
    }
}

/// Finds codec and layout of a message. Leaves its fields in `rows`, and what a pickle builds in `arena`.
#[inline]
fn load_and_identify_message(
    message: &[u8],
    arena: &mut Arena,
    scratch: &mut pickle::Scratch,
    rows: &mut RowBuffers,
    limits: &Limits,
    last_layout: Option<&'static MessageLayout>,
) -> Result<(Codec, FoundLayout), Undecoded> {
    match message {
        // A pickle ends with the opcode STOP.
        [0x80, .., b'.'] => {
            let (value, protocol) = pickle::load(message, arena, scratch, limits)?;
            let doc = Doc { bytes: message, arena };
            Ok((Codec::Pickle { protocol }, identify::identify_pickle(doc, value, rows, last_layout)?))
        }
        [0x80, 2..=5, ..] => Err(Undecoded::Truncated { at: message.len() }),
        // In msgpack 0x80 is an empty map, but every message is an array.
        [0x90..=0x9f | 0xdc | 0xdd, ..] => {
            arena.clear();
            Ok((Codec::Msgpack, identify::identify_msgpack(message, &mut rows.values, limits)?))
        }
        _ => Err(not_a_codec(message)),
    }
}

/// Gives each chunk its token ids. Collects all ids that the message lists in one buffer, one chunk after the other.
#[inline]
fn collect_ids_into_chunks<'a>(chunks: &mut [Chunk<'a>], doc: Doc<'a>, id_lists: &[Node], id_buffer: &'a mut Vec<i64>) {
    for node in id_lists {
        tokens::append_ids(id_buffer, doc, *node);
    }
    let mut ids_left = id_buffer.as_slice();
    for chunk in chunks {
        (chunk.ids, ids_left) = ids_left.split_at(chunk.listed.unwrap_or(0) as usize);
    }
}

/// Reads the columns into `chunks`, one for each request, and into the buffers of `rows`. Returns the properties of the message.
fn read_columns<'a>(
    doc: Doc<'a>,
    codec: Codec,
    found: &FoundLayout,
    limits: &Limits,
    reads_text: bool,
    rows: &mut RowBuffers,
    chunks: &mut Vec<Chunk<'a>>,
) -> Result<Shape, Undecoded> {
    let layout = found.layout();
    let columns = found.columns();
    let RowBuffers { values, listed, finished, times, nested, .. } = rows;
    let table = MessageColumns { doc, class: layout.class, columns, values, limits };
    let mut ids = IdColumn::Absent;
    match layout.kind {
        Kind::Control | Kind::Failed => {}
        Kind::Abort => table.push_chunk_of_each_aborted_request(chunks)?,
        Kind::TokenIds | Kind::Text | Kind::Embedding | Kind::Multimodal => {
            table.push_chunk_of_each_request(chunks)?;
            table.read_counts_and_finish_reasons(chunks, finished)?;
            let has_id_column = table.read_id_counts_if_column_present(chunks, listed)?;
            // The column of ids has a meaning if it is present. A batch without requests does not show that, so its layout alone decides.
            if has_id_column || chunks.is_empty() {
                ids = meaning_of_id_column(layout.ids, chunks);
            }
            // Only the scheduler's messages have the original times. The detokenizer shifts them by a clock difference that it measured.
            if matches!(layout.kind, Kind::TokenIds | Kind::Embedding) {
                table.append_first_token_times(chunks, nested, times);
            }
        }
    }
    let has_generated_tokens = matches!(layout.kind, Kind::TokenIds | Kind::Text) && !chunks.is_empty();
    if has_generated_tokens {
        table.check_generated_fields(chunks)?;
        if reads_text {
            table.read_texts(chunks)?;
        }
    }
    Ok(shape_of_message(found, codec, ids))
}

/// Properties of a message with this layout. The releases, and how they process waiting chunks, are known only of a listed layout.
fn shape_of_message(found: &FoundLayout, codec: Codec, ids: IdColumn) -> Shape {
    let (schema, waiter) = match found {
        FoundLayout::Listed(layout) => (layout.releases, layout.waiter),
        FoundLayout::Unlisted(..) => (UNLISTED, None),
    };
    let layout = found.layout();
    Shape { engine: NAME, class: layout.class, codec: codec.as_str(), schema, kind: layout.kind, ids, waiter }
}

/// Meaning of the id column: taken from the layout or, if the layout is ambiguous, from evidence in this frame.
fn meaning_of_id_column(layout_meaning: IdColumn, chunks: &[Chunk<'_>]) -> IdColumn {
    // A cumulative list has as many ids as the count states, so a shorter one holds only the new ids. A missing list, `None`, is less than
    // every count.
    let lists_fewer =
        layout_meaning == IdColumn::Undecided && chunks.iter().any(|chunk| chunk.listed < chunk.completion_tokens);
    if lists_fewer { IdColumn::Delta } else { layout_meaning }
}
