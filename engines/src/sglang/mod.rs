//! SGLang, 0.4.0 to 0.5.23.

mod batches;
pub mod discover;
mod facts;
mod format;
mod log;
mod pair;
mod releases;
pub mod wire;

use adapter::discover::EngineKind;

use crate::EngineSupport;

pub use batches::BATCHES;
pub use facts::SgLang;
pub use format::FORMAT;
pub use log::Log;

/// What tokengap knows of it.
pub(crate) const SUPPORT: EngineSupport = EngineSupport {
    name: NAME,
    facts: Some(&SgLang),
    formats: &[FORMAT, BATCHES],
    kind: EngineKind::new(&discover::Sglang),
    protocols: &[],
    log_lines: &Log,
};

/// Name in reports, metrics and exports.
pub const NAME: &str = "sglang";
