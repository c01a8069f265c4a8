//! Decoder for SGLang's ZMQ messages, from bytes to types. No I/O, no `unsafe`.
//!
//! ```
//! use engines::sglang::wire::{Decoder, Limits};
//!
//! let mut decoder = Decoder::new(Limits::default());
//! match decoder.decode(b"\x80\x04N.") {
//!     Ok(batch) => println!("{} with {} requests", batch.shape().class, batch.chunks().len()),
//!     Err(why) => println!("{}: {why}", why.reason()),
//! }
//! ```

mod arena;
mod batch;
mod columns;
mod decoder;
mod doc;
mod identify;
mod part;
mod pickle;
mod requests;
mod schema;
mod times;
mod tokens;
mod value;
mod words;

pub use crate::undecoded::Undecoded;
pub use batch::{Batch, Codec};
pub use decoder::Decoder;
pub use pickle::{PickleStyle, Pickler};
pub(crate) use pickle::{PickleWalk, read_text_list};
pub(crate) use requests::read_pickled_request;
pub use requests::read_requests;
pub use schema::fields;
pub use value::{List, Map, Value};

/// Error for a message in neither codec, with its first bytes.
fn not_a_codec(message: &[u8]) -> Undecoded {
    const SHOWN_BYTES: usize = 8;
    Undecoded::Codec {
        expected: "neither a pickle (protocol 2 to 5) nor a tagged msgpack array",
        first: message[..message.len().min(SHOWN_BYTES)].to_vec(),
    }
}

/// Limits for one message. A message that reaches one is rejected with [`super::Undecoded::Limit`] and the field's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Length of the longest message in bytes.
    pub message: usize,
    /// Maximum number of open marks in a pickle.
    pub depth: usize,
    /// Maximum number of values on a pickle's stack.
    pub stack: usize,
    /// Maximum number of memo slots of a pickle.
    pub memo: usize,
    /// Maximum number of values in each table of the arena, of requests, and of token ids in a message.
    pub items: usize,
    /// Maximum length in bytes of a request id or a worker's address.
    pub text: usize,
}

impl Default for Limits {
    /// Fits a frame of 4,096 requests with top-5 logprobs, and about 100 MB of arena for a hostile message.
    fn default() -> Self {
        Self { message: 64 << 20, depth: 64, stack: 1 << 20, memo: 1 << 22, items: 1 << 22, text: 4096 }
    }
}
