//! `cargo xtask bench`: comparative measurements, with the peers of each taking turns in one run.

mod aims;
mod all;
mod attach;
mod count;
mod decode;
mod egress;
mod export;
mod grow;
mod ledger;
mod observed;
mod probe;
mod quartiles;
mod record;
mod relay;
mod screen;
mod target;
mod venv;
mod volume;

use std::env;
use std::process::Command;

use anyhow::{Context, ensure};
use clap::Subcommand;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Bench {
    /// Only one of them; all when none is named
    #[command(subcommand)]
    one: Option<One>,
    #[command(flatten)]
    all: all::Args,
}

#[derive(Subcommand)]
enum One {
    /// `attach` with its screen on 4,096 requests at 132,000 tokens a second, and at multiples until something is lost
    Attach(attach::Args),
    /// Instructions of the hot paths, beside those that are written down
    Count(count::Args),
    /// Decoding a frame: ours, CPython's pickle, msgspec
    Decode(decode::Args),
    /// Cost of observing responses, for the process that writes them and for unrelated processes
    Egress(egress::Args),
    /// Exports: a million chunks in each format, beside Python's `json.dump` of the same trace
    Export(export::Args),
    /// How costs grow: with requests, frames, hops, connections; memory with very many requests
    Grow(grow::Args),
    /// The ledger at 132,000 chunks a second, beside a hash map of counters
    Ledger(ledger::Args),
    /// Cost of the probe for its target: traps alone, lengths, payloads, bpftrace
    Probe(probe::Args),
    /// Recording: bytes a chunk and chunks a second, beside zstd of the raw frames; an hour's file
    Record(record::Args),
    /// The relay beside a direct connection, `zmq_proxy`, the `zeromq` crate, socat: throughput, latency, a stuck receiver
    Relay(relay::Args),
    /// The screen over 10,000 requests: drawing, answering a key, its cost at rest and under load
    Screen(screen::Args),
    /// Cost of attach for the real `TokenizerManager`, and its own CPU time
    Target(target::Args),
    /// Bytes that one pod sends and writes: a scrape, OTLP, the feed, a recording
    Volume(volume::Args),
}

pub(crate) fn run(bench: &Bench) -> anyhow::Result<()> {
    // `count` builds its own program, which is always optimised.
    if cfg!(debug_assertions) && !matches!(bench.one, Some(One::Count(_))) {
        return optimised();
    }
    match &bench.one {
        None => all::run(&bench.all),
        Some(One::Attach(args)) => attach::run(args),
        Some(One::Count(args)) => count::run(args),
        Some(One::Decode(args)) => decode::run(args),
        Some(One::Egress(args)) => egress::run(args),
        Some(One::Export(args)) => export::run(args),
        Some(One::Grow(args)) => grow::run(args),
        Some(One::Ledger(args)) => ledger::run(args),
        Some(One::Probe(args)) => probe::run(args),
        Some(One::Record(args)) => record::run(args),
        Some(One::Relay(args)) => relay::run(args),
        Some(One::Screen(args)) => screen::run(args),
        Some(One::Target(args)) => target::run(args),
        Some(One::Volume(args)) => volume::run(args),
    }
}

/// Runs the same command in a release build, because a debug build would measure nothing useful.
fn optimised() -> anyhow::Result<()> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut same = Command::new(cargo);
    same.args(["run", "--quiet", "--release", "--package", "xtask", "--"]);
    let status = same.args(env::args_os().skip(1)).status().context("cargo")?;
    ensure!(status.success(), "the benchmark's release build: {status}");
    Ok(())
}
