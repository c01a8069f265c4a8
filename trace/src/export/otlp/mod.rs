//! OTLP/JSON: traces as a file of one `TracesData` a line, and traces and metrics of a live run for a collector.
//!
//! As the OTLP/JSON encoding wants it: ids in hex, 64-bit integers as strings, enums as integers.

mod attributes;
mod envelope;
mod file;
mod live;
mod metrics;
mod spans;

pub use envelope::Resource;
pub(super) use file::Otlp;
pub use live::LiveSpans;
pub use metrics::metrics_data;
