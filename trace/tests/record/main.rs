//! Recordings: the data read equals the data written, or the damage is reported.

mod damage;
mod disk_errors;
#[path = "../common/engine.rs"]
mod engine;
#[path = "../common/events.rs"]
mod events;
mod files;
mod formats;
mod live;
mod losses;
mod replay;
mod ring;
mod round_trip;
mod traffic;

use std::path::{Path, PathBuf};

use trace::MonoNs;
use trace::record::{Anchor, Header, Payload, Record, RecordOptions, Recorder, Recording};
use trace::report::ReportInput;

/// A temporary directory, removed on drop.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a new folder"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn header() -> Header {
    Header {
        anchor: Anchor { mono: MonoNs(5), wall_ns: 1_700_000_000_000_000_000 },
        payload: Payload::Tokens,
        ..Header::of("model", engine::config())
    }
}

fn closing() -> ReportInput {
    ReportInput { degraded: vec!["an example".into()], cpu_ns: Some(7), ..ReportInput::default() }
}

/// Options that close blocks by size alone and write no anchors.
fn options(block_bytes: usize) -> RecordOptions {
    RecordOptions { block_bytes, ..RecordOptions::offline() }
}

fn feed(recorder: &mut Recorder, inputs: &[Record<'_>]) {
    for input in inputs {
        match input {
            Record::Event(event) => recorder.event(event),
            Record::Tick(at) => recorder.tick(*at),
            other => panic!("{other:?} is no input"),
        }
    }
}

fn record(path: &Path, inputs: &[Record<'_>], options: RecordOptions) -> trace::record::Summary {
    let mut recorder = Recorder::create(path, &header(), options).expect("a new file");
    feed(&mut recorder, inputs);
    recorder.finish(&closing()).expect("a complete file")
}

/// Reads the recording and compares it with `inputs`; returns the number of matches.
fn compare(path: &Path, inputs: &[Record<'_>]) -> usize {
    let recording = Recording::open(path).expect("a recording");
    let mut reader = recording.reader();
    let (mut at, closing) = (0, closing());
    for expected in inputs.iter().copied().chain([Record::Closing(&closing)]) {
        assert_eq!(reader.next().expect("an intact block"), Some(expected), "at {at}");
        at += 1;
    }
    assert_eq!(reader.next().expect("an intact block"), None);
    assert_eq!(reader.unknown(), 0);
    at - 1
}
