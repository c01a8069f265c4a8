//! Recordings: the data read equals the data written, or the damage is reported.

mod damage;
mod disk_errors;
#[path = "../../../trace/tests/common/engine.rs"]
mod engine;
#[path = "../common/events.rs"]
mod events;
mod files;
mod formats;
mod live;
mod losses;
mod replay;
mod ring;

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use recording::{Record, RecordOptions, RecordedPayload, Recorder, Recording, RecordingHeader};
use trace::clock::Anchor;
use trace::event::{Capabilities, Chunk, Event, Finish, Frame, Hop, Received, What};
use trace::{FrameId, HopId, MonoNs, ReportInput};

/// A temporary directory, removed on drop.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a new folder"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A new folder, and the path of a recording in it.
    fn with_run() -> (Self, PathBuf) {
        let folder = Self::new();
        let file = folder.file("run.tgap");
        (folder, file)
    }
}

fn open(path: impl AsRef<Path>) -> Recording {
    Recording::open(path).expect("a recording")
}

fn header() -> RecordingHeader {
    RecordingHeader {
        anchor: Anchor { mono: MonoNs(5), wall_ns: 1_700_000_000_000_000_000 },
        payload: RecordedPayload::Tokens,
        ..RecordingHeader::for_source("model", engine::config())
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
            Record::Event(event) => recorder.record_event(event),
            Record::Tick(at) => recorder.record_tick(*at),
            other => panic!("{other:?} is no input"),
        }
    }
}

fn record(path: &Path, inputs: &[Record<'_>], options: RecordOptions) -> recording::RecordingSummary {
    let mut recorder = Recorder::create(path, &header(), options).expect("a new file");
    feed(&mut recorder, inputs);
    recorder.finish(&closing()).expect("a complete file")
}

/// Reads the recording and compares it with `inputs`; returns the number of matches.
fn compare(path: &Path, inputs: &[Record<'_>]) -> usize {
    let recording = open(path);
    let mut reader = recording.reader();
    let (mut at, closing) = (0, closing());
    for expected in inputs.iter().copied().chain([Record::Closing(&closing)]) {
        assert_eq!(reader.next().expect("an intact block"), Some(expected), "at {at}");
        at += 1;
    }
    assert_eq!(reader.next().expect("an intact block"), None);
    assert_eq!(reader.unknown_records(), 0);
    at - 1
}

const MS: u64 = 1_000_000;

fn rid(n: u64) -> &'static str {
    let text = format!("{:016x}{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15), n.wrapping_mul(0xd134_2543_de82_ef95));
    Box::leak(text.into_boxed_str())
}

fn event(at: u64, what: What<'static>) -> Record<'static> {
    Record::Event(Event { at: MonoNs(at), what })
}

/// Simulated engine output, each frame received shortly after its send: `frames` frames of `requests` overlapping requests with `tokens`
/// tokens each, one frame every 10 ms, with a tick after every tenth.
fn traffic(frames: u64, requests: u64, tokens: u32) -> Vec<Record<'static>> {
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
    let mut inputs = vec![event(
        0,
        What::Hop(Hop { endpoint: "ipc:///tmp/tokens", ..Hop::only(HopId(0), "scheduler->tokenizer", capabilities) }),
    )];
    let mut slots: Vec<(&'static str, u32)> = (0..requests).map(|n| (rid(n), n as u32 % tokens)).collect();
    let mut started = requests;
    for seq in 0..frames {
        let at = (seq + 1) * 10 * MS + seq * 7_919 % 1_000;
        let mut chunks = Vec::new();
        for slot in &mut slots {
            slot.1 += 1;
            let finish = slot.1 >= tokens;
            chunks.push(Chunk {
                listed: Some(1),
                completion_tokens: Some(slot.1),
                prompt_tokens: Some(1_024),
                cached_tokens: Some(0),
                finish: finish.then_some(Finish::Stop),
                retractions: Some(0),
                ..Chunk::new(slot.0)
            });
            if finish {
                *slot = (rid(started), 0);
                started += 1;
            }
        }
        let id = FrameId::new(HopId(0), 0, seq);
        let received = Received::in_wakeup(id, seq);
        inputs.push(event(at, What::Sent(Frame::token_ids(id, 24_000 + seq % 7, chunks.leak()))));
        inputs.push(event(at + MS + seq * 104_729 % 500_000, What::Received(received)));
        if seq % 10 == 9 {
            inputs.push(Record::Tick(MonoNs(at + 2 * MS)));
        }
    }
    inputs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_event_survives_a_round_trip(inputs in events::inputs(), block in prop::sample::select(vec![1, 200, 1 << 20])) {
        let (_folder, file) = Folder::with_run();
        let summary = record(&file, &inputs, options(block));
        prop_assert_eq!((summary.records, summary.dropped), (inputs.len() as u64, 0));
        prop_assert_eq!(compare(&file, &inputs), inputs.len());
    }
}
