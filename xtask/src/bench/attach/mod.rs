//! `attach` with its screen on an engine's traffic: real frames of 256 requests between libzmq peers, 4,096 live requests at 132,000 tokens
//! a second, then at multiples of that rate until observations are missed. The result must match the peers' own frame counts exactly.

mod peers;
mod starts;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hot::traffic::CHUNKS_PER_S;
use rustix::process::Signal;
use serde_json::Value;

use super::aims;
use super::observed::Observed;
use super::volume::{free_port, scrape};
use crate::e2e::process::Process;
use crate::screens;
use crate::tmux::Tmux;
use peers::{Kit, Peers, REQUESTS, Truth};

/// A wide terminal, which costs more to draw than most.
const SIZE: (u16, u16) = (200, 50);
/// Time limit for attaching or stopping on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds at 132,000 tokens a second
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Multiples of that rate, each without a screen and held against the sender's count to the frame
    #[arg(long, value_delimiter = ',', default_value = "2,16,64")]
    times: Vec<u64>,
    /// Seconds at each multiple
    #[arg(long, default_value_t = 4)]
    burst: u64,
    /// How often to come and go
    #[arg(long, default_value_t = 5)]
    starts: usize,
    /// The tokengap to measure; by default a release build of this tree
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "NOT MEASURED: attach puts probes into processes, which needs root"
    );
    let binary = match &args.binary {
        Some(binary) => fs::canonicalize(binary).with_context(|| format!("there is no {}", binary.display()))?,
        None => screens::build()?,
    };
    let folder = tempfile::tempdir()?;
    let kit = Kit::make(folder.path())?;
    permitted(&kit, &binary, folder.path()).context("NOT MEASURED: attach does not work here")?;
    println!(
        "4,096 live requests, frames of {REQUESTS}; CPU is of one core, all threads, user and system\n\n\
         {:>9} {:>8} {:>6} {:>9} {:>8} {:>8} {:>8} {:>11} {:>11} {:>8} {:>8} {:>6}  CPU us a frame: alone, attached",
        "tokens/s",
        "seconds",
        "CPU %",
        "peak MiB",
        "frames",
        "seen",
        "taken",
        "tokens",
        "seen",
        "requests",
        "seen",
        "lost"
    );
    for (times, seconds) in [(1, args.seconds), (2, args.burst)] {
        with_screen(&kit, &binary, folder.path(), (times, seconds))?;
    }
    println!(
        "\nwithout a screen, until something is lost\n\
         {:>5} {:>9} {:>6} {:>9} {:>9} {:>9} {:>9} {:>12} {:>13} {:>15}  to the frame",
        "times",
        "tokens/s",
        "CPU %",
        "peak MiB",
        "frames",
        "seen",
        "unseen",
        "takes unseen",
        "records lost",
        "tokens missing"
    );
    let (mut unaccounted, mut missing) = (0, 0);
    for times in &args.times {
        let told = held_to_account(&kit, &binary, folder.path(), *times, args.burst)?;
        unaccounted = unaccounted.max(told.0);
        missing = missing.max(told.1);
    }
    aims::came("attach.unaccounted", unaccounted as f64, &[])?;
    aims::came("attach.false", missing as f64, &[])?;
    if args.starts > 0 {
        println!();
        starts::measure(&kit, &binary, folder.path(), args.starts)?;
    }
    Ok(())
}

/// Attaches once without a screen, so that the error of a missing permission is visible.
fn permitted(kit: &Kit, binary: &Path, folder: &Path) -> Result<()> {
    let folder = tempfile::tempdir_in(folder)?;
    let peers = Peers::start(kit, folder.path())?;
    let process = attached(binary, &peers, folder.path())?;
    process.signal(Signal::INT)?;
    process.end_well(PATIENCE).map(drop)
}

/// Starts `attach` without a screen and waits until it has attached.
fn attached(binary: &Path, peers: &Peers, folder: &Path) -> Result<Process> {
    let mut command = Command::new(binary);
    command.args(["attach", "--headless", "--json"]).args(peers.named());
    let mut process = Process::start("attach", command, folder)?;
    process.remark("attached to", PATIENCE)?;
    Ok(process)
}

/// Frames per second at a multiple of the rate.
fn frames_per_s(times: u64) -> f64 {
    (CHUNKS_PER_S * times) as f64 / REQUESTS as f64
}

/// Sends for a number of seconds at a multiple of the rate. Returns the sender's counts and the CPU microseconds per frame of both peers.
fn pass(peers: &mut Peers, (times, seconds): (u64, u64)) -> Result<(Truth, [f64; 2])> {
    let rate = frames_per_s(times);
    let before = peers.cpu()?;
    peers.order((rate * seconds as f64) as u64, rate)?;
    let sent = peers.done(Duration::from_secs(seconds * 2))?;
    let after = peers.cpu()?;
    let spent = [0, 1].map(|peer| after[peer].saturating_sub(before[peer]).as_secs_f64() * 1e6 / sent.frames as f64);
    Ok((sent, spent))
}

/// CPU time of the peers per frame with nothing attached.
fn alone(kit: &Kit, folder: &Path, (times, seconds): (u64, u64)) -> Result<[f64; 2]> {
    let folder = tempfile::tempdir_in(folder)?;
    let mut peers = Peers::start(kit, folder.path())?;
    Ok(pass(&mut peers, (times, seconds))?.1)
}

