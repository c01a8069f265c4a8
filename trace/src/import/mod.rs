//! Engine log files as a source: converts lines to events, ordered by timestamp (docs/reference/import.md).
//!
//! All memory is bounded: lines queued for sorting, rids kept to complete those truncated in a log, and open files.
//! [`Stats`] counts the losses at each limit.

mod clock;
mod envelope;
mod error;
mod files;
mod item;
mod json;
mod lines;
mod merge;
mod meta;
mod options;
mod queue;
mod reader;
mod recognise;
mod rids;
mod shape;
mod source;
mod stats;
mod text;

pub use error::ImportError;
pub use merge::Import;
pub use options::Options;
pub use stats::{Form, Stats};
