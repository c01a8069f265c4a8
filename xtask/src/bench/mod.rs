//! `cargo xtask bench`: measurements as ratios, the peers of each taking turns in one run.

mod decode;
mod ledger;
mod relay;
mod screen;

use clap::Subcommand;

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Decoding a frame: ours, CPython's pickle, msgspec
    Decode(decode::Args),
    /// The ledger at 132,000 chunks a second, beside a hash map of counters
    Ledger(ledger::Args),
    /// The relay: a direct connection, ours, `zmq_proxy`
    Relay(relay::Args),
    /// The screen over 10,000 requests: drawing, answering a key, its cost at rest and under load
    Screen(screen::Args),
}

pub(crate) fn run(bench: &Bench) -> anyhow::Result<()> {
    match bench {
        Bench::Decode(args) => decode::run(args),
        Bench::Ledger(args) => ledger::run(args),
        Bench::Relay(args) => relay::run(args),
        Bench::Screen(args) => screen::run(args),
    }
}
