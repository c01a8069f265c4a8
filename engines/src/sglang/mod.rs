//! SGLang, 0.4.0 to 0.5.23.

mod batches;
pub mod discover;
mod facts;
mod format;
mod log;
mod releases;
pub mod wire;

pub use batches::BATCHES;
pub use facts::SgLang;
pub use format::FORMAT;
pub use log::Log;

/// Name in reports, metrics and exports.
pub const NAME: &str = "sglang";
