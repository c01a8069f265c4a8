//! `cargo xtask`: what the project does to itself. One file a command.

mod bench;

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
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Bench(what) => bench::run(&what),
    }
}
