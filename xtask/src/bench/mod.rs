//! `cargo xtask bench`: measurements as ratios, the peers of each taking turns in one run.

mod decode;

use clap::Subcommand;

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Decoding a frame: ours, CPython's pickle, msgspec
    Decode(decode::Args),
}

pub(crate) fn run(bench: &Bench) -> anyhow::Result<()> {
    match bench {
        Bench::Decode(args) => decode::run(args),
    }
}
