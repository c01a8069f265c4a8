//! A recording of a run.

use std::path::Path;

use super::super::error::RecordError;
use super::super::header::{Closing, Header};
use super::files::Files;
use super::stream::Stream;
use super::worker::Store;
use super::{RecordOptions, Status, Summary};
use crate::clock::{MonoNs, wall_ns};
use crate::event::Event;

/// Writes a recording. File errors never stop the run: the recording stops, and [`Recorder::status`] has the reason.
#[derive(Debug)]
pub struct Recorder {
    stream: Stream,
}

impl Recorder {
    /// Creates the file, readable by its owner only, and the thread that writes it.
    pub fn create(path: &Path, header: &Header, options: RecordOptions) -> Result<Self, RecordError> {
        let run = run();
        let header = Header {
            part: 0,
            ..header.clone()
        };
        let store = Store::Files(Files::create(path, &header, run, options)?);
        let stream = Stream::start(path, store, run, &header, options)?;
        Ok(Self { stream })
    }

    /// Requested path.
    pub fn path(&self) -> &Path {
        self.stream.path()
    }

    /// Records an event. Never waits. Allocates nothing for a chunk of a request already in the block.
    pub fn event(&mut self, event: &Event<'_>) {
        self.stream.event(event);
    }

    /// Records a tick of the analysis and, at intervals, both clocks.
    pub fn tick(&mut self, now: MonoNs) {
        self.stream.tick(now);
    }

    /// Current status.
    pub fn status(&self) -> Status {
        self.stream.status()
    }

    /// Writes the remaining data, the closing section and the index, and waits until they are on disk. A stop at the size limit or after an
    /// earlier error is not an error here: the summary reports it.
    pub fn finish(mut self, closing: &Closing) -> Result<Summary, RecordError> {
        self.stream.finish(closing)
    }
}

/// Run id, which distinguishes the sections of this run from others.
pub(super) fn run() -> u64 {
    use std::hash::BuildHasher;
    hashbrown::DefaultHashBuilder::default().hash_one((wall_ns(), MonoNs::now(), std::process::id()))
}
