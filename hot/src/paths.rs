//! Hot paths of a frame, one function each. A lap processes one frame of 256 requests.

use std::hint::black_box;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use trace::event::{Chunk, Event, Frame, Taken, What};
use trace::record::{BlockWriter, Payload};
use trace::{Analysis, Config, MonoNs};
use zmq_tap::wire::{Decoder, Limits};
use zmq_tap::zmtp::{Mark, Scanner};

use crate::traffic::{self, HOP, Traffic};

/// One lap of a path.
pub type Lap = Box<dyn FnMut() -> anyhow::Result<()>>;

/// Names of all paths, as accepted by [`path`].
pub const NAMES: [&str; 8] = [
    "decode-0.4.4-pickle",
    "decode-0.5.9-pickle",
    "decode-0.5.23-pickle",
    "decode-0.5.23-msgpack",
    "scan",
    "ledger-sends",
    "ledger-sends-and-takes",
    "record",
];

/// Requests per frame, and live requests in the traffic.
const REQUESTS: usize = 256;
const ALIVE: usize = 16 * REQUESTS;
/// Nanoseconds between two frames at the traffic's rate.
const STEP: u64 = 1_000_000_000 * REQUESTS as u64 / traffic::CHUNKS_PER_S;

/// Returns the named path, ready to run.
pub fn path(name: &str) -> anyhow::Result<Lap> {
    match name {
        "decode-0.4.4-pickle" => decode("0.4.4/skip_delta_256rid.pkl"),
        "decode-0.5.9-pickle" => decode("0.5.9/skip_delta_256rid.pkl"),
        "decode-0.5.23-pickle" => decode("0.5.23/skip_delta_256rid.pkl"),
        "decode-0.5.23-msgpack" => decode("0.5.23-msgpack/skip_delta_256rid.msgpack"),
        "scan" => scan("0.5.9/skip_delta_256rid.pkl"),
        "ledger-sends" => Ok(ledger(false)),
        "ledger-sends-and-takes" => Ok(ledger(true)),
        "record" => Ok(record()),
        _ => match name.strip_prefix(DECODE) {
            Some(file) => Ok(any(std::fs::read(file).with_context(|| file.to_string())?)),
            None => bail!("no path {name:?}; one of {NAMES:?}, or {DECODE}FILE"),
        },
    }
}

/// Prefix of a path that decodes any message file.
pub const DECODE: &str = "decode:";

/// Reads a recorded message of a real release.
pub fn message(file: &str) -> anyhow::Result<Vec<u8>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../zmq-tap/fixtures/messages"));
    let path = folder.join(file);
    std::fs::read(&path).with_context(|| path.display().to_string())
}

fn decode(file: &str) -> anyhow::Result<Lap> {
    let message = message(file)?;
    let mut decoder = Decoder::new(Limits::default());
    Ok(Box::new(move || {
        ensure!(black_box(decoder.decode(black_box(&message))?.len()) == REQUESTS);
        Ok(())
    }))
}

/// Decodes a message with any number of requests.
fn any(message: Vec<u8>) -> Lap {
    let mut decoder = Decoder::new(Limits::default());
    Box::new(move || {
        black_box(decoder.decode(black_box(&message))?.len());
        Ok(())
    })
}

/// The frame scanner over a connection's bytes, read in pieces of 16 KiB.
fn scan(file: &str) -> anyhow::Result<Lap> {
    let message = message(file)?;
    let mut frame = vec![2];
    frame.extend_from_slice(&(message.len() as u64).to_be_bytes());
    frame.extend_from_slice(&message);
    let mut scanner = Scanner::from_greeting();
    let mut greeting = [0; 64];
    greeting[..12].copy_from_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1]);
    greeting[12..16].copy_from_slice(b"NULL");
    scanner.feed(&greeting, &mut |_| {});
    Ok(Box::new(move || {
        let mut whole = 0;
        for piece in frame.chunks(16 << 10) {
            scanner.feed(black_box(piece), &mut |mark| {
                whole += u32::from(matches!(mark, Mark::Frame { .. }));
            });
        }
        ensure!(whole == 1, "{whole} frames were found in one");
        Ok(())
    }))
}

/// Frames of one second of traffic.
struct Frames {
    frames: std::vec::IntoIter<&'static [Chunk<'static>]>,
    seq: u64,
}

impl Frames {
    /// Builds the frames before the counted laps and leaks them, so that no lap pays for dropping them.
    fn new() -> Self {
        let mut traffic = Traffic::new(ALIVE, REQUESTS, 200);
        traffic.advance();
        let frames: &'static Traffic = Box::leak(Box::new(traffic));
        let borrowed: Vec<&'static [Chunk<'static>]> =
            frames.borrow().into_iter().map(|frame| &*frame.leak()).collect();
        Self {
            frames: borrowed.into_iter(),
            seq: 0,
        }
    }

    /// Returns the next frame and its send time.
    fn next(&mut self) -> anyhow::Result<(Frame<'static>, MonoNs)> {
        let chunks = self.frames.next().context("the traffic of one second is over")?;
        self.seq += 1;
        Ok((traffic::frame(self.seq - 1, chunks), MonoNs(self.seq * STEP)))
    }
}

/// The send event of a frame, and its receive event a millisecond later.
fn events(frame: Frame<'_>, at: MonoNs) -> [Event<'_>; 2] {
    let taken = Taken {
        id: frame.id,
        wakeup: Some(frame.id.seq),
        by: None,
        frame: None,
    };
    let later = MonoNs(at.0 + 1_000_000);
    [(at, What::Sent(frame)), (later, What::Taken(taken))].map(|(at, what)| Event { at, what })
}

fn ledger(takes: bool) -> Lap {
    let mut analysis = Analysis::new(Config::default());
    let mut hop = HOP;
    hop.sees.taken = takes;
    analysis.apply(&Event {
        at: MonoNs(0),
        what: What::Hop(hop),
    });
    let mut frames = Frames::new();
    Box::new(move || {
        let (frame, at) = frames.next()?;
        for event in &events(frame, at)[..=usize::from(takes)] {
            analysis.apply(event);
        }
        // Ten times a second of traffic.
        if frame.id.seq.is_multiple_of(51) {
            analysis.tick(at);
        }
        Ok(())
    })
}

/// Writes frames into the columns of a recording block. Excludes compression, which is zstd's work.
fn record() -> Lap {
    let mut writer = BlockWriter::new(Payload::Lengths);
    let mut frames = Frames::new();
    Box::new(move || {
        let (frame, at) = frames.next()?;
        for event in &events(frame, at) {
            writer.event(event);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_file_is_a_path() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../zmq-tap/fixtures/messages/0.5.9/skip_delta_256rid.pkl"
        );
        let mut lap = super::path(&format!("decode:{file}")).expect("it is ready");
        lap().expect("it is a message");
        assert!(super::path("decode:").is_err(), "no file");
    }

    #[test]
    fn every_path_runs() {
        for name in super::NAMES {
            let mut lap = super::path(name).expect("it is ready");
            for _ in 0..2 {
                lap().unwrap_or_else(|why| panic!("{name}: {why}"));
            }
        }
    }
}
