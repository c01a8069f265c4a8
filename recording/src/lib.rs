//! Recordings: the events and ticks of a run in a file, in order, so that a replay gives the same report.
//!
//! A file is written block by block and is valid at any time. Truncated at any byte, it opens up to its last complete block and reports the
//! missing part. docs/internals/RECORDING.md describes the format.

mod block;
mod codec;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod header;
mod read;
mod section;
pub mod storage;
mod stream;
mod write;

pub use block::{BlockReader, BlockWriter};
pub use error::{OpenError, ReadError, RecordError};
pub use header::{RecordedPayload, RecordingHeader};
pub use read::{BlockInfo, MissingParts, RecordReader, Recording, analyse, read_records};
pub use stream::{StreamError, StreamPacker, StreamSection, StreamSplitter};
pub use write::{
    BlockPacker, PendingSummary, RecordOptions, Recorder, RecordingStatus, RecordingSummary, UncompressedBlock,
    is_part_of, path_of_run, run_name_of_path,
};

use trace::ReportInput;
use trace::clock::Anchor;
use trace::clock::MonoNs;
use trace::event::Event;

/// One entry of a recording.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Record<'a> {
    /// An event.
    Event(Event<'a>),
    /// A tick of the analysis.
    Tick(MonoNs),
    /// A reading of both clocks.
    Anchor(Anchor),
    /// End of the run; the last record.
    Closing(&'a ReportInput),
}
