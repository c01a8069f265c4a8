//! Decoder for SGLang's ZMQ messages, from bytes to types. No I/O, no `unsafe`.
//!
//! ```
//! use zmq_tap::wire::{Decoder, Limits};
//!
//! let mut decoder = Decoder::new(Limits::default());
//! match decoder.decode(b"\x80\x04N.") {
//!     Ok(batch) => println!("{} with {} requests", batch.class(), batch.len()),
//!     Err(why) => println!("{}: {why}", why.reason()),
//! }
//! ```

mod arena;
mod batch;
mod columns;
mod decoder;
mod doc;
mod error;
mod identify;
mod limits;
mod msgpack;
mod part;
mod pickle;
mod runs;
mod schema;
mod tokens;
mod value;

pub use batch::{Batch, Codec};
pub use decoder::Decoder;
pub use error::Undecoded;
pub use limits::Limits;
pub use tokens::Tokens;
pub use value::{List, Map, Value};

/// Error for a message in neither codec.
fn not_a_codec(message: &[u8]) -> Undecoded {
    Undecoded::Codec {
        first: message[..message.len().min(8)].to_vec(),
    }
}
