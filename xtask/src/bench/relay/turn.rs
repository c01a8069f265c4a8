//! One turn of one way: a sender, a receiver, and what stands between them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::process::Process;
use super::way::Way;

/// What passes in a turn.
#[derive(Clone, Copy)]
pub(super) struct Traffic<'a> {
    /// The C peers.
    pub(super) peer: &'a Path,
    /// A file with the message.
    pub(super) message: &'a Path,
    pub(super) count: u64,
    /// Messages a second; 0: as fast as it goes.
    pub(super) rate: u64,
    /// How many take turns. Over several, messages overtake each other: their time under way is none of this benchmark's.
    pub(super) connections: u32,
}

/// What one turn measured.
pub(super) struct Turn {
    /// Messages a second at the receiver.
    pub(super) rate: f64,
    /// Microseconds from before `zmq_send` to behind `zmq_msg_recv`: half of the messages took no longer, and 99 in 100.
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// What the process between had to do; a direct connection has none.
    pub(super) between: Option<Cost>,
}

/// Costs of the process between.
pub(super) struct Cost {
    /// CPU microseconds a message: of the thread that copies, and of all threads.
    pub(super) copying_us: f64,
    pub(super) all_us: f64,
    pub(super) peak_mib: Option<f64>,
    /// Share of the messages that were decoded (or seen); `None`: of those who look at none.
    pub(super) observed: Option<f64>,
}

pub(super) fn turn(way: Way, traffic: Traffic<'_>) -> Result<Turn> {
    // A killed proxy leaves its socket file: every turn has a folder of its own.
    let folder = tempfile::tempdir()?;
    let at = |name: &str| format!("ipc://{}", folder.path().join(name).display());
    let (front, back) = (at("front"), at("back"));
    let Traffic { peer, message, .. } = traffic;
    let bytes = std::fs::metadata(message)?.len();
    // When each message was sent: memory of both peers, so that the message need not carry it.
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
