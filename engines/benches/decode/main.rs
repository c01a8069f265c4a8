//! CPU time of decoding a frame: tokengap, CPython's `pickle.loads`, msgspec, serde-pickle and rmp-serde on the same bytes. And of reading a
//! request.

mod python;

use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use adapter::decode::{Excerpt, ReadRequests};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use engines::sglang::wire::{Decoder, Limits};
use python::Peer;
use rustix::time::{ClockId, clock_gettime};
use serde::de::IgnoredAny;
use serde_pickle::{DeOptions, Value};
use trace::event::DispatchKind;

const MESSAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../zmq-tap/fixtures/messages");
/// Frames of 256 requests written by real releases.
const FRAMES: [(&str, &str); 4] = [
    ("pickle of 0.4.4", "0.4.4/skip_delta_256rid.pkl"),
    ("pickle of 0.5.9", "0.5.9/skip_delta_256rid.pkl"),
    ("pickle of 0.5.23", "0.5.23/skip_delta_256rid.pkl"),
    ("msgpack of 0.5.23", "0.5.23-msgpack/skip_delta_256rid.msgpack"),
];
/// Requests of real releases, by engine: the last part of the message, behind the type byte of vLLM.
const REQUESTS: [(&str, &str, ReadRequests); 4] = [
    ("pickle of 0.5.9", "../zmq-tap/fixtures/messages/0.5.9/req_text.pkl", engines::sglang::FORMAT.read_requests),
    ("pickle of 0.5.23", "../zmq-tap/fixtures/messages/0.5.23/req_text.pkl", engines::sglang::FORMAT.read_requests),
    (
        "msgpack of 0.5.23",
        "../zmq-tap/fixtures/messages/0.5.23-msgpack/req_text.msgpack",
        engines::sglang::FORMAT.read_requests,
    ),
    ("msgpack of vLLM 0.33.0", "fixtures/vllm/0.33.0/request_add.2", engines::vllm::FORMAT.read_requests),
];

/// CPU time of `n` calls of `work` on this thread.
fn cpu(n: u64, mut work: impl FnMut()) -> Duration {
    let now = || {
        let t = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
    };
    let start = now();
    (0..n).for_each(|_| work());
    now().saturating_sub(start)
}

/// Decoding a frame of 256 requests, by tokengap, by Python, and by a Rust library.
fn frames(c: &mut Criterion) {
    for (name, file) in FRAMES {
        let path = Path::new(MESSAGES).join(file);
        let message = std::fs::read(&path).unwrap_or_else(|why| panic!("{file}: {why}"));
        let mut decoder = Decoder::new(Limits::default());
        let layout = decoder.decode(&message).map(|batch| (batch.shape().class, batch.shape().schema));
        let (class, schema) = layout.expect("a recorded frame");
        let peer = Peer::start(&path, class, schema);
        let mut group = c.benchmark_group(format!("decode/{name}"));
        group.bench_function("tokengap", |bencher| {
            bencher.iter_custom(|n| {
                cpu(n, || {
                    assert_eq!(decoder.decode(black_box(&message)).map_or(0, |b| b.chunks().len()), 256);
                })
            });
        });
        match peer {
            Ok(mut peer) => {
                group.bench_function("Python", |bencher| bencher.iter_custom(|n| peer.turn(n)));
            }
            Err(why) => println!("SKIPPED: Python: {why}"),
        }
        bench_rust_library(&mut group, name, &message);
        group.finish();
    }
}

/// Measures the Rust library that decodes the whole message. The codec is the first word of `name`.
fn bench_rust_library(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, message: &[u8]) {
    let (library, read): (_, fn(&[u8])) =
        if name.starts_with("pickle") { ("serde-pickle", unpickle) } else { ("rmp-serde", unpack) };
    group.bench_function(library, |bencher| {
        bencher.iter_custom(|n| cpu(n, || read(black_box(message))));
    });
}

/// Reading which request a message to the scheduler names, and decoding the whole message, as a peer must.
fn requests(c: &mut Criterion) {
    for (name, file, read_requests) in REQUESTS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let message = std::fs::read(&path).unwrap_or_else(|why| panic!("{file}: {why}"));
        // Only vLLM sends a type byte before the request.
        let parts = [Excerpt::whole(&[0]), Excerpt::whole(&message)];
        let parts = if name.contains("vLLM") { &parts[..] } else { &parts[1..] };
        let mut requests = Vec::with_capacity(1);
        let mut group = c.benchmark_group(format!("request/{name}"));
        group.bench_function("tokengap", |bencher| {
            bencher.iter_custom(|n| {
                cpu(n, || {
                    requests.clear();
                    assert_eq!(read_requests(black_box(parts), &mut requests), Ok(DispatchKind::Requests));
                    black_box(&requests);
                })
            });
        });
        bench_rust_library(&mut group, name, &message);
        group.finish();
    }
}

/// Treats classes as null and calls as their arguments; without these options serde-pickle rejects every frame.
fn unpickle(message: &[u8]) {
    let options = DeOptions::new().keep_restore_state().replace_unresolved_globals();
    let value: Value = serde_pickle::value_from_slice(message, options).expect("a recorded frame");
    black_box(value);
}

/// Reads every value and keeps none: the minimum cost of decoding into any type with serde.
fn unpack(message: &[u8]) {
    let value: IgnoredAny = rmp_serde::from_slice(message).expect("a recorded frame");
    black_box(value);
}

/// Cost by the number of requests in the frame. A Python script writes the frames.
fn growth(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode/requests");
    for requests in [1, 64, 1_024, 65_536_u64] {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{requests}.pkl"));
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/decode/frame.py");
        let mut python = Command::new("python3");
        python.arg(script).arg(Path::new(MESSAGES).join(FRAMES[1].1));
        // About a hundred bytes per request, plus the column names.
        python.arg((requests * 100).to_string()).arg(&file);
        assert!(python.output().is_ok_and(|out| out.status.success()), "{python:?}");
        let message = std::fs::read(&file).expect("written");
        let mut decoder = Decoder::new(Limits::default());
        let requests = decoder.decode(&message).expect("a frame").chunks().len();
        group.throughput(Throughput::Elements(requests as u64));
        group.bench_function(BenchmarkId::from_parameter(requests), |bencher| {
            bencher.iter_custom(|n| cpu(n, || assert!(decoder.decode(black_box(&message)).is_ok())));
        });
    }
    group.finish();
}

criterion_group!(name = benches; config = Criterion::default().without_plots(); targets = frames, requests, growth);
criterion_main!(benches);
