//! What is made of an analysis: the report, the difference of two reports, exports and metrics.
//!
//! This crate opens no file and no socket. It writes to what its caller opened.

#[macro_use]
mod append;

pub mod diff;
pub mod export;
pub mod metrics;
pub mod report;
