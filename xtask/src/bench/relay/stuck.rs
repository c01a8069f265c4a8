//! A receiver that reads nothing and a hundred senders: the messages that each way buffers beyond a direct connection, and the memory it
//! needs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::super::aims;
use super::process::Process;
use super::way::Way;

const CONNECTIONS: u32 = 100;
/// Message limit: enough to detect a queue, and within the machine's memory, since a proxy does not free its buffers.
const MOST: u32 = 20_000;

pub(super) fn run(ways: &[(Way, &str)], peer: &Path, message: &Path) -> Result<()> {
    let bytes = std::fs::metadata(message)?.len();
    println!(
        "\nreceiver that takes nothing, {CONNECTIONS} connections, {bytes} bytes a message, at most {MOST} are sent"
    );
    println!("{:26} {:>9} {:>12} {:>9}", "", "taken in", "beyond direct", "peak MiB");
    let (mut direct, mut ours, mut floor) = (0, None, None);
    for &(way, name) in ways {
        let (taken, peak) = press(way, peer, message)?;
        if way == Way::Direct {
            direct = taken;
        }
        let beyond = f64::from(taken.saturating_sub(direct)) / f64::from(CONNECTIONS);
        match way {
            Way::Decoding => ours = peak.map(|peak| (beyond, peak)),
            Way::Floor("copy") => floor = peak.map(|peak| (beyond, peak)),
            _ => {}
        }
        let peak = peak.map_or_else(|| "-".into(), |mib| format!("{mib:.1}"));
        println!("{name:26} {taken:9} {:13} {peak:>9}", taken.saturating_sub(direct));
    }
    let (Some(ours), Some(floor)) = (ours, floor) else {
        return Ok(());
    };
    aims::came("relay.stuck.memory", ours.1, &[("read, write", floor.1)])?;
    aims::came("relay.stuck.beyond", ours.0, &[("read, write", floor.0)])
}

/// Messages accepted from the senders, and the memory of the process in between.
fn press(way: Way, peer: &Path, message: &Path) -> Result<(u32, Option<f64>)> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| format!("ipc://{}", folder.path().join(name).display());
    let (front, back) = (at("front"), at("back"));
    let mut receiver = Process::start(Command::new(peer).args(["stuck", &back]))?;
    receiver.expect("READY")?;
    let between = way.start(peer, (&front, &back), message, CONNECTIONS)?;
    let to = if between.is_some() { &front } else { &back };
    let [connections, most] = [CONNECTIONS, MOST].map(|n| n.to_string());
    let mut senders = Command::new(peer);
    senders.args(["press", to]).arg(message).args([connections, most]);
    let mut senders = Process::start(&mut senders)?;
    let taken = senders.line()?.parse().context("how many were taken")?;
    Ok((taken, between.and_then(|between| between.peak_mib())))
}
