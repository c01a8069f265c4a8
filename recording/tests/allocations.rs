//! Recording at a steady rate, and reading it back, allocate nothing on the caller's thread. This is a separate test binary because the allocator's
//! counters cover the whole process.

use std::alloc::System;

use recording::{RecordOptions, Recorder, Recording, RecordingHeader};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use trace::event::{Chunk, Event, Frame, What};
use trace::{Config, FrameId, HopId, MonoNs, ReportInput};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn chunk(rid: &str, completion: u32) -> Chunk<'_> {
    Chunk {
        prompt_tokens: Some(100),
        cached_tokens: Some(0),
        retractions: Some(0),
        worker: Some("ipc:///tmp/worker"),
        ..Chunk::counted(rid, 1, completion)
    }
}

#[test]
fn recording_and_reading_known_requests_does_not_allocate() {
    let path = std::env::temp_dir().join(format!("tokengap-allocations-{}.tgap", std::process::id()));
    // With no limit on block size, no block goes to the writer thread while allocations are counted.
    let options = RecordOptions { block_bytes: usize::MAX, ..RecordOptions::offline() };
    let mut recorder =
        Recorder::create(&path, &RecordingHeader::for_source("model", Config::default()), options).expect("a new file");
    let rids: Vec<String> = (0..256).map(|n| format!("{n:032x}")).collect();
    let frames: Vec<Vec<Chunk<'_>>> = (1..=400).map(|n| rids.iter().map(|rid| chunk(rid, n)).collect()).collect();
    let mut seq = 0;
    let mut record = |chunks| {
        let id = FrameId::new(HopId(0), 0, seq);
        recorder.record_event(&Event::new(MonoNs(seq * 10_000_000), What::Sent(Frame::token_ids(id, 25_000, chunks))));
        recorder.record_tick(MonoNs(seq * 10_000_000 + 1));
        seq += 1;
    };
    // Warm up: the columns grow to their size.
    frames[..300].iter().for_each(|frame| record(frame));
    let region = Region::new(ALLOCATOR);
    frames[300..].iter().for_each(|frame| record(frame));
    let allocations = region.change().allocations;
    // A column may double its capacity once. A single chunk never allocates.
    assert!(allocations <= 4, "{allocations} allocations for 25,600 chunks");
    recorder.finish(&ReportInput::default()).expect("finished");

    let recording = Recording::open(&path).expect("a recording");
    let mut reader = recording.reader();
    let mut next = || reader.next().expect("an intact block").is_some();
    // A frame and a tick each.
    assert!((0..600).all(|_| next()));
    let region = Region::new(ALLOCATOR);
    assert!((0..200).all(|_| next()));
    assert_eq!(region.change().allocations, 0, "allocations for 100 frames and 100 ticks");
    std::fs::remove_file(&path).ok();
}
