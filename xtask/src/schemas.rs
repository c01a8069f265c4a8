//! `cargo xtask schemas`: updates the tables of message layouts from released wheels, with `schemas.py` (SGLang) and `layouts.py` (vLLM).

use anyhow::Result;

use crate::script;

pub(crate) const SGLANG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../engines/src/sglang/wire/schemas.txt");
const VLLM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../engines/src/vllm/layouts.txt");

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Read every release again, including those in the tables
    #[arg(long)]
    all: bool,
    /// Write nothing; fail if a table would change
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let flags = [args.all.then_some("--all"), args.check.then_some("--check")];
    [("schemas.py", SGLANG), ("layouts.py", VLLM)]
        .into_iter()
        .try_for_each(|(script, table)| script::run(script, [table].into_iter().chain(flags.into_iter().flatten())))
}
