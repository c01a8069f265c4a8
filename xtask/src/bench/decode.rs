//! Decoding a frame: ours against CPython's `pickle.loads` and msgspec, on the same bytes, taking turns.

use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};
use zmq_tap::wire::{Decoder, Limits};

use super::ledger::timed;

/// Frames of 256 requests that real releases wrote.
const FRAMES: [&str; 4] = [
    "0.4.4/skip_delta_256rid.pkl",
    "0.5.9/skip_delta_256rid.pkl",
    "0.5.23/skip_delta_256rid.pkl",
    "0.5.23-msgpack/skip_delta_256rid.msgpack",
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Turns each peer takes; the medians are compared
    #[arg(long, default_value_t = 25)]
    rounds: usize,
    /// Messages a turn of ours; Python takes an eighth
    #[arg(long, default_value_t = 800)]
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
        None => environment(&root.join("target/bench-venv"))?,
    };
    println!(
        "{:44} {:>8} {:>10} {:>10} {:>7}",
        "frame", "bytes", "ours us", "Python us", "ratio"
    );
    for frame in FRAMES {
        let path = root.join("zmq-tap/fixtures/messages").join(frame);
        let message = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let mut decoder = Decoder::new(Limits::default());
        let (class, schema) = decoder.decode(&message).map(|batch| (batch.class(), batch.schema()))?;
        let mut peer = Peer::start(&python, &path, class, &fields(class, schema)?)?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..=args.rounds {
            // CPU time, as the peer measures its own.
            let spent = timed(|| {
                for _ in 0..args.messages {
                    let read = decoder.decode(black_box(&message)).map(|batch| batch.len());
                    black_box(read.ok());
                }
            });
            ours.push(spent as f64 / 1e3 / f64::from(args.messages));
            theirs.push(peer.turn(args.messages.div_ceil(8))? / 1e3);
        }
        let (ours, theirs) = (median(&mut ours), median(&mut theirs));
        println!(
            "{frame:44} {:8} {ours:10.2} {theirs:10.2} {:7.1}",
            message.len(),
            theirs / ours
        );
    }
    Ok(())
}

/// The fields of a layout, for the stand-in class of the peer.
fn fields(class: &str, schema: &str) -> anyhow::Result<Vec<String>> {
    let table = std::fs::read_to_string(crate::schemas::TABLE)?;
    let row = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut row = row.filter(|row| row.first() == Some(&class) && row.get(2) == Some(&schema));
    let fields = row.next().context("the layout is not in the table")?;
    Ok(fields[3..].iter().map(ToString::to_string).collect())
}

/// The median without the first turn, which warms the caches.
fn median(turns: &mut Vec<f64>) -> f64 {
    turns.remove(0);
    turns.sort_by(f64::total_cmp);
    turns[turns.len() / 2]
}

fn environment(folder: &Path) -> anyhow::Result<PathBuf> {
    let python = folder.join("bin/python");
    if !python.exists() {
        step(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
        step(Command::new(&python).args(["-m", "pip", "install", "-q", "msgspec"]))?;
    }
    Ok(python)
}

fn step(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("{command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

/// A Python process that decodes when told to.
struct Peer {
    process: Child,
    ask: ChildStdin,
    answer: BufReader<ChildStdout>,
}

impl Peer {
    fn start(python: &Path, message: &Path, class: &str, fields: &[String]) -> anyhow::Result<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/decode.py");
        let mut process = Command::new(python)
            .arg(script)
            .arg(message)
            .arg(class)
            .args(fields)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| python.display().to_string())?;
        let ask = process.stdin.take().context("the peer's stdin")?;
        let answer = BufReader::new(process.stdout.take().context("the peer's stdout")?);
        Ok(Self { process, ask, answer })
    }

    /// Nanoseconds a message over `n` messages.
    fn turn(&mut self, n: u32) -> anyhow::Result<f64> {
        writeln!(self.ask, "{n}")?;
        let mut line = String::new();
        self.answer.read_line(&mut line)?;
        line.trim().parse().with_context(|| format!("the peer said {line:?}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It ends with its stdin; killing it by its own id covers a peer that hangs.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
