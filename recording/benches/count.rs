//! Instructions of the ledger and of the recording for [`COUNTED_FRAMES`] frames of 256 requests: `cargo xtask bench count`.
#![allow(missing_docs, unused_qualifications, reason = "the benchmark macros generate public modules")]

mod traffic;

use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group, main};
use recording::{BlockWriter, RecordedPayload};
use trace::event::Chunk;
use trace::{Analysis, Config};
use traffic::{LIVE, STREAM, Sink, Stream, Traffic, chunks};

/// Warm-up frames, which fill the tables, and counted frames.
const WARM_UP_FRAMES: usize = 128;
const COUNTED_FRAMES: usize = 256;

type Frames = &'static [Vec<Chunk<'static>>];

/// A sink that has received its first frames, with the frames to count.
struct Ready<S> {
    sink: S,
    stream: Stream,
    frames: Frames,
}

fn ready<S: Sink>(mut sink: S, mut stream: Stream) -> Ready<S> {
    // Leaked, so that dropping them is not counted.
    let parts = Box::leak(Box::new(Traffic::new(LIVE, 200).second()));
    let (first, frames) = chunks(parts).leak().split_at(WARM_UP_FRAMES);
    stream.announce(&mut sink);
    stream.frames(first, &mut sink);
    Ready { sink, stream, frames: &frames[..COUNTED_FRAMES] }
}

fn ledger(receives: bool) -> Ready<Analysis> {
    ready(Analysis::new(Config::default()), Stream { receives, ..STREAM })
}

/// The columns of a block, without compression, which is zstd's work.
fn block() -> Ready<BlockWriter> {
    ready(BlockWriter::new(RecordedPayload::Lengths), STREAM)
}

fn run<S: Sink>(mut ready: Ready<S>) -> Ready<S> {
    ready.stream.frames(black_box(ready.frames), &mut ready.sink);
    ready
}

#[library_benchmark]
#[bench::sends(ledger(false))]
#[bench::sends_and_receives(ledger(true))]
fn count_ledger(ready: Ready<Analysis>) -> Ready<Analysis> {
    run(ready)
}

#[library_benchmark]
#[bench::columns(block())]
fn count_record(ready: Ready<BlockWriter>) -> Ready<BlockWriter> {
    run(ready)
}

library_benchmark_group!(name = hot_paths, benchmarks = [count_ledger, count_record]);
main!(library_benchmark_groups = hot_paths);
