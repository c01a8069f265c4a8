//! OTLP/JSON: traces as a file with one `TracesData` per line, and traces and metrics of a live run for a collector.
//!
//! As the OTLP/JSON encoding requires, ids are hex, 64-bit integers are strings, and enums are integers.

mod envelope;
mod file;
mod live;
mod metrics;
mod spans;

pub use envelope::Resource;
pub(super) use file::Otlp;
pub use live::LiveSpans;
pub use metrics::metrics_data;
