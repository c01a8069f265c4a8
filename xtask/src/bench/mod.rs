//! `cargo xtask bench`: measurements as ratios, the peers of each taking turns in one run.

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
mod record;
mod relay;
mod screen;
mod target;
mod venv;
mod volume;

use clap::Subcommand;

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// All of them, one after the other
    All(all::Args),
    /// `attach` with its screen on 4,096 requests at 132,000 tokens a second, and at multiples until something is lost
    Attach(attach::Args),
    /// Instructions of the hot paths, beside those that are written down
    Count(count::Args),
    /// Decoding a frame: ours, CPython's pickle, msgspec
    Decode(decode::Args),
    /// What observing egress costs a writer, and processes that have nothing to do with it
    Egress(egress::Args),
    /// Exports: a million chunks in each format, beside Python's `json.dump` of the same trace
    Export(export::Args),
    /// How costs grow: with requests, frames, hops, connections; memory with very many requests
    Grow(grow::Args),
    /// The ledger at 132,000 chunks a second, beside a hash map of counters
    Ledger(ledger::Args),
    /// What the probe costs its target: traps alone, lengths, payloads, bpftrace
    Probe(probe::Args),
    /// Recording: bytes a chunk and chunks a second, beside zstd of the raw frames; an hour's file
    Record(record::Args),
    /// The relay beside a direct connection, `zmq_proxy`, the `zeromq` crate, socat: throughput, latency, a stuck receiver
    Relay(relay::Args),
    /// The screen over 10,000 requests: drawing, answering a key, its cost at rest and under load
    Screen(screen::Args),
    /// What attach costs the real `TokenizerManager`, and itself
    Target(target::Args),
    /// What one pod sends and writes: a scrape, OTLP, the feed, a recording
    Volume(volume::Args),
}

pub(crate) fn run(bench: &Bench) -> anyhow::Result<()> {
    match bench {
        Bench::All(args) => all::run(args),
        Bench::Attach(args) => attach::run(args),
        Bench::Count(args) => count::run(args),
        Bench::Decode(args) => decode::run(args),
        Bench::Egress(args) => egress::run(args),
        Bench::Export(args) => export::run(args),
        Bench::Grow(args) => grow::run(args),
        Bench::Ledger(args) => ledger::run(args),
        Bench::Probe(args) => probe::run(args),
        Bench::Record(args) => record::run(args),
        Bench::Relay(args) => relay::run(args),
        Bench::Screen(args) => screen::run(args),
        Bench::Target(args) => target::run(args),
        Bench::Volume(args) => volume::run(args),
    }
}
