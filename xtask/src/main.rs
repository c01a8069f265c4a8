//! `cargo xtask`: what the project does to itself. One file a command.

mod ebpf;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "What the project does to itself")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Ebpf(ebpf::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Ebpf(args) => ebpf::run(&args),
    }
}
