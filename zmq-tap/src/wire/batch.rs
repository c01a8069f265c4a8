//! What one message says.

use trace::engine::Waiter;
use trace::event::{Chunk, IdColumn, Kind};

use super::arena::Node;
use super::doc::Doc;
use super::tokens::Tokens;
use super::value::Value;

/// How a message was serialised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Python's pickle.
    Pickle {
        /// 2 to 5.
        protocol: u8,
    },
    /// msgspec's array-like tagged msgpack.
    Msgpack,
}

impl Codec {
    /// `pickle` or `msgpack`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pickle { .. } => "pickle",
            Self::Msgpack => "msgpack",
        }
    }
}

/// What is known of a message from its class and layout alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) class: &'static str,
    pub(super) codec: Codec,
    pub(super) schema: &'static str,
    pub(super) kind: Kind,
    pub(super) ids: IdColumn,
    pub(super) waiter: Option<Waiter>,
}

/// A decoded message. Borrows the message and the decoder; drop it to decode the next.
#[derive(Debug)]
pub struct Batch<'a> {
    pub(super) doc: Doc<'a>,
    pub(super) shape: Shape,
    pub(super) chunks: Vec<Chunk<'a>>,
    /// Where the chunks' memory goes back to.
    pub(super) home: &'a mut Vec<Chunk<'static>>,
    /// For each chunk its entry in the id column and in the finish column.
    pub(super) listed: &'a [Node],
    pub(super) finished: &'a [Node],
}

impl<'a> Batch<'a> {
    /// The message's class without its module, for example `BatchTokenIDOutput`. Of a `MultiTokenizerWrapper` (0.5.2,
    /// 0.5.3) the class inside it.
    pub fn class(&self) -> &'static str {
        self.shape.class
    }

    /// How it was serialised.
    pub fn codec(&self) -> Codec {
        self.shape.codec
    }

    /// The releases whose layout it fits: `0.5.9`, `0.5.12..0.5.13.post1`, several spans with commas between;
    /// `unlisted` when its class is known and its layout is none of the table's, but everything read of it is sound.
    pub fn schema(&self) -> &'static str {
        self.shape.schema
    }

    /// What a waiter does in these releases; `None` where they differ or are not known.
    pub fn waiter(&self) -> Option<Waiter> {
        self.shape.waiter
    }

    /// What kind of message it is.
    pub fn kind(&self) -> Kind {
        self.shape.kind
    }

    /// What its id column means.
    pub fn ids(&self) -> IdColumn {
        self.shape.ids
    }

    /// How many requests it speaks of. 0 for control messages and idle batches.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// True for control messages and idle batches.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Its chunks, ready for [`trace::event::Frame`]. An `AbortReq` gives one chunk for the request it names.
    pub fn chunks(&self) -> &[Chunk<'a>] {
        &self.chunks
    }

    /// One chunk.
    ///
    /// # Panics
    /// When `row` is not below [`Batch::len`].
    pub fn chunk(&self, row: usize) -> Chunk<'a> {
        self.chunks[row]
    }

    /// The token ids listed for a chunk, as they are on the wire; none when the column is absent.
    pub fn tokens(&self, row: usize) -> Tokens<'a> {
        self.listed
            .get(row)
            .map_or(Tokens::EMPTY, |node| Tokens::of(self.doc, *node))
    }

    /// The finish reason of a chunk as it is on the wire; `None` when the request goes on.
    pub fn finish(&self, row: usize) -> Option<Value<'a>> {
        let node = *self.finished.get(row)?;
        (!self.doc.is_nil(node)).then(|| Value::of(self.doc, node))
    }

    /// The request that an `AbortReq` names; `None` for other messages and for "abort all".
    pub fn abort_rid(&self) -> Option<&'a str> {
        self.chunks
            .first()
            .filter(|_| self.shape.kind == Kind::Abort)
            .map(|chunk| chunk.rid)
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        *self.home = recycle(std::mem::take(&mut self.chunks));
    }
}

/// An empty vector with the memory of `chunks`: the standard library collects a vector's own iterator in place, so only
/// the lifetime changes.
pub(super) fn recycle<'to>(mut chunks: Vec<Chunk<'_>>) -> Vec<Chunk<'to>> {
    chunks.clear();
    chunks
        .into_iter()
        .map(|_| unreachable!("the vector was cleared"))
        .collect()
}
