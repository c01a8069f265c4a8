//! Recording compared with a lower bound: a release's frame bytes compressed by zstd at the same level, with the same checksum and file. In
//! CPU time of the whole process, in alternating turns.

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use hot::traffic::{CHUNKS_PER_S, HOP, Part, Traffic};
use rustix::time::{ClockId, clock_gettime};
use trace::event::{Chunk, Event, Frame, IdColumn, Kind, Taken, What};
use trace::record::{Closing, Header, Record, RecordOptions, Recorder, Recording, Summary, analyse};
use trace::{Config, FrameId, HopId, MonoNs};

use super::aims;

const SECOND: u64 = 1_000_000_000;
/// A frame of 256 requests, recorded from SGLang 0.5.9.
const FRAME: &str = "zmq-tap/fixtures/messages/0.5.9/skip_delta_256rid.pkl";
const REQUESTS: usize = 256;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds of traffic at 132,000 chunks/s that each turn writes
    #[arg(long, default_value_t = 8)]
    seconds: u32,
    /// Turns each peer takes; the medians are compared
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Minutes of the long file
    #[arg(long, default_value_t = 60)]
    minutes: u32,
    /// Let the long file go through the whole analysis too
    #[arg(long)]
    analyse: bool,
    /// Only open and read this recording, in a process of its own
    #[arg(long, hide = true)]
    read: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(path) = &args.read {
        return read_alone(path, args.analyse);
    }
    ensure!(
        args.seconds > 0 && args.rounds > 0,
        "--seconds and --rounds must be at least 1"
    );
    let folder = tempfile::tempdir()?;
    println!("{:32} {:>12} {:>14} {:>14}", "", "bytes/chunk", "written /s", "read /s");
    for rids in [REQUESTS, 16 * REQUESTS] {
        compare(args, rids, folder.path())?;
    }
    long(args, folder.path())
}

/// Seconds of traffic, each a list of frames, in time order.
struct Seconds(Vec<Vec<Vec<Part>>>);

impl Seconds {
    fn make(args: &Args, rids: usize) -> Self {
        let mut traffic = Traffic::new(rids, REQUESTS, 200);
        let second = |_| {
            traffic.advance();
            std::mem::take(&mut traffic.frames)
        };
        Self((0..args.seconds).map(second).collect())
    }

    fn chunks(&self) -> usize {
        self.0.iter().flatten().map(Vec::len).sum()
    }

    fn borrow(&self) -> Vec<Vec<Vec<Chunk<'_>>>> {
        self.0
            .iter()
            .map(|second| second.iter().map(|frame| borrow(frame)).collect())
            .collect()
    }
}

fn borrow(frame: &[Part]) -> Vec<Chunk<'_>> {
    frame.iter().map(Part::chunk).collect()
}

fn compare(args: &Args, rids: usize, folder: &Path) -> anyhow::Result<()> {
    let seconds = Seconds::make(args, rids);
    let (chunks, borrowed) = (seconds.chunks(), seconds.borrow());
    let raw = Raw::new()?.all(&seconds);
    let (ours, theirs) = (folder.join("ours.tgap"), folder.join("theirs.zst"));
    let mut spent: [Vec<f64>; 4] = Default::default();
    for _ in 0..=args.rounds {
        for file in [&ours, &theirs] {
            std::fs::remove_file(file).ok();
        }
        let turns = [
            cpu(|| write(&ours, &borrowed, 1).map(drop))?,
            cpu(|| raw_write(&theirs, &raw))?,
            cpu(|| read(&ours, chunks as u64))?,
            cpu(|| raw_read(&theirs))?,
        ];
        for (peer, ns) in spent.iter_mut().zip(turns) {
            peer.push(ns as f64);
        }
    }
    let bytes = |file: &Path| -> anyhow::Result<f64> { Ok(std::fs::metadata(file)?.len() as f64 / chunks as f64) };
    let [written, raw_written, read, raw_read] = spent.map(|turns| chunks as f64 / median(turns) * 1e9);
    println!("{rids} live rids, {chunks} chunks in frames of {REQUESTS}, each sent and taken");
    let row = |name: &str, bytes: f64, written: f64, read: f64| {
        println!("{name:32} {bytes:12.3} {written:14.0} {read:14.0}");
    };
    row("zstd of the raw frames", bytes(&theirs)?, raw_written, raw_read);
    row("recording", bytes(&ours)?, written, read);
    if rids > REQUESTS {
        let zstd = |value| [("zstd of the raw frames", value)];
        aims::came("record.size", bytes(&ours)?, &zstd(bytes(&theirs)?))?;
        aims::came("record.written", written / 1e6, &zstd(raw_written / 1e6))?;
        aims::came("record.read", read / 1e6, &zstd(raw_read / 1e6))?;
    }
    Ok(())
}

