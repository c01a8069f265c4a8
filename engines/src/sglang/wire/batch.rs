//! A decoded message.

use trace::event::{Chunk, Kind};
use zmq_tap::decode::{Decoded, Shape};

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

/// A decoded message. Borrows the message and the decoder; drop it before decoding the next.
#[derive(Debug)]
pub struct Batch<'a> {
    pub(super) doc: Doc<'a>,
    pub(super) codec: Codec,
    pub(super) decoded: Decoded<'a>,
    /// Entry of each chunk in the id column; the next field is its entry in the finish column.
    pub(super) listed: &'a [Node],
    pub(super) finished: &'a [Node],
}

impl<'a> Batch<'a> {
    /// The generic part of the message.
    pub fn generic(self) -> Decoded<'a> {
        self.decoded
    }

    /// Properties that follow from the message's class and layout.
    pub fn shape(&self) -> &Shape {
        self.decoded.shape()
    }

    /// Serialisation format of the message.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Number of requests in the message. 0 for control messages and idle batches.
    pub fn len(&self) -> usize {
        self.chunks().len()
    }

    /// Whether there are no requests: true for control messages and idle batches.
    pub fn is_empty(&self) -> bool {
        self.chunks().is_empty()
    }

    /// The chunks, ready for [`trace::event::Frame`]. An `AbortReq` yields one chunk for each request it names.
    pub fn chunks(&self) -> &[Chunk<'a>] {
        self.decoded.chunks()
    }

    /// One chunk.
    ///
    /// # Panics
    /// When `row` is not below [`Batch::len`].
    pub fn chunk(&self, row: usize) -> Chunk<'a> {
        self.chunks()[row]
    }

    /// The token ids listed for a chunk, unchanged from the wire; none when the column is absent.
    pub fn tokens(&self, row: usize) -> Tokens<'a> {
        self.listed.get(row).map_or(Tokens::EMPTY, |node| Tokens::of(self.doc, *node))
    }

    /// The finish reason of a chunk, unchanged from the wire; `None` when the request continues.
    pub fn finish(&self, row: usize) -> Option<Value<'a>> {
        let node = *self.finished.get(row)?;
        (!self.doc.is_nil(node)).then(|| Value::of(self.doc, node))
    }

    /// The first request that an `AbortReq` names; `None` for other messages and for "abort all".
    pub fn abort_rid(&self) -> Option<&'a str> {
        self.chunks().first().filter(|_| self.decoded.shape().kind == Kind::Abort).map(|chunk| chunk.rid)
    }
}
