//! CPU time of exporting a busy engine's traffic, compared with Python's `json.dump` of the same trace.

use std::fs::File;
use std::io::{self, Write};
use std::process::Command;

use anyhow::{Context, ensure};
use hot::traffic::{CHUNKS_PER_S, Traffic, frame};
use trace::event::{Chunk, Event, Hop, Sees, Taken, What};
use trace::export::{Export, Format, Opening, Options};
use trace::report::ReportInput;
use trace::{Config, HopId, MonoNs, ThreadId};

use super::aims;
use super::ledger::{SECOND, timed};

/// Chunks in the trace for Python, whose time per event does not depend on the size of the trace.
const SAMPLE: u64 = 131_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Chunks to export
    #[arg(long, default_value_t = 1_000_000)]
    chunks: u64,
    /// Requests alive at once
    #[arg(long, default_value_t = 4_096)]
    rids: usize,
    /// Requests in a frame
    #[arg(long, default_value_t = 256)]
    frame: usize,
    /// Tokens of a request, after which another takes its place
    #[arg(long, default_value_t = 200)]
    tokens: u32,
    /// The Python to compare with
    #[arg(long, default_value = "python3")]
    python: String,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(
        args.frame > 0 && args.rids >= args.frame && args.chunks > 0,
        "--rids must be at least --frame, and --frame and --chunks at least 1"
    );
    println!(
        "{:10} {:>9} {:>10} {:>9} {:>10} {:>10} {:>12}",
        "format", "chunks", "lines", "MB", "CPU s", "ns/chunk", "peak RSS MB"
    );
    let mut ns_an_event = 0.0;
    for (name, format) in [
        ("csv", Format::Csv),
        ("otlp", Format::Otlp),
        ("events", Format::Events),
        ("perfetto", Format::Perfetto),
    ] {
        let mut counted = Counted::new(File::create("/dev/null")?);
        let (chunks, ns) = export(args, format, args.chunks, &mut counted)?;
        println!(
            "{name:10} {chunks:9} {:10} {:9.1} {:10.2} {:10.0} {:12.0}",
            counted.lines,
            counted.bytes as f64 / 1e6,
            ns as f64 / 1e9,
            ns as f64 / chunks as f64,
            peak_rss()?
        );
        if format == Format::Perfetto {
            ns_an_event = ns as f64 / counted.lines as f64;
            let python = json_dump(args)?;
            println!(
                "perfetto, an event: ours with the analysis {ns_an_event:.0} ns, Python's json.dump alone {python:.0} ns, ratio {:.1}",
                python / ns_an_event
            );
            aims::came("export", python / ns_an_event, &[])?;
        }
    }
    ensure!(ns_an_event > 0.0, "nothing was exported");
    Ok(())
}

/// Writer that counts the bytes and lines it passes on.
struct Counted<W> {
    to: W,
    bytes: u64,
    lines: u64,
}

impl<W> Counted<W> {
    fn new(to: W) -> Self {
        Self { to, bytes: 0, lines: 0 }
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.to.write(buf)?;
        self.bytes += written as u64;
        self.lines += memchr::memchr_iter(b'\n', &buf[..written]).count() as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Exports at least `most` chunks of traffic; returns the number of chunks and the CPU nanoseconds.
fn export(args: &Args, format: Format, most: u64, out: &mut impl Write) -> anyhow::Result<(u64, u64)> {
    let mut traffic = Traffic::new(args.rids, args.frame, args.tokens);
    let options = Options {
        chunks: 64,
        ..Options::default()
    };
    let opening = Opening::new("bench", env!("CARGO_PKG_VERSION"), MonoNs(SECOND), 0);
    let mut export = Export::new(format, options, Config::default(), &opening, out)?;
    announce(&mut export)?;
    let (mut seq, mut chunks, mut spent) = (0, 0, 0);
    while chunks < most {
        traffic.advance();
        let frames = traffic.borrow();
        let mut done = Ok(());
        spent += timed(|| done = second(&mut export, &frames, seq));
        done?;
        seq += frames.len() as u64;
        chunks += frames.iter().map(Vec::len).sum::<usize>() as u64;
    }
    let mut report = None;
    let ended = timed(|| report = Some(export.finish(&ReportInput::of("bench"))));
    let report = report.context("the export did not end")??;
    ensure!(
        report.chunks.sent == chunks && report.chunks.taken == Some(chunks),
        "the analysis misread the bench's own traffic"
    );
    Ok((chunks, spent + ended))
}

fn announce(export: &mut Export<'_>) -> io::Result<()> {
    let hop = Hop {
        id: HopId(0),
        name: "scheduler->tokenizer",
        endpoint: "",
        worker: None,
        origin: true,
        last: true,
        sees: Sees {
            sent: true,
            taken: true,
            handled: true,
            ..Sees::default()
        },
    };
    export.event(&Event {
        at: MonoNs(SECOND),
        what: What::Hop(hop),
    })
}

/// One second of traffic: each frame is received 1 ms after it is sent and processed 0.1 ms later, with a tick every 100 ms.
fn second(export: &mut Export<'_>, frames: &[Vec<Chunk<'_>>], first: u64) -> io::Result<()> {
    let step = SECOND / frames.len() as u64;
    for (number, chunks) in frames.iter().enumerate() {
        let seq = first + number as u64;
        let at = SECOND + seq * SECOND / (CHUNKS_PER_S / chunks.len() as u64);
        let frame = frame(seq, chunks);
        let id = frame.id;
        let taken = Taken {
            id,
            wakeup: Some(seq),
            by: Some(ThreadId { pid: 4_242, tid: 4_242 }),
            frame: None,
        };
        for (after, what) in [
            (0, What::Sent(frame)),
            (SECOND / 1_000, What::Taken(taken)),
            (SECOND / 1_000 + SECOND / 10_000, What::Handled(id)),
        ] {
            export.event(&Event {
                at: MonoNs(at + after),
                what,
            })?;
        }
        if number % (frames.len() / 10).max(1) == 0 {
            export.tick(MonoNs(at + step))?;
        }
    }
    Ok(())
}

/// Nanoseconds of `json.dump` per event, measured on a shorter trace.
fn json_dump(args: &Args) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("trace.json");
    export(
        args,
        Format::Perfetto,
        SAMPLE.min(args.chunks),
        &mut File::create(&path)?,
    )?;
    let script = "import json, sys, time\n\
                  events = json.load(open(sys.argv[1]))\n\
                  best = float('inf')\n\
                  for _ in range(3):\n    \
                      with open('/dev/null', 'w') as out:\n        \
                          start = time.process_time()\n        \
                          json.dump(events, out)\n        \
                          best = min(best, time.process_time() - start)\n\
                  print(best * 1e9 / len(events))";
    let output = Command::new(&args.python).args(["-c", script]).arg(&path).output();
    let output = output.with_context(|| format!("{} does not run; name a Python with --python", args.python))?;
    let said = String::from_utf8_lossy(&output.stdout);
    said.trim()
        .parse()
        .with_context(|| format!("{}: {}", args.python, String::from_utf8_lossy(&output.stderr)))
}

/// Peak resident memory of this process in megabytes.
fn peak_rss() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kb: f64 = line
        .and_then(|line| line.split_whitespace().next())
        .context("/proc/self/status has no VmHWM")?
        .parse()?;
    Ok(kb / 1e3)
}