/// Records the seconds `laps` times in sequence.
fn write(path: &Path, seconds: &[Vec<Vec<Chunk<'_>>>], laps: u64) -> anyhow::Result<Summary> {
    let options = RecordOptions {
        wait: true,
        // The traffic's timestamps run ahead of the real clock.
        anchor_every_ns: None,
        ..RecordOptions::default()
    };
    let mut recorder = Recorder::create(path, &Header::of("bench", Config::default()), options)?;
    let mut at = MonoNs::now().0;
    recorder.event(&Event {
        at: MonoNs(at),
        what: What::Hop(HOP),
    });
    let mut seq = 0;
    for _ in 0..laps {
        for frames in seconds {
            let step = SECOND / frames.len() as u64;
            for chunks in frames {
                let id = FrameId {
                    hop: HopId(0),
                    lane: 0,
                    seq,
                };
                // Vary times and lengths, which in real traffic are less regular.
                let noise = (seq + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 45;
                let frame = Frame {
                    id,
                    bytes: 25_000 + noise % 512,
                    kind: Kind::TokenIds,
                    ids: IdColumn::Delta,
                    chunks,
                };
                recorder.event(&Event {
                    at: MonoNs(at + noise),
                    what: What::Sent(frame),
                });
                let taken = Taken {
                    id,
                    wakeup: Some(seq),
                    by: None,
                    frame: None,
                };
                recorder.event(&Event {
                    at: MonoNs(at + SECOND / 1_000 + noise),
                    what: What::Taken(taken),
                });
                if seq.is_multiple_of(50) {
                    recorder.tick(MonoNs(at));
                }
                seq += 1;
                at += step;
            }
        }
    }
    let summary = recorder.finish(&Closing::default())?;
    ensure!(summary.dropped == 0 && summary.stopped.is_none(), "{summary:?}");
    Ok(summary)
}

fn read(path: &Path, chunks: u64) -> anyhow::Result<()> {
    let recording = Recording::open(path)?;
    let mut reader = recording.reader();
    let mut seen = 0;
    while reader.next(&mut |record| {
        if let Record::Event(Event {
            what: What::Sent(frame),
            ..
        }) = black_box(record)
        {
            seen += frame.chunks.len() as u64;
        }
    })? {}
    ensure!(seen == chunks, "{seen} of {chunks} chunks were read");
    Ok(())
}

/// The real frame, with its request ids replaced by those of the traffic. Its token counts stay constant, which favours zstd.
struct Raw {
    frame: Vec<u8>,
    places: Vec<usize>,
}

impl Raw {
    fn new() -> anyhow::Result<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("the workspace")?
            .join(FRAME);
        let frame = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let mut decoder = zmq_tap::wire::Decoder::new(zmq_tap::wire::Limits::default());
        let batch = decoder.decode(&frame)?;
        let place = |rid: &str| frame.windows(rid.len()).position(|w| w == rid.as_bytes());
        let places: Option<Vec<usize>> = batch
            .chunks()
            .iter()
            .map(|c| place(c.rid).filter(|_| c.rid.len() == 32))
            .collect();
        let places = places
            .filter(|p| p.len() == REQUESTS)
            .context("the recorded frame has other rids than thought")?;
        drop(batch);
        Ok(Self { frame, places })
    }

    fn all(&mut self, seconds: &Seconds) -> Vec<Vec<u8>> {
        let mut second = |frames: &Vec<Vec<Part>>| {
            let mut bytes = Vec::new();
            for frame in frames {
                for (part, &place) in frame.iter().zip(&self.places) {
                    self.frame[place..place + 32].copy_from_slice(part.rid.as_bytes());
                }
                bytes.extend_from_slice(&self.frame);
            }
            bytes
        };
        seconds.0.iter().map(&mut second).collect()
    }
}

fn raw_write(path: &Path, seconds: &[Vec<u8>]) -> anyhow::Result<()> {
    let mut file = File::create(path)?;
    let mut zstd = zstd::bulk::Compressor::new(RecordOptions::default().level)?;
    for second in seconds {
        let packed = zstd.compress(second)?;
        file.write_all(&(packed.len() as u64).to_le_bytes())?;
        file.write_all(&(second.len() as u64).to_le_bytes())?;
        file.write_all(&crc32fast::hash(&packed).to_le_bytes())?;
        file.write_all(&packed)?;
    }
    file.sync_all()?;
    Ok(())
}

/// Decompresses only; the frames are not decoded.
fn raw_read(path: &Path) -> anyhow::Result<()> {
    let bytes = std::fs::read(path)?;
    let mut rest = bytes.as_slice();
    let mut zstd = zstd::bulk::Decompressor::new()?;
    while let Some((head, body)) = rest.split_at_checked(20) {
        let packed = u64::from_le_bytes(head[..8].try_into()?) as usize;
        let raw = u64::from_le_bytes(head[8..16].try_into()?) as usize;
        ensure!(
            crc32fast::hash(&body[..packed]).to_le_bytes() == head[16..],
            "a checksum does not match"
        );
        black_box(zstd.decompress(&body[..packed], raw)?);
        rest = &body[packed..];
    }
    Ok(())
}

/// Writes a long file with the real writer at full speed, then opens it in a new process: with its index, and truncated.
fn long(args: &Args, folder: &Path) -> anyhow::Result<()> {
    let seconds = Seconds::make(args, 16 * REQUESTS);
    let path = folder.join("long.tgap");
    let laps = u64::from(args.minutes) * 60 / u64::from(args.seconds);
    let start = Instant::now();
    let summary = write(&path, &seconds.borrow(), laps.max(1))?;
    println!(
        "{} minutes at {CHUNKS_PER_S} chunks/s: {} chunks, {} MB, {:.3} bytes/chunk, written in {:.1} s",
        args.minutes,
        summary.chunks,
        summary.bytes / 1_000_000,
        summary.bytes as f64 / summary.chunks as f64,
        start.elapsed().as_secs_f64()
    );
    drop(seconds);
    for cut in [false, true] {
        if cut {
            File::options().write(true).open(&path)?.set_len(summary.bytes - 1)?;
        }
        let mut alone = std::process::Command::new(std::env::current_exe()?);
        alone.args(["bench", "record", "--read"]).arg(&path);
        if args.analyse && !cut {
            alone.arg("--analyse");
        }
        ensure!(alone.status()?.success(), "the long file could not be read");
    }
    Ok(())
}

fn read_alone(path: &Path, analysed: bool) -> anyhow::Result<()> {
    let start = Instant::now();
    let recording = Recording::open(path)?;
    let opened = start.elapsed();
    let how = if recording.is_indexed() {
        "by its index"
    } else {
        "cut short, by scanning"
    };
    let blocks = recording.blocks().len();
    println!("opened {how} ({blocks} blocks) in {:.1} ms", opened.as_secs_f64() * 1e3);
    let start = Instant::now();
    recording.reader_at(blocks / 2).next(&mut |_| {})?;
    println!(
        "  the block in its middle read in {:.1} ms",
        start.elapsed().as_secs_f64() * 1e3
    );
    if recording.is_indexed() {
        aims::came("record.open", (opened + start.elapsed()).as_secs_f64() * 1e3, &[])?;
    }
    let start = Instant::now();
    read(path, recording.chunks())?;
    let took = start.elapsed().as_secs_f64();
    println!(
        "  all of it read in {took:.1} s, {:.0} chunks/s; {} MB held at most",
        recording.chunks() as f64 / took,
        held()?
    );
    if analysed {
        let start = Instant::now();
        let (analysis, _) = analyse(&recording, &mut |_, _| {})?;
        let took = start.elapsed().as_secs_f64();
        ensure!(
            analysis.ledger().totals().chunks.sent == recording.chunks(),
            "the ledger missed chunks"
        );
        println!(
            "  all of it analysed in {took:.1} s, {:.0} chunks/s; {} MB held at most",
            recording.chunks() as f64 / took,
            held()?
        );
    }
    Ok(())
}

/// Peak resident memory of this process in MB.
fn held() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: u64 = line
        .and_then(|line| line.split_whitespace().next())
        .context("no VmHWM")?
        .parse()?;
    Ok(kib * 1_024 / 1_000_000)
}

/// CPU time of `work` in the whole process, in nanoseconds.
fn cpu(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<u64> {
    let now = || {
        let t = clock_gettime(ClockId::ProcessCPUTime);
        t.tv_sec as u64 * SECOND + t.tv_nsec as u64
    };
    let start = now();
    work()?;
    Ok(now() - start)
}

/// Median without the first turn.
fn median(mut turns: Vec<f64>) -> f64 {
    turns.remove(0);
    turns.sort_by(f64::total_cmp);
    turns[turns.len() / 2]
}
