//! The screen from a user's view: tokengap in tmux, on a recording of a busy engine and on an idle relay.
//!
//! Frame times are the program's own, logged at exit with `-v`. Key latency is measured from outside through tmux. CPU and memory come from
//! /proc.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use hot::traffic::{HOP, Traffic, frame};
use trace::event::{Event, Taken, What};
use trace::record::{Closing, Header, RecordOptions, Recorder};
use trace::{Config, MonoNs};

use super::aims;
use super::observed::Observed;
use crate::screens;
use crate::tmux::Tmux;

const SECOND: u64 = 1_000_000_000;
/// A wide terminal, which costs more to draw than most.
const SIZE: (u16, u16) = (200, 50);
/// Key presses, alternating between two tabs.
const KEYS: usize = 20;
/// Time limit for a response.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Requests alive at once
    #[arg(long, default_value_t = 10_000)]
    rids: usize,
    /// Seconds of traffic, at 132,000 chunks a second
    #[arg(long, default_value_t = 40)]
    seconds: u64,
    /// The tokengap to measure; by default a release build of this tree
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let binary = match &args.binary {
        Some(binary) => fs::canonicalize(binary).with_context(|| format!("there is no {}", binary.display()))?,
        None => screens::build()?,
    };
    let folder = tempfile::tempdir()?;
    let recording = folder.path().join("busy.tgap");
    write(args, &recording)?;
    busy(args, &binary, folder.path(), &recording)?;
    at_rest(&binary, folder.path())
}

/// Writes a recording of the traffic: each frame is received 1 ms after it is sent, with a tick every 100 ms.
fn write(args: &Args, path: &Path) -> anyhow::Result<()> {
    let header = Header::of("bench", Config::default());
    let mut recorder = Recorder::create(path, &header, RecordOptions::default())?;
    recorder.event(&Event {
        at: MonoNs(0),
        what: What::Hop(HOP),
    });
    let mut traffic = Traffic::new(args.rids, 256, 2_000);
    let (mut seq, mut at) = (0, SECOND);
    for _ in 0..args.seconds {
        traffic.advance();
        let frames = traffic.borrow();
        let step = SECOND / frames.len() as u64;
        for (number, chunks) in frames.iter().enumerate() {
            let frame = frame(seq, chunks);
            let id = frame.id;
            recorder.event(&Event {
                at: MonoNs(at),
                what: What::Sent(frame),
            });
            let taken = Taken {
                id,
                wakeup: Some(seq),
                by: None,
                frame: None,
            };
            recorder.event(&Event {
                at: MonoNs(at + SECOND / 1_000),
                what: What::Taken(taken),
            });
            (seq, at) = (seq + 1, at + step);
            if number % (frames.len() / 10).max(1) == 0 {
                recorder.tick(MonoNs(at));
            }
        }
    }
    let summary = recorder.finish(&Closing::default())?;
    ensure!(summary.dropped == 0, "the disk is too slow for this recording");
    Ok(())
}

fn busy(args: &Args, binary: &Path, folder: &Path, recording: &Path) -> anyhow::Result<()> {
    let log = folder.join("log");
    let command = format!(
        "exec {} -v replay {} --speed 1x 2>{}",
        binary.display(),
        recording.display(),
        log.display()
    );
    let tmux = Tmux::run(SIZE, &command)?;
    let process = Observed(tmux.pid()?);
    wait_for(&tmux, "tok/s")?;
    tmux.press(&["2"])?;
    wait_for(&tmux, "flags")?;
    sleep(Duration::from_secs(3));
    let (from, cpu, rss) = (Instant::now(), process.cpu()?, process.rss()?);
    sleep(Duration::from_secs(args.seconds.saturating_sub(15).clamp(2, 60)));
    let share = process.cpu()?.saturating_sub(cpu).as_secs_f64() / from.elapsed().as_secs_f64();
    let rss_after = process.rss()?;
    let mut answers: Vec<Duration> = Vec::new();
    for _ in 0..KEYS / 2 {
        for (key, sign) in [("4", "frames by residence"), ("2", "flags")] {
            let pressed = Instant::now();
            tmux.press(&[key])?;
            wait_for(&tmux, sign)?;
            answers.push(pressed.elapsed());
        }
    }
    answers.sort();
    tmux.press(&["q"])?;
    let said = wait_for_log(&log)?;
    println!(
        "{} live requests, 132,000 chunks a second, {}x{}",
        args.rids, SIZE.0, SIZE.1
    );
    println!("  {said}");
    // Log format: 812 frames, drawn in 1834 us, p99 ...
    let us = said.split("drawn in ").nth(1).and_then(|rest| rest.split(' ').next());
    let us: f64 = us.and_then(|us| us.parse().ok()).context("how long a frame took")?;
    aims::came("screen.draw", us / 1e3, &[])?;
    println!(
        "  a key is answered in {:.0} ms, at most {:.0} ms of {KEYS} (through tmux)",
        answers[answers.len() / 2].as_secs_f64() * 1e3,
        answers[answers.len() - 1].as_secs_f64() * 1e3
    );
    println!(
        "  cpu {:.1} % of a core (decoding, analysis and screen), rss {} MiB, later {} MiB",
        share * 100.0,
        rss >> 20,
        rss_after >> 20
    );
    Ok(())
}

fn at_rest(binary: &Path, folder: &Path) -> anyhow::Result<()> {
    let command = format!(
        "exec {} tap --listen ipc://{dir}/in --upstream ipc://{dir}/out",
        binary.display(),
        dir = folder.display()
    );
    let tmux = Tmux::run(SIZE, &command)?;
    let process = Observed(tmux.pid()?);
    wait_for(&tmux, "tokengap")?;
    sleep(Duration::from_secs(2));
    let (from, cpu) = (Instant::now(), process.cpu()?);
    sleep(Duration::from_secs(15));
    let share = process.cpu()?.saturating_sub(cpu).as_secs_f64() / from.elapsed().as_secs_f64();
    println!(
        "a relay at rest, with its screen: cpu {:.2} % of a core, rss {} MiB",
        share * 100.0,
        process.rss()? >> 20
    );
    aims::came("screen.idle", share * 100.0, &[])
}

fn wait_for(tmux: &Tmux, sign: &str) -> anyhow::Result<()> {
    let from = Instant::now();
    while !tmux.pane()?.contains(sign) {
        if from.elapsed() > PATIENCE {
            bail!("{sign:?} does not come; the pane shows:\n{}", tmux.pane()?);
        }
    }
    Ok(())
}

/// Waits for the log line with the frame times, written at exit.
fn wait_for_log(log: &Path) -> anyhow::Result<String> {
    let from = Instant::now();
    while from.elapsed() < PATIENCE {
        let text = fs::read_to_string(log)?;
        if let Some((_, said)) = text.lines().find_map(|line| line.split_once("screen: ")) {
            return Ok(said.to_owned());
        }
        sleep(Duration::from_millis(50));
    }
    bail!("the screen did not say how long its frames took")
}
