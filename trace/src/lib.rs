//! The language of tokengap: what a source says ([`Event`]), what is remembered of it (`ledger`), what is judged
//! (`detect`) and what is told (`report`).
//!
//! This crate opens no socket and draws no screen. Sources hand it events by reference; nothing here blocks.

pub mod analysis;
pub mod clock;
pub mod course;
pub mod detect;
pub mod diff;
pub mod engine;
pub mod event;
pub mod export;
pub mod fault;
pub mod id;
pub mod import;
pub mod ledger;
pub mod metrics;
pub mod path;
pub mod record;
pub mod report;
pub mod stats;
pub mod words;

pub use analysis::{Analysis, Config};
pub use clock::MonoNs;
pub use event::{Chunk, Event, What};
pub use id::{FrameId, HopId, ThreadId};
