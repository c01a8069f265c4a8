//! Ledger and detectors compared with the minimum for the same chunks, a hash map of counters by request id. One iteration is one second of a
//! busy engine.

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode, Throughput};
use hashbrown::HashMap;
use trace::event::Chunk;
use trace::{Analysis, Config};

use crate::cpu;
use crate::traffic::{CHUNKS_PER_S, LIVE, REQUESTS, STREAM, Stream, Traffic, chunks};

/// Tokens of a request.
const TOKENS: u32 = 200;

pub(crate) fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("ledger");
    group.sampling_mode(SamplingMode::Flat);
    group.throughput(Throughput::Elements(CHUNKS_PER_S / REQUESTS as u64 * REQUESTS as u64));
    let mut map = HashMap::new();
    measure(&mut group, "hash map of counters".into(), LIVE, |frames| {
        count(&mut map, frames);
    });
    let stream = |receives| Stream { receives, ..STREAM };
    analyse(&mut group, "sends".into(), LIVE, stream(false));
    analyse(&mut group, "sends and receives".into(), LIVE, stream(true));
    for live in [1, 16, 256, 65_536] {
        analyse(&mut group, format!("live requests/{live}"), live, STREAM);
    }
    for hops in [2, 4, 8] {
        analyse(&mut group, format!("hops/{hops}"), LIVE, Stream { hops, ..STREAM });
    }
    for lanes in [16, 1_024] {
        analyse(&mut group, format!("connections/{lanes}"), LIVE, Stream { lanes, ..STREAM });
    }
    group.finish();
}

fn analyse(group: &mut BenchmarkGroup<'_, WallTime>, id: String, live: usize, mut stream: Stream) {
    let mut analysis = Analysis::new(Config::default());
    stream.announce(&mut analysis);
    measure(group, id, live, |frames| stream.frames(frames, &mut analysis));
    let totals = analysis.ledger().totals();
    assert!(totals.wire_loss.total == 0, "the ledger misread the benchmark's traffic");
}

/// Measures `work` on one second of traffic after another.
fn measure(group: &mut BenchmarkGroup<'_, WallTime>, id: String, live: usize, mut work: impl FnMut(&[Vec<Chunk<'_>>])) {
    let mut traffic = Traffic::new(live, TOKENS);
    group.bench_function(id, |bencher| {
        bencher.iter_custom(|seconds| {
            let mut spent = Duration::ZERO;
            for _ in 0..seconds {
                let parts = traffic.second();
                let frames = chunks(&parts);
                spent += cpu(|| work(&frames));
            }
            spent
        });
    });
}

/// Finds the request, adds its counts, and removes it when it finishes.
fn count(map: &mut HashMap<Box<str>, [u64; 4]>, frames: &[Vec<Chunk<'_>>]) {
    for chunk in frames.iter().flatten() {
        let counters = match map.get_mut(chunk.rid) {
            Some(counters) => counters,
            None => map.entry(chunk.rid.into()).or_default(),
        };
        counters[0] += 1;
        counters[1] += u64::from(chunk.listed.unwrap_or(0));
        counters[2] = u64::from(chunk.completion_tokens.unwrap_or(0));
        if chunk.finish.is_some() {
            black_box(map.remove(chunk.rid));
        }
    }
}
