//! Recordings: the data read equals the data written, or the damage is reported.

mod damage;
mod disk_errors;
#[path = "../common/engine.rs"]
mod engine;
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

use trace::record::{Anchor, Closing, Header, Payload, Record, RecordOptions, Recorder, Recording};
use trace::{Event, MonoNs};

/// A temporary directory, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!(
            "tokengap-record-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a new folder");
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A recorded event or tick.
#[derive(Clone, Copy, Debug)]
enum Input {
    Event(Event<'static>),
    Tick(u64),
}

fn header() -> Header {
    Header {
        anchor: Anchor {
            mono: MonoNs(5),
            wall_ns: 1_700_000_000_000_000_000,
        },
        payload: Payload::Tokens,
        ..Header::of("model", engine::config())
    }
}

fn closing() -> Closing {
    Closing {
        degraded: vec!["an example".into()],
        cpu_ns: Some(7),
        ..Closing::default()
    }
}

/// Options that close blocks by size alone and write no anchors.
fn options(block_bytes: usize) -> RecordOptions {
    RecordOptions {
        block_bytes,
        ..RecordOptions::offline()
    }
}

fn record(path: &Path, inputs: &[Input], options: RecordOptions) -> trace::record::Summary {
    let mut recorder = Recorder::create(path, &header(), options).expect("a new file");
    for input in inputs {
        match input {
            Input::Event(event) => recorder.event(event),
            Input::Tick(at) => recorder.tick(MonoNs(*at)),
        }
    }
    recorder.finish(&closing()).expect("a complete file")
}

/// Reads the recording and compares it with `inputs`; returns the number of matches.
fn compare(path: &Path, inputs: &[Input]) -> usize {
    let recording = Recording::open(path).expect("a recording");
    let mut reader = recording.reader();
    let mut at = 0;
    let mut closed = false;
    while let Some(record) = reader.next().expect("an intact block") {
        match (record, inputs.get(at)) {
            (Record::Closing(c), None) => {
                assert_eq!(*c, closing());
                closed = true;
                continue;
            }
            (Record::Event(event), Some(Input::Event(expected))) => assert_eq!(event, *expected),
            (Record::Tick(now), Some(Input::Tick(expected))) => assert_eq!(now.0, *expected),
            other => panic!("{other:?} at {at}"),
        }
        at += 1;
    }
    assert!(closed);
    assert_eq!(reader.unknown(), 0);
    at
}
