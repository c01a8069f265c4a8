//! Decoder for SGLang's ZMQ messages, from bytes to types. No I/O, no `unsafe`.
//!
//! ```
//! use engines::sglang::wire::{Decoder, Limits};
//!
//! let mut decoder = Decoder::new(Limits::default());
//! match decoder.decode(b"\x80\x04N.") {
//!     Ok(batch) => println!("{} with {} requests", batch.shape().class, batch.len()),
//!     Err(why) => println!("{}: {why}", why.reason()),
//! }
//! ```

mod arena;
mod batch;
mod columns;
mod decoder;
mod doc;
mod identify;
mod limits;
mod part;
mod pickle;
mod schema;
mod tokens;
mod value;
mod words;

pub use crate::undecoded::Undecoded;
pub use batch::{Batch, Codec};
pub use decoder::Decoder;
pub use limits::Limits;
pub use tokens::Tokens;
pub use value::{List, Map, Value};

/// Error for a message in neither codec.
fn not_a_codec(message: &[u8]) -> Undecoded {
    Undecoded::Codec {
        expected: "neither a pickle (protocol 2 to 5) nor a tagged msgpack array",
        first: message[..message.len().min(8)].to_vec(),
    }
}
