//! One turn of one way: a sender, a receiver, and the process between them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::process::Process;
use super::way::Way;

/// Traffic of a turn.
#[derive(Clone, Copy)]
pub(super) struct Traffic<'a> {
    /// Path of the compiled C peers.
    pub(super) peer: &'a Path,
    /// File with the message.
    pub(super) message: &'a Path,
    pub(super) count: u64,
    /// Messages per second; 0 is full speed.
    pub(super) rate: u64,
    /// Connections used in rotation. Messages on different connections overtake each other, so their latency is not measured.
    pub(super) connections: u32,
}

/// Measurements of one turn.
pub(super) struct Turn {
    /// Messages per second at the receiver.
    pub(super) rate: f64,
    /// Microseconds from before `zmq_send` to after `zmq_msg_recv`: median and 99th percentile.
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// Cost of the process in between; `None` for a direct connection.
    pub(super) between: Option<Cost>,
}

/// Cost of the process in between.
pub(super) struct Cost {
    /// CPU microseconds per message: of the copying thread, and of all threads.
    pub(super) copying_us: f64,
    pub(super) all_us: f64,
    pub(super) peak_mib: Option<f64>,
    /// Share of the messages that were decoded (or counted); `None` for ways that inspect none.
    pub(super) observed: Option<f64>,
}

pub(super) fn turn(way: Way, traffic: Traffic<'_>) -> Result<Turn> {
    // A killed proxy leaves its socket file, so every turn has its own folder.
    let folder = tempfile::tempdir()?;
    let at = |name: &str| format!("ipc://{}", folder.path().join(name).display());
    let (front, back) = (at("front"), at("back"));
    let Traffic { peer, message, .. } = traffic;
    let bytes = std::fs::metadata(message)?.len();
    // Send times, in memory shared by both peers so that messages need not carry them.
    let stamps = folder.path().join("stamps");
    std::fs::File::create(&stamps)?.set_len(traffic.count * 8)?;
    let [bytes, count, rate] = [bytes, traffic.count, traffic.rate].map(|n| n.to_string());
    let mut receiver = Process::start(Command::new(peer).args(["recv", &back, &bytes, &count]).arg(&stamps))?;
    receiver.expect("READY")?;
    let mut between = way.start(peer, (&front, &back), message, traffic.connections)?;
    let to = if between.is_some() { &front } else { &back };
    let mut sender = Command::new(peer);
    sender
        .args(["send", to])
        .arg(message)
        .args([&count, &rate])
        .arg(&stamps)
        .arg(traffic.connections.to_string());
    let mut sender = Process::start(&mut sender)?;
    let said = receiver.line()?;
    let mut numbers = said.split(' ').map(str::parse::<f64>);
    let mut number = || {
        numbers
            .next()
            .context("the receiver's numbers")?
            .context("the receiver's numbers")
    };
    let (rate, p50_us, p99_us) = (number()?, number()?, number()?);
    sender.wait()?;
    let cost = |between: &mut Process| cost(between, way, traffic.count as f64);
    Ok(Turn {
        rate,
        p50_us,
        p99_us,
        between: between.as_mut().map(cost).transpose()?,
    })
}

fn cost(between: &mut Process, way: Way, count: f64) -> Result<Cost> {
    let observed = if way.tells_seen() {
        Some(between.line()?.parse::<f64>()? / count)
    } else {
        None
    };
    let cpu = between.cpu()?;
    Ok(Cost {
        copying_us: cpu.copying / count,
        all_us: cpu.all / count,
        peak_mib: between.peak_mib(),
        observed,
    })
}
