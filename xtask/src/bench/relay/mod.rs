//! The relay against a direct connection, `zmq_proxy`, the `zeromq` crate, socat and a minimal relay: libzmq peers on both sides, real
//! frames, alternating turns.

mod least;
mod process;
mod said;
mod serve;
mod stuck;
mod table;
mod turn;
mod way;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use turn::Traffic;
use way::Way;

/// Recorded frame from which frames of all sizes are made.
pub(super) const FIXTURE: &str = "zmq-tap/fixtures/messages/0.5.9/skip_delta_256rid.pkl";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Turns each way takes; the medians are compared
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Bytes that pass in one turn, in MiB
    #[arg(long, default_value_t = 512)]
    volume: u64,
    /// Messages a second that the sender sends; 0 is as fast as it goes
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// Message sizes in KiB
    #[arg(long, value_delimiter = ',', default_value = "16,64,256")]
    sizes: Vec<u64>,
    /// Message sizes in KiB whose latency is measured, at 1,000 messages a second
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
    latency: Vec<u64>,
    /// Only this: throughput, latency or stuck
    #[arg(long)]
    only: Option<String>,
    /// Only ways whose name contains one of these; a direct connection is always there
    #[arg(long, value_delimiter = ',')]
    ways: Vec<String>,
    /// Run as the relay of one turn: LISTEN UPSTREAM decode|count|crate|least MESSAGE
    #[arg(long, hide = true, num_args = 4)]
    serve: Vec<String>,
}

/// Message rate at which every way is idle between two messages, and messages per turn. Many short turns, because process placement by the
/// scheduler shifts a turn's median by tens of microseconds.
const PACE: u64 = 1_000;
const PACED: u64 = 400;
const PACED_ROUNDS: usize = 12;
/// Paced turns for each turn at full speed.
const PACED_A_ROUND: usize = 4;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if let [listen, upstream, mode, message] = &args.serve[..] {
        return serve::serve(listen, upstream, mode, message);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the workspace")?;
    let folder = tempfile::tempdir()?;
    let peer = compile(folder.path())?;
    let message = |size: u64| {
        let file = folder.path().join(format!("{size}.pkl"));
        frame(&root.join(FIXTURE), size << 10, &file).map(|()| file)
    };
    let mut ways = way::possible();
    let wanted = |name: &str| args.ways.is_empty() || args.ways.iter().any(|part| name.contains(part.as_str()));
    ways.retain(|(way, name)| *way == Way::Direct || wanted(name));
    let wanted = |part: &str| args.only.as_deref().is_none_or(|only| only == part);
    if wanted("throughput") {
        println!(
            "{:26} {:>9} {:>9} {:>7} {:>11} {:>12} {:>12} {:>9} {:>9}",
            "libzmq peers over ipc",
            "bytes",
            "msg/s",
            "ratio",
            "spread",
            "copy us/msg",
            "all us/msg",
            "peak MiB",
            "observed"
        );
        for &size in &args.sizes {
            let rows = table::throughput(&ways, &peer, &message(size)?, args.volume << 20, args.rate, args.rounds)?;
            if args.rate == 0 {
                said::throughput(size, &rows)?;
            }
        }
    }
    // The following measurements cover only the ways that a user could choose.
    ways.retain(|(way, _)| !matches!(way, Way::Least | Way::Floor("splice" | "tee")));
    if wanted("latency") {
        println!(
            "\n{:26} {:>9} {:>9} {:>9} {:>9} {:>9} {:>12}",
            format!("{PACE} messages a second"),
            "bytes",
            "p50 us",
            "beyond",
            "p99 us",
            "beyond",
            "all us/msg"
        );
        for &size in &args.latency {
            let traffic = Traffic {
                peer: &peer,
                message: &message(size)?,
                count: PACED,
                rate: PACE,
                connections: 1,
            };
            let rounds = (args.rounds * PACED_A_ROUND).min(PACED_ROUNDS);
            said::latency(size, &table::latency(&ways, traffic, rounds)?)?;
        }
    }
    if wanted("stuck") {
        stuck::run(&ways, &peer, &message(16)?)?;
    }
    Ok(())
}

/// Minimum CPU microseconds per message of the counting relay over the rounds.
pub(super) fn counting_us(peer: &Path, message: &Path, connections: u32, rounds: u32) -> anyhow::Result<f64> {
    /// Bytes of a turn: at least a few hundred messages, and some for each connection.
    const VOLUME: u64 = 128 << 20;
    let bytes = std::fs::metadata(message)?.len();
    let traffic = Traffic {
        peer,
        message,
        count: (VOLUME / bytes).clamp(256, 32_768).max(u64::from(connections) * 16),
        rate: 0,
        connections,
    };
    let mut least = f64::INFINITY;
    for _ in 0..rounds {
        if let Some(cost) = turn::turn(Way::Counting, traffic)?.between {
            least = least.min(cost.all_us);
        }
    }
    Ok(least)
}

/// Compiles the peers, which are in C so that the measurement covers libzmq's own sending and receiving.
pub(super) fn compile(folder: &Path) -> anyhow::Result<PathBuf> {
    let (source, peer) = (
        concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/relay/peer.c"),
        folder.join("peer"),
    );
    let built = Command::new("cc")
        .args(["-O2", "-Wall", "-o"])
        .arg(&peer)
        .args([source, "-lzmq", "-pthread"])
        .status();
    match built {
        Ok(status) if status.success() => Ok(peer),
        _ => bail!("the peers need a C compiler and libzmq's headers: apt-get install gcc libzmq3-dev"),
    }
}

/// Writes a frame of about `size` bytes by repeating the requests of `fixture`.
pub(super) fn frame(fixture: &Path, size: u64, out: &Path) -> anyhow::Result<()> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/relay/frame.py");
    let size = size.to_string();
    let mut command = Command::new("python3");
    command
        .arg(script)
        .arg(fixture)
        .arg(size.as_str())
        .arg(out)
        .stdout(Stdio::null());
    if !command.status().context("python3")?.success() {
        bail!("no frame of {size} bytes could be made of {}", fixture.display());
    }
    Ok(())
}
