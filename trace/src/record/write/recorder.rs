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

/// Writes a recording. Nothing that happens to the file fails the run: the recording stops, and [`Recorder::status`] says why.
#[derive(Debug)]
pub struct Recorder {
    stream: Stream,
}

impl Recorder {
    /// Makes the file, readable by its owner alone, and the thread that writes it.
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

    /// The file that was asked for.
    pub fn path(&self) -> &Path {
        self.stream.path()
    }

    /// Records an event. Never waits; allocates nothing for a chunk of a request that the block knows.
    pub fn event(&mut self, event: &Event<'_>) {
        self.stream.event(event);
    }

    /// Records that the analysis was ticked, and once a minute both clocks.
    pub fn tick(&mut self, now: MonoNs) {
        self.stream.tick(now);
    }

    /// How it stands.
    pub fn status(&self) -> Status {
        self.stream.status()
    }

    /// Writes the rest, the closing section and the index, and waits until all of it is on disk. Stopping at the size limit or after an
    /// earlier error is not an error here: the summary reports it.
    pub fn finish(mut self, closing: &Closing) -> Result<Summary, RecordError> {
        self.stream.finish(closing)
    }
}

/// Tells the sections of this run from others'.
pub(super) fn run() -> u64 {
    use std::hash::BuildHasher;
    hashbrown::DefaultHashBuilder::default().hash_one((wall_ns(), MonoNs::now(), std::process::id()))
}
