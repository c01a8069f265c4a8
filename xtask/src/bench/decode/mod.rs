//! Decoding a frame: tokengap against CPython's `pickle.loads`, msgspec, serde-pickle and rmp-serde on the same bytes, in alternating
//! turns.

mod crates;
mod python;

use std::hint::black_box;
use std::path::{Path, PathBuf};

use anyhow::Context;
use zmq_tap::wire::{Decoder, Limits};

use super::aims;
use super::ledger::timed;
use super::venv;
use python::Peer;

/// Frames of 256 requests written by real releases.
const FRAMES: [&str; 4] = [
    "0.4.4/skip_delta_256rid.pkl",
    "0.5.9/skip_delta_256rid.pkl",
    "0.5.23/skip_delta_256rid.pkl",
    "0.5.23-msgpack/skip_delta_256rid.msgpack",
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Turns each peer takes; the medians are compared
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Messages per turn of tokengap's decoder; each peer decodes an eighth of them
    #[arg(long, default_value_t = 800, value_parser = clap::value_parser!(u32).range(1..))]
    messages: u32,
    /// Python with msgspec installed; by default a virtual environment under target/ is made
    #[arg(long)]
    python: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the workspace")?;
    let python = match &args.python {
        Some(python) => python.clone(),
        None => venv::with("msgspec")?.join("python"),
    };
    println!(
        "{:26} {:>10} {:>10} {:>10} {:>7}",
        "microseconds a frame", "median", "quarter", "3 quarters", "ratio"
    );
    let mut pickles = Vec::new();
    for frame in FRAMES {
        let ratio = one(
            args,
            &python,
            &root.join("zmq-tap/fixtures/messages").join(frame),
            frame,
        )?;
        if !frame.ends_with(".msgpack") {
            pickles.push(ratio);
        }
    }
    aims::came("decode.pickle", pickles.into_iter().fold(f64::INFINITY, f64::min), &[])
}

/// Measures all readers of one frame in turn; returns Python's time relative to ours.
fn one(args: &Args, python: &Path, path: &Path, frame: &str) -> anyhow::Result<f64> {
    let message = std::fs::read(path).with_context(|| path.display().to_string())?;
    let mut decoder = Decoder::new(Limits::default());
    let (class, schema) = decoder.decode(&message).map(|batch| (batch.class(), batch.schema()))?;
    let mut peer = Peer::start(python, path, class, &fields(class, schema)?)?;
    let pythons = if frame.ends_with(".msgpack") {
        "Python, msgspec"
    } else {
        "Python, pickle.loads"
    };
    let crates = crates::readers(frame);
    let names = ["tokengap", pythons]
        .into_iter()
        .chain(crates.iter().map(|(name, _)| *name));
    let mut readers: Vec<(&str, Vec<f64>)> = names.map(|name| (name, Vec::new())).collect();
    let few = args.messages.div_ceil(8);
    // The first turn warms the caches.
    for round in 0..=args.rounds {
        // CPU time, as the peer measures its own.
        let ours = average(args.messages, || {
            black_box(decoder.decode(black_box(&message)).map(|batch| batch.len()).ok());
        });
        let theirs = peer.turn(few)?;
        let others = crates.iter().map(|(_, read)| {
            average(few, || {
                black_box(read(black_box(&message)).ok());
            })
        });
        let turn = [ours, theirs].into_iter().chain(others);
        for ((_, turns), ns) in readers.iter_mut().zip(turn).filter(|_| round > 0) {
            turns.push(ns / 1e3);
        }
    }
    println!("{frame}, {} bytes", message.len());
    let mut medians: Vec<(&str, f64)> = Vec::new();
    for (name, turns) in &mut readers {
        turns.sort_by(f64::total_cmp);
        let at = |quarter: usize| turns[(turns.len() - 1) * quarter / 4];
        let ratio = at(2) / medians.first().map_or(at(2), |ours| ours.1);
        medians.push((name, at(2)));
        println!("  {name:24} {:10.2} {:10.2} {:10.2} {ratio:7.1}", at(2), at(1), at(3));
    }
    let ours = medians.remove(0).1;
    let release = frame.split('/').next().unwrap_or(frame);
    aims::came(&format!("decode.{release}"), ours, &medians)?;
    let ratio = medians[0].1 / ours;
    if frame.ends_with(".msgpack") {
        aims::came("decode.msgspec", ratio, &[])?;
    }
    Ok(ratio)
}

/// CPU nanoseconds per call of `work`.
fn average(times: u32, mut work: impl FnMut()) -> f64 {
    timed(|| (0..times).for_each(|_| work())) as f64 / f64::from(times)
}

/// Field names of a layout, for the peer's stand-in class.
fn fields(class: &str, schema: &str) -> anyhow::Result<Vec<String>> {
    let table = std::fs::read_to_string(crate::schemas::TABLE)?;
    let row = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut row = row.filter(|row| row.first() == Some(&class) && row.get(2) == Some(&schema));
    let fields = row.next().context("the layout is not in the table")?;
    Ok(fields[3..].iter().map(ToString::to_string).collect())
}
