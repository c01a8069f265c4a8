//! Resident memory of a ledger with 100,000 live requests while a million finish.

mod traffic;

use std::fs;

use trace::{Analysis, Config};
use traffic::{STREAM, Traffic, chunks};

const LIVE: usize = 100_000;
/// Tokens of a request: few, so that many requests start and finish.
const TOKENS: u32 = 12;
/// Finished requests at the readings.
const READINGS: [u64; 5] = [200_000, 400_000, 600_000, 800_000, 1_000_000];

fn main() {
    let mut config = Config::default();
    // Recently finished requests count against this limit together with the live ones.
    config.limits.live_rids = config.limits.live_rids.max(2 * LIVE);
    let (mut traffic, mut stream) = (Traffic::new(LIVE, TOKENS), STREAM);
    let mut frames = traffic.second();
    let without = resident_mib();
    let mut analysis = Analysis::new(config);
    stream.announce(&mut analysis);
    println!("{:>12} {:>12} {:>12}", "live", "finished", "ledger MiB");
    for finished in READINGS {
        while analysis.ledger().totals().requests.finished < finished {
            stream.frames(&chunks(&frames), &mut analysis);
            frames = traffic.second();
        }
        let (ledger, mib) = (analysis.ledger(), resident_mib() - without);
        println!("{:12} {:12} {mib:12.1}", ledger.live_count(), ledger.totals().requests.finished);
    }
}

fn resident_mib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.expect("VmRSS in /proc/self/status") / 1_024.0
}
