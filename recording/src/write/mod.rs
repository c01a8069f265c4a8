//! Writing of recordings: encoding happens on the caller's thread, everything that can block on another.

mod pack;
mod recorder;
mod recording_files;
mod ring_file;
mod writer_thread;

use std::path::PathBuf;

pub(super) use pack::seal_section;
pub use pack::{BlockPacker, UncompressedBlock};
pub(super) use recorder::new_run_id;
pub use recorder::{PendingSummary, Recorder};
pub(super) use recording_files::write_preamble_and_header;
pub use recording_files::{is_part_of, path_of_run, run_name_of_path};

/// Options of a recording. The defaults are for live runs.
#[derive(Clone, Copy, Debug)]
pub struct RecordOptions {
    /// Size limit of a file in bytes. There the recording stops, or continues in the next file.
    pub max_bytes: Option<u64>,
    /// Continue in a new file (`run.1.tgap` after `run.tgap`) when one is full, and keep this many of the newest.
    pub rotate: Option<u32>,
    /// Replace existing files.
    pub force: bool,
    /// Size in bytes at which a block is closed.
    pub block_bytes: usize,
    /// Time span at which a block is closed, in nanoseconds. A crash can lose this much.
    pub block_ns: u64,
    /// The caller waits for the disk when the queue of blocks is full, instead of dropping blocks. Only for sources that may block.
    pub wait: bool,
    /// Interval between readings of both clocks, in nanoseconds; `None` if event times are not from this machine's clock.
    pub anchor_every_ns: Option<u64>,
}

impl Default for RecordOptions {
    /// Options of a live run: one file without a size limit, which replaces no other. Its blocks have at most 1 MiB and one second. It has
    /// a reading of both clocks each minute.
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        Self {
            max_bytes: None,
            rotate: None,
            force: false,
            block_bytes: 1 << 20,
            block_ns: SECOND,
            wait: false,
            anchor_every_ns: Some(60 * SECOND),
        }
    }
}

impl RecordOptions {
    /// Options for events from another time, such as imported logs.
    pub fn offline() -> Self {
        Self { block_ns: u64::MAX, anchor_every_ns: None, wait: true, ..Self::default() }
    }
}

/// Status of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingStatus {
    /// Bytes written to files, including deleted ones.
    pub bytes: u64,
    /// Number of records.
    pub records: u64,
    /// Records among them that were dropped because the disk was too slow or an event was too large.
    pub dropped: u64,
    /// Reason why it ended before the run, as text.
    pub stopped: Option<String>,
}

/// Summary of a finished recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingSummary {
    /// Files, oldest first.
    pub files: Vec<PathBuf>,
    /// Total size in bytes.
    pub bytes: u64,
    /// Number of records.
    pub records: u64,
    /// Number of dropped records.
    pub dropped: u64,
    /// Reason why it ended before the run, as text.
    pub stopped: Option<String>,
}
