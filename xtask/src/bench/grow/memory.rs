//! Resident memory of a ledger with very many requests, measured in its own process.

use std::process::Command;

use anyhow::{Context, ensure};
use hot::traffic::{CHUNKS_PER_S, HOP, Traffic, frame};
use trace::event::{Event, Taken, What};
use trace::{Analysis, Config, MonoNs};

use super::super::aims;
use super::super::ledger::SECOND;

/// Tokens of a request: few, so that many requests start and finish.
const TOKENS: u32 = 12;
const FRAME: usize = 256;
/// Memory readings taken while requests start and finish.
const READINGS: u64 = 5;

pub(super) fn run(live: usize, finished: u64) -> anyhow::Result<()> {
    let status = Command::new(std::env::current_exe()?)
        .args(["bench", "grow", "--hold"])
        .args(["--live", &live.to_string(), "--finished", &finished.to_string()])
        .status()?;
    ensure!(status.success(), "the process whose memory was read: {status}");
    Ok(())
}

/// Plays the traffic and reports the resident memory added by the ledger.
pub(super) fn hold(live: usize, finished: u64) -> anyhow::Result<()> {
    let mut config = Config::default();
    // Recently finished requests count against this limit beside the live ones.
    config.limits.live_rids = config.limits.live_rids.max(2 * live);
    let mut traffic = Traffic::new(live, FRAME, TOKENS);
    traffic.advance();
    let without = resident_mib()?;
    let mut analysis = Analysis::new(config);
    analysis.apply(&Event {
        at: MonoNs(0),
        what: What::Hop(HOP),
    });
    let (mut seq, mut at, mut told) = (0, SECOND, 0);
    let mut readings: Vec<f64> = Vec::new();
    println!("{:>12} {:>12} {:>12}", "live", "finished", "ledger MiB");
    loop {
        let frames = traffic.borrow();
        for chunks in &frames {
            let sent = frame(seq, chunks);
            let taken = Taken {
                id: sent.id,
                wakeup: Some(seq),
                by: None,
                frame: None,
            };
            for (at, what) in [(at, What::Sent(sent)), (at + SECOND / 1_000, What::Taken(taken))] {
                analysis.apply(&Event { at: MonoNs(at), what });
            }
            seq += 1;
            at += SECOND * FRAME as u64 / CHUNKS_PER_S;
            if seq.is_multiple_of(51) {
                analysis.tick(MonoNs(at));
            }
        }
        let requests = &analysis.ledger().totals().requests;
        if requests.finished >= finished * told / READINGS {
            let mib = resident_mib()? - without;
            println!("{:12} {:12} {mib:12.1}", analysis.ledger().live(), requests.finished);
            readings.push(mib);
            told += 1;
        }
        if requests.finished >= finished {
            let last = readings[readings.len() - 1];
            aims::came("ledger.memory", readings.iter().copied().fold(0.0, f64::max), &[])?;
            // Skip the first reading, taken before any request has finished.
            return aims::came("ledger.grows", last / readings.get(1).copied().unwrap_or(last), &[]);
        }
        traffic.advance();
    }
}

fn resident_mib() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.context("VmRSS in /proc/self/status")?;
    Ok(kib.trim().trim_end_matches(" kB").parse::<f64>()? / 1_024.0)
}
