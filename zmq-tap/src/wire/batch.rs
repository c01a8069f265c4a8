//! A decoded message.

use trace::engine::Waiter;
use trace::event::{Chunk, IdColumn, Kind};

use super::arena::Node;
use super::doc::Doc;
use super::tokens::Tokens;
use super::value::Value;

/// Serialisation format of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Python's pickle.
    Pickle {
        /// Pickle protocol: 2 to 5.
        protocol: u8,
    },
    /// msgspec's msgpack of array-like tagged structs.
    Msgpack,
}

impl Codec {
    /// Name of the codec: `pickle` or `msgpack`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pickle { .. } => "pickle",
            Self::Msgpack => "msgpack",
        }
    }
}

/// Properties of a message that follow from its class and layout alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) class: &'static str,
    pub(super) codec: Codec,
    pub(super) schema: &'static str,
    pub(super) kind: Kind,
    pub(super) ids: IdColumn,
    pub(super) waiter: Option<Waiter>,
}

/// A decoded message. Borrows the message and the decoder; drop it before decoding the next.
#[derive(Debug)]
pub struct Batch<'a> {
    pub(super) doc: Doc<'a>,
    pub(super) shape: Shape,
    pub(super) chunks: Vec<Chunk<'a>>,
    /// Buffer that the memory of `chunks` returns to.
    pub(super) home: &'a mut Vec<Chunk<'static>>,
    /// Entry of each chunk in the id column; the next field is its entry in the finish column.
    pub(super) listed: &'a [Node],
    pub(super) finished: &'a [Node],
}

impl<'a> Batch<'a> {
    /// The message's class without its module, for example `BatchTokenIDOutput`. For a `MultiTokenizerWrapper` (0.5.2, 0.5.3), the class
    /// inside it.
    pub fn class(&self) -> &'static str {
        self.shape.class
    }

    /// Serialisation format of the message.
    pub fn codec(&self) -> Codec {
        self.shape.codec
    }

    /// The releases whose layout it fits: `0.5.9`, `0.5.12..0.5.13.post1`, or several spans separated by commas. `unlisted` if the class is
    /// known and the layout is not in the table, but every field that was read is valid.
    pub fn schema(&self) -> &'static str {
        self.shape.schema
    }

    /// Behaviour of a waiter in these releases; `None` if they differ or are not known.
    pub fn waiter(&self) -> Option<Waiter> {
        self.shape.waiter
    }

    /// Kind of message.
    pub fn kind(&self) -> Kind {
        self.shape.kind
    }

    /// Meaning of the id column.
    pub fn ids(&self) -> IdColumn {
        self.shape.ids
    }

    /// Number of requests in the message. 0 for control messages and idle batches.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Whether there are no requests: true for control messages and idle batches.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The chunks, ready for [`trace::event::Frame`]. An `AbortReq` yields one chunk for each request it names.
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

    /// The token ids listed for a chunk, unchanged from the wire; none when the column is absent.
    pub fn tokens(&self, row: usize) -> Tokens<'a> {
        self.listed
            .get(row)
            .map_or(Tokens::EMPTY, |node| Tokens::of(self.doc, *node))
    }

    /// The finish reason of a chunk, unchanged from the wire; `None` when the request continues.
    pub fn finish(&self, row: usize) -> Option<Value<'a>> {
        let node = *self.finished.get(row)?;
        (!self.doc.is_nil(node)).then(|| Value::of(self.doc, node))
    }

    /// The first request that an `AbortReq` names; `None` for other messages and for "abort all".
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

/// Returns an empty vector with the memory of `chunks`. The standard library collects a vector's own iterator in place, so only the
/// lifetime changes.
pub(super) fn recycle<'to>(mut chunks: Vec<Chunk<'_>>) -> Vec<Chunk<'to>> {
    chunks.clear();
    chunks
        .into_iter()
        .map(|_| unreachable!("the vector was cleared"))
        .collect()
}
