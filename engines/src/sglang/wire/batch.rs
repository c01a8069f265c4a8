//! A decoded message.

use adapter::decode::{Decoded, Shape};
use trace::event::{Chunk, EngineTimes};

use super::arena::Node;
use super::doc::Doc;
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
    /// Entry of each chunk in the finish column.
    pub(super) finished: &'a [Node],
}

impl<'a> Batch<'a> {
    /// The generic part of the message.
    pub(crate) fn into_decoded(self) -> Decoded<'a> {
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

    /// The chunks, ready for [`trace::event::Frame`]: none for control messages and idle batches. An `AbortReq` yields one for each request it
    /// names.
    pub fn chunks(&self) -> &[Chunk<'a>] {
        self.decoded.chunks()
    }

    /// The engine's times of a chunk's request, if the chunk holds its first tokens.
    pub fn engine_times(&self, row: usize) -> EngineTimes {
        self.decoded.engine_times(row)
    }

    /// The finish reason of a chunk, unchanged from the wire; `None` when the request continues.
    pub fn finish(&self, row: usize) -> Option<Value<'a>> {
        let node = *self.finished.get(row)?;
        (!self.doc.is_nil(node)).then(|| Value::of_node(self.doc, node))
    }
}
