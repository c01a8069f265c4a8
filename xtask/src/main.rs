//! `cargo xtask`: what the project does to itself. One file a command.

mod bench;
mod schemas;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "What the project does to itself")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure: ratios, the peers taking turns
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Bring the table of SGLang's message layouts up to date
    Schemas(schemas::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Bench(what) => bench::run(&what),
        Command::Schemas(args) => schemas::run(&args),
    }
}
