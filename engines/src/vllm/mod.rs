//! vLLM's V1 engine, 0.6.4 to 0.33.0.

mod decoder;
pub mod discover;
mod facts;
mod format;
mod layout;
mod response_id;

pub use crate::undecoded::Undecoded;
pub use decoder::Decoder;
pub use facts::Vllm;
pub use format::FORMAT;

/// Name in reports, metrics and exports.
pub const NAME: &str = "vllm";
