//! Benchmark targets. Each benchmark prints its result beside the target; a full run collects all results in one table.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Environment variable with the path of the file in which a full run collects the results.
pub(super) const GATHERED_IN: &str = "TOKENGAP_BENCH_GATHERED_IN";

#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

use Bound::{AtLeast, AtMost};

/// (key, measured quantity, bound, unit), in the order of the table.
type Aim = (&'static str, &'static str, Bound, &'static str);

const AIMS: [Aim; 44] = [
    (
        "decode.0.4.4",
        "decoding 256 requests, pickle of 0.4.4",
        AtMost(8.0),
        "us",
    ),
    ("decode.0.5.9", "the same of 0.5.9", AtMost(8.0), "us"),
    ("decode.0.5.23", "the same of 0.5.23", AtMost(8.0), "us"),
    (
        "decode.pickle",
        "`pickle.loads` over ours, the least of the three",
        AtLeast(12.0),
        "times",
    ),
    (
        "decode.0.5.23-msgpack",
        "decoding 256 requests, msgpack",
        AtMost(8.0),
        "us",
    ),
    ("decode.msgspec", "msgspec over ours", AtLeast(8.0), "times"),
    (
        "relay.16.rate",
        "relay decoding, 16 KiB, messages a second over direct",
        AtLeast(0.9),
        "of direct",
    ),
    ("relay.64.rate", "the same, 64 KiB", AtLeast(0.8), "of direct"),
    ("relay.256.rate", "the same, 256 KiB", AtLeast(0.8), "of direct"),
    (
        "relay.16.peers",
        "the same over the fastest proxy, 16 KiB",
        AtLeast(1.0),
        "times",
    ),
    ("relay.64.peers", "the same, 64 KiB", AtLeast(1.0), "times"),
    ("relay.256.peers", "the same, 256 KiB", AtLeast(1.0), "times"),
    (
        "relay.64.cpu",
        "relay's CPU for 64 KiB over `zmq_proxy`'s, decoding",
        AtMost(0.4),
        "times",
    ),
    ("relay.64.counting", "the same, frames counted", AtMost(0.4), "times"),
    (
        "relay.1.latency",
        "relay's latency added at the median, 1.5 KB",
        AtMost(5.0),
        "us",
    ),
    ("relay.4.latency", "the same, 4 KiB", AtMost(5.0), "us"),
    ("relay.16.latency", "the same, 16 KiB", AtMost(5.0), "us"),
    ("relay.64.latency", "the same, 64 KiB", AtMost(5.0), "us"),
    (
        "relay.stuck.memory",
        "relay's memory, 100 connections to a receiver that takes nothing",
        AtMost(16.0),
        "MiB",
    ),
    (
        "relay.stuck.beyond",
        "messages it takes in beyond a direct connection, for each of them",
        AtMost(0.0),
        "messages",
    ),
    ("probe.pair", "probe, a pyzmq send and receive pair", AtMost(1.2), "us"),
    ("probe.bpftrace", "the same over bpftrace's", AtMost(0.5), "times"),
    (
        "target",
        "`TokenizerManager` at full speed, attached over alone, by CPU time",
        AtLeast(0.99),
        "of its speed",
    ),
    (
        "ledger.rate",
        "ledger and detectors, chunks a second on a core",
        AtLeast(5.0),
        "M",
    ),
    (
        "ledger.share",
        "the same at 132,000 chunks a second",
        AtMost(2.0),
        "% of a core",
    ),
    (
        "ledger.memory",
        "ledger, 100,000 live requests and a million ended",
        AtMost(128.0),
        "MiB",
    ),
    (
        "ledger.grows",
        "the same, last reading over the second",
        AtMost(1.02),
        "times",
    ),
    ("record.size", "recording", AtMost(4.0), "bytes a chunk"),
    (
        "record.written",
        "recording, chunks written a second",
        AtLeast(3.0),
        "M",
    ),
    ("record.read", "recording, chunks read a second", AtLeast(5.0), "M"),
    (
        "record.open",
        "an hour's recording opened and its middle read, by the index",
        AtMost(2_000.0),
        "ms",
    ),
    (
        "export",
        "Perfetto: `json.dump` over ours with the analysis",
        AtLeast(20.0),
        "times",
    ),
    (
        "screen.draw",
        "a frame of the screen with 10,000 live requests",
        AtMost(2.0),
        "ms",
    ),
    ("screen.idle", "the screen at rest", AtMost(1.0), "% of a core"),
    (
        "attach.1.cpu",
        "attach and screen, 4,096 requests at 132,000 tokens a second",
        AtMost(10.0),
        "% of a core",
    ),
    ("attach.1.memory", "the same", AtMost(96.0), "MiB"),
    ("attach.1.lost", "the same, observations missed", AtMost(0.0), "events"),
    (
        "attach.2.cpu",
        "the same at twice the rate",
        AtMost(20.0),
        "% of a core",
    ),
    ("attach.2.memory", "the same", AtMost(96.0), "MiB"),
    ("attach.2.lost", "the same, observations missed", AtMost(0.0), "events"),
    (
        "attach.unaccounted",
        "beyond: frames neither seen nor known to be unseen, at any rate",
        AtMost(0.0),
        "frames",
    ),
    (
        "attach.false",
        "beyond: tokens said to be missing that were not, at any rate",
        AtMost(0.0),
        "tokens",
    ),
    (
        "attach.first",
        "attach, started to the first number on the screen",
        AtMost(500.0),
        "ms",
    ),
    (
        "attach.gone",
        "attach, `q` to the end of the process",
        AtMost(300.0),
        "ms",
    ),
];

/// One result. `beside` holds the same run's results for a peer or for a lower bound, in the same unit.
#[derive(Serialize, Deserialize)]
struct Came {
    key: String,
    value: f64,
    beside: Vec<(String, f64)>,
}

/// Prints a result beside its target, and appends it to the file of a full run if there is one.
pub(super) fn came(key: &str, value: f64, beside: &[(&str, f64)]) -> Result<()> {
    let came = Came {
        key: key.into(),
        value,
        beside: beside.iter().map(|&(what, value)| (what.into(), value)).collect(),
    };
    let aim = AIMS
        .iter()
        .find(|aim| aim.0 == key)
        .with_context(|| format!("no aim is called {key}"))?;
    println!("aim: {}: {}", aim.1, came.against(aim));
    if let Some(path) = std::env::var_os(GATHERED_IN) {
        let mut file = File::options().append(true).create(true).open(path)?;
        writeln!(file, "{}", serde_json::to_string(&came)?)?;
    }
    Ok(())
}

impl Came {
    fn is_met(&self, aim: &Aim) -> bool {
        match aim.2 {
            AtMost(most) => self.value <= most,
            AtLeast(least) => self.value >= least,
        }
    }

    fn against(&self, aim: &Aim) -> String {
        let met = if self.is_met(aim) { "met" } else { "MISSED" };
        format!(
            "{} {}, {met} ({}){}",
            short(self.value),
            aim.3,
            bound(aim.2),
            self.beside(", ", "")
        )
    }

    fn beside(&self, before: &str, otherwise: &str) -> String {
        let each = self
            .beside
            .iter()
            .map(|(what, value)| format!("{what} {}", short(*value)));
        match each.collect::<Vec<_>>().join("; ") {
            none if none.is_empty() => otherwise.to_owned(),
            said => format!("{before}{said}"),
        }
    }
}

fn bound(bound: Bound) -> String {
    match bound {
        AtMost(most) => format!("at most {}", short(most)),
        AtLeast(least) => format!("at least {}", short(least)),
    }
}

/// Formats a number to three significant digits.
fn short(value: f64) -> String {
    let value = if value == 0.0 { 0.0 } else { value };
    match value.abs() {
        whole if value.fract() == 0.0 || whole >= 100.0 => format!("{value:.0}"),
        tens if tens >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Table of all collected results; targets without a result are marked.
pub(super) fn table(gathered: &Path) -> Result<String> {
    let lines = fs::read_to_string(gathered).unwrap_or_default();
    let came: Vec<Came> = lines
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .with_context(|| gathered.display().to_string())?;
    let mut text = String::from("| what | aim | measured | | beside it in the same run |\n|---|---|---|---|---|\n");
    for aim in &AIMS {
        let row = came.iter().rfind(|came| came.key == aim.0);
        let (value, met, beside) = row.map_or(("not measured".into(), "", String::new()), |came| {
            let met = if came.is_met(aim) { "met" } else { "**missed**" };
            (format!("{} {}", short(came.value), aim.3), met, came.beside("", ""))
        });
        writeln!(text, "| {} | {} | {value} | {met} | {beside} |", aim.1, bound(aim.2))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_aim_has_a_key_of_its_own() {
        let mut keys: Vec<_> = AIMS.iter().map(|aim| aim.0).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), AIMS.len());
    }

    #[test]
    fn what_was_measured_is_judged_and_what_was_not_says_so() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines = r#"{"key":"decode.0.4.4","value":8.04,"beside":[["pickle.loads",114.2]]}
                       {"key":"export","value":21.0,"beside":[]}"#;
        fs::write(file.path(), lines).unwrap();
        let table = table(file.path()).unwrap();
        let row = |what: &str| table.lines().find(|line| line.contains(what)).unwrap().to_owned();
        assert!(row("pickle of 0.4.4").ends_with("| at most 8 | 8.04 us | **missed** | pickle.loads 114 |"));
        assert!(row("Perfetto").ends_with("| at least 20 | 21 times | met |  |"));
        assert!(row("probe, a pyzmq").ends_with("| not measured |  |  |"));
    }

    #[test]
    fn numbers_are_short() {
        for (value, said) in [
            (0.0, "0"),
            (-0.0, "0"),
            (8.0, "8"),
            (0.785, "0.79"),
            (12.34, "12.3"),
            (313.6, "314"),
        ] {
            assert_eq!(short(value), said);
        }
    }
}
