//! Engine log files as a source: lines to events, in the order of their stamps (docs/reference/import.md).
//!
//! Bounded in all it keeps: lines held back for ordering, rids remembered to complete those that a log cut short, files open
//! at once. Whatever a bound costs is counted in [`Stats`].

mod clock;
mod envelope;
mod error;
mod files;
mod held;
mod item;
mod json;
mod lines;
mod merge;
mod number;
mod options;
mod queue;
mod reader;
mod recognise;
mod rids;
mod shape;
mod sink;
mod source;
mod stats;
mod text;

pub use error::ImportError;
pub use merge::Import;
pub use options::Options;
pub use stats::{Form, Stats};