/// Measures with the screen running; counts come from the metrics endpoint.
fn with_screen(kit: &Kit, binary: &Path, folder: &Path, (times, seconds): (u64, u64)) -> Result<()> {
    let unattached = alone(kit, folder, (times, seconds.min(10)))?;
    let folder = tempfile::tempdir_in(folder)?;
    let mut peers = Peers::start(kit, folder.path())?;
    let port = free_port()?;
    let tmux = on_screen(binary, &peers, &["--metrics", &port.to_string()])?;
    let observed = Observed(tmux.pid()?);
    wait_for(&tmux, |pane| pane.contains("tokengap"))?;
    let (before, from) = (observed.cpu()?, Instant::now());
    let (sent, attached) = pass(&mut peers, (times, seconds))?;
    let cpu = observed.cpu()?.saturating_sub(before).as_secs_f64() / from.elapsed().as_secs_f64();
    peers.settle()?;
    let seen = metrics(port)?;
    let of = |name: &str| -> Result<f64> {
        let name = format!("tokengap_{name}_total");
        let value = seen.get(&name);
        value.copied().with_context(|| format!("the metrics have no {name}"))
    };
    let truth = peers.truth;
    println!(
        "{:9.0} {:8.0} {:6.1} {:9} {:8} {:8} {:8} {:11} {:11} {:8} {:8} {:6}  sender {:.1}, {:.1}; receiver {:.1}, {:.1}",
        sent.tokens as f64 / sent.seconds,
        sent.seconds,
        cpu * 100.0,
        observed.peak()? >> 20,
        truth.frames,
        of("hop_frames_sent")?,
        of("hop_frames_taken")?,
        truth.tokens,
        of("tokens_sent")?,
        truth.begun,
        of("requests_seen")?,
        of("self_events_missed")?,
        unattached[0],
        attached[0],
        unattached[1],
        attached[1],
    );
    for (what, value) in [
        ("cpu", cpu * 100.0),
        ("memory", observed.peak()? as f64 / f64::from(1 << 20)),
        ("lost", of("self_events_missed")?),
    ] {
        aims::came(&format!("attach.{times}.{what}"), value, &[])?;
    }
    Ok(())
}

/// Measures without a screen and checks that the report counts each frame as observed or missed. Returns the frames in neither count and
/// the tokens reported missing.
fn held_to_account(kit: &Kit, binary: &Path, folder: &Path, times: u64, seconds: u64) -> Result<(u64, u64)> {
    let folder = tempfile::tempdir_in(folder)?;
    let mut peers = Peers::start(kit, folder.path())?;
    let process = attached(binary, &peers, folder.path())?;
    let observed = Observed(process.pid());
    let (before, from) = (observed.cpu()?, Instant::now());
    let (sent, _) = pass(&mut peers, (times, seconds))?;
    let cpu = observed.cpu()?.saturating_sub(before).as_secs_f64() / from.elapsed().as_secs_f64();
    peers.settle()?;
    let peak = observed.peak()?;
    process.signal(Signal::INT)?;
    let report: Value = serde_json::from_str(&process.end_well(PATIENCE)?.join("\n"))?;
    let hop = report["hops"]
        .as_array()
        .and_then(|hops| hops.first())
        .context("no hop was seen")?;
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let seen = number(&hop["frames_sent"]);
    let unseen = &report["source"]["wire"]["unseen"];
    let (unseen_sent, unseen_taken) = (number(&unseen["sends"]), number(&unseen["takes"]));
    let truth = peers.truth;
    let missing = number(&report["tokens"]["missing_on_wire"]) + number(&report["chunks"]["tokens_lost"]);
    let exact =
        seen + unseen_sent == truth.frames && (unseen_sent > 0 || number(&report["tokens"]["sent"]) == truth.tokens);
    println!(
        "{times:5} {:9.0} {:6.1} {:9} {:9} {seen:9} {unseen_sent:9} {unseen_taken:12} {:>13} {missing:15}  {}",
        sent.tokens as f64 / sent.seconds,
        cpu * 100.0,
        peak >> 20,
        truth.frames,
        number(&report["self"]["events_missed"]),
        if exact { "yes" } else { "NO" },
    );
    Ok((truth.frames.abs_diff(seen + unseen_sent), missing))
}

/// Starts `attach` in a terminal.
fn on_screen(binary: &Path, peers: &Peers, flags: &[&str]) -> Result<Tmux> {
    let command = format!(
        "exec {} attach {} {}",
        binary.display(),
        peers.named().join(" "),
        flags.join(" ")
    );
    Tmux::run(SIZE, &command)
}

/// Waits until the pane's content satisfies `is_there`.
fn wait_for(tmux: &Tmux, is_there: impl Fn(&str) -> bool) -> Result<()> {
    let from = Instant::now();
    loop {
        let pane = tmux.pane().context("attach has ended; without a screen it says why")?;
        if is_there(&pane) {
            return Ok(());
        }
        if from.elapsed() > PATIENCE {
            bail!("what is waited for does not come; the pane shows:\n{pane}");
        }
        sleep(Duration::from_millis(2));
    }
}

/// Metrics by name, each summed over its labels, since there is only one hop.
fn metrics(port: u16) -> Result<HashMap<String, f64>> {
    let mut sums = HashMap::new();
    for line in scrape(port)?.lines().filter(|line| !line.starts_with('#')) {
        if let Some((name, value)) = line.rsplit_once(' ') {
            let name = name.split('{').next().unwrap_or(name);
            *sums.entry(name.to_owned()).or_default() += value.parse::<f64>().unwrap_or(0.0);
        }
    }
    Ok(sums)
}
