//! Recordings compared with zstd of a release's raw frames, at the same level and with the same checksum. One iteration is four seconds
//! of a busy engine.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write as _;
use std::path::Path;

use criterion::{Criterion, SamplingMode, Throughput};
use recording::{Record, RecordOptions, Recorder, Recording, RecordingHeader};
use trace::event::{Chunk, Event, What};
use trace::{Config, MonoNs, ReportInput};

use crate::cpu;
use crate::traffic::{LIVE, Part, REQUESTS, STREAM, Stream, Traffic, chunks};

/// A frame of 256 requests, recorded from SGLang 0.5.9.
const FRAME: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../zmq-tap/fixtures/messages/0.5.9/skip_delta_256rid.pkl");
const RID: usize = 32;
/// Repetitions of the traffic in the file that is opened: an hour.
const HOUR_REPETITIONS: usize = 900;

pub(crate) fn bench(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [ours, theirs, hour] = ["ours", "theirs", "hour"].map(|name| folder.path().join(name));
    let mut traffic = Traffic::new(LIVE, 200);
    let parts: Vec<_> = (0..4).map(|_| traffic.second()).collect();
    let frames: Vec<_> = parts.iter().flat_map(|second| chunks(second)).collect();
    let raw: Vec<_> = parts.iter().map(|second| raw(second)).collect();
    let count = (frames.len() * REQUESTS) as u64;
    write(&ours, &frames, 1);
    zstd_write(&theirs, &raw);
    for (name, file) in [("recording", &ours), ("zstd of the raw frames", &theirs)] {
        let bytes = fs::metadata(file).expect("the written file").len();
        println!("size: {name}: {:.3} bytes a chunk", bytes as f64 / count as f64);
    }
    let mut group = c.benchmark_group("record");
    group.sampling_mode(SamplingMode::Flat);
    group.throughput(Throughput::Elements(count));
    let mut measure = |name, work: &dyn Fn()| {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|n| cpu(|| (0..n).for_each(|_| work())));
        });
    };
    measure("write", &|| write(&ours, &frames, 1));
    measure("write/zstd of the raw frames", &|| zstd_write(&theirs, &raw));
    measure("read", &|| assert_eq!(read(&ours), count));
    measure("read/zstd of the raw frames", &|| zstd_read(&theirs));
    measure("open and read the middle of an hour", &|| {
        if !hour.exists() {
            write(&hour, &frames, HOUR_REPETITIONS);
        }
        open(&hour);
    });
    group.finish();
}

fn write(path: &Path, frames: &[Vec<Chunk<'_>>], repetitions: usize) {
    let options = RecordOptions {
        wait: true,
        force: true,
        // The traffic's timestamps run ahead of the real clock.
        anchor_every_ns: None,
        ..RecordOptions::default()
    };
    let header = RecordingHeader::for_source("bench", Config::default());
    let mut recorder = Recorder::create(path, &header, options).expect("a recording");
    let mut stream = Stream { at: MonoNs::now().0, ..STREAM };
    stream.announce(&mut recorder);
    for _ in 0..repetitions {
        stream.frames(frames, &mut recorder);
    }
    let summary = recorder.finish(&ReportInput::default()).expect("the recording's end");
    assert!(summary.dropped == 0 && summary.stopped.is_none(), "{summary:?}");
}

fn read(path: &Path) -> u64 {
    let recording = Recording::open(path).expect("a recording");
    let mut reader = recording.reader();
    let mut chunks_read = 0;
    while let Some(record) = reader.next().expect("an intact block") {
        if let Record::Event(Event { what: What::Sent(frame), .. }) = black_box(record) {
            chunks_read += frame.chunks.len() as u64;
        }
    }
    chunks_read
}

fn open(path: &Path) {
    let recording = Recording::open(path).expect("a recording");
    assert!(recording.is_indexed(), "it has an index");
    let middle = recording.blocks().len() / 2;
    let mut reader = recording.reader_at(middle);
    for _ in 0..recording.blocks()[middle].records {
        black_box(reader.next().expect("an intact block").expect("a record"));
    }
}

/// The real frame with the traffic's request ids. Its token counts stay constant, which favours zstd.
fn raw(frames: &[Vec<Part>]) -> Vec<u8> {
    let mut frame = fs::read(FRAME).expect("a recorded frame");
    let hex = |bytes: &[u8]| bytes.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    // A pickled string of 32 bytes: its opcode, its length, its bytes.
    let text = |at: &usize| frame[*at..].starts_with(b"\x8c\x20") && hex(&frame[at + 2..at + 2 + RID]);
    let offsets: Vec<usize> = (0..frame.len() - RID - 2).filter(text).map(|at| at + 2).collect();
    assert_eq!(offsets.len(), REQUESTS, "request ids of the recorded frame");
    let mut bytes = Vec::new();
    for parts in frames {
        for (part, &offset) in parts.iter().zip(&offsets) {
            frame[offset..offset + RID].copy_from_slice(part.rid.as_bytes());
        }
        bytes.extend_from_slice(&frame);
    }
    bytes
}

fn zstd_write(path: &Path, seconds: &[Vec<u8>]) {
    let mut file = File::create(path).expect("a file");
    let mut zstd = zstd::bulk::Compressor::new(3).expect("a compressor");
    for second in seconds {
        let packed = zstd.compress(second).expect("compressed bytes");
        for number in [packed.len() as u64, second.len() as u64, crc32fast::hash(&packed).into()] {
            file.write_all(&number.to_le_bytes()).expect("disk space");
        }
        file.write_all(&packed).expect("disk space");
    }
    file.sync_all().expect("disk space");
}

/// Decompresses only; the frames are not decoded.
fn zstd_read(path: &Path) {
    let bytes = fs::read(path).expect("the written file");
    let mut zstd = zstd::bulk::Decompressor::new().expect("a decompressor");
    let mut rest = bytes.as_slice();
    while let Some((head, body)) = rest.split_at_checked(24) {
        let number = |n: usize| u64::from_le_bytes(head[8 * n..8 * n + 8].try_into().expect("eight bytes"));
        let (packed, tail) = body.split_at(number(0) as usize);
        assert_eq!(u64::from(crc32fast::hash(packed)), number(2));
        black_box(zstd.decompress(packed, number(1) as usize).expect("intact bytes"));
        rest = tail;
    }
}
