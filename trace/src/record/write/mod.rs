//! Writing recordings: encoding happens on the caller's thread, everything that can wait on another.

mod files;
mod hindsight;
mod pack;
mod recorder;
mod ring;
mod stream;
mod worker;

use std::path::PathBuf;

pub use hindsight::{Dumping, Hindsight};
pub(super) use pack::Packer;
pub use recorder::Recorder;

/// How to write. The defaults are for live runs.
#[derive(Clone, Copy, Debug)]
pub struct RecordOptions {
    /// Largest size of a file in bytes; there the recording stops, or goes on in the next file.
    pub max_bytes: Option<u64>,
    /// Go on in a next file (`run.1.tgap` after `run.tgap`) when one is full, and keep this many, the newest.
    pub rotate: Option<u32>,
    /// Replace files that exist.
    pub force: bool,
    /// A block is closed when its columns hold this many bytes,
    pub block_bytes: usize,
    /// or when it spans this much time, in nanoseconds. A crash can lose this much.
    pub block_ns: u64,
    /// Closed blocks that wait for the disk; further ones are dropped and counted,
    pub queue_blocks: usize,
    /// or, where nothing is held up by it, the caller waits for room.
    pub wait: bool,
    /// zstd's level.
    pub level: i32,
    /// How often both clocks are read again, in nanoseconds; `None` where events do not carry this machine's time.
    pub anchor_every_ns: Option<u64>,
    /// How long `finish` waits for the disk, in seconds.
    pub patience_s: u64,
}

impl Default for RecordOptions {
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        Self {
            max_bytes: None,
            rotate: None,
            force: false,
            block_bytes: 1 << 20,
            block_ns: SECOND,
            queue_blocks: 16,
            wait: false,
            level: 3,
            anchor_every_ns: Some(60 * SECOND),
            patience_s: 30,
        }
    }
}

impl RecordOptions {
    /// For events that were made at another time, such as those of imported logs.
    pub fn offline() -> Self {
        Self {
            block_ns: u64::MAX,
            anchor_every_ns: None,
            wait: true,
            ..Self::default()
        }
    }
}

/// How a recording stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Bytes written to files, those of removed ones included.
    pub bytes: u64,
    /// Records made.
    pub records: u64,
    /// Records among them that were dropped, since the disk did not keep up or an event was too large.
    pub dropped: u64,
    /// Why it has ended before the run, in words.
    pub stopped: Option<String>,
}

/// Summary of a finished recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The files, the oldest first.
    pub files: Vec<PathBuf>,
    /// Bytes in them.
    pub bytes: u64,
    /// Records in them.
    pub records: u64,
    /// Chunks in them.
    pub chunks: u64,
    /// Records that were dropped on the way.
    pub dropped: u64,
    /// Why it ended before the run, in words.
    pub stopped: Option<String>,
}
