//! The core of tokengap: events from sources ([`Event`]), state derived from them (`ledger`) and findings (`detect`).
//!
//! This crate opens no socket, draws no screen and never blocks. Sources pass events by reference.

// Test support shared with integration tests refers to this crate by its external name.
#[cfg(test)]
extern crate self as trace;

pub mod analysis;
pub mod clock;
pub mod columns;
pub mod detect;
pub mod engine;
pub mod event;
pub mod fault;
pub mod id;
pub mod ledger;
pub mod named_file;
pub mod pair;
pub mod path;
mod report_input;
pub mod stats;
pub mod time_series;
pub mod words;

pub use analysis::{Analysis, Config};
pub use clock::MonoNs;
pub use event::{Chunk, Event, What};
pub use id::{FrameId, HopId, ThreadId};
pub use report_input::{ReportInput, SamplingCost};
