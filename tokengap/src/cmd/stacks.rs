//! `tokengap stacks`: hidden command, started by [`sources::stacks`].

use std::process::ExitCode;

use sources::stacks;

use super::ignore_ending_signals;
use crate::confinement;

/// Reads Python stacks for the process at the other end of its standard input.
#[derive(clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {
    /// Read stacks in this process; otherwise start one that does.
    #[arg(long)]
    reader: bool,
}

/// The process that reads Python stacks, or its supervisor.
pub(crate) fn run_stacks(args: &Args) -> anyhow::Result<ExitCode> {
    // This process ends when tokengap does. tokengap receives these signals, too.
    ignore_ending_signals()?;
    if args.reader {
        confinement::confine_stacks();
        stacks::serve_samples()?;
    } else {
        stacks::supervise_reader()?;
    }
    Ok(ExitCode::SUCCESS)
}
