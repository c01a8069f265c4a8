//! `tokengap opener`: hidden command, started by `attach`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use probe_user::opener::{self, Permitted};
use rustix::stdio::stdin;
use sources::open_files;

use super::ignore_ending_signals;
use crate::confinement;

/// Opens files of processes for the process at the other end of its standard input.
#[derive(clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {
    /// A process that the user named.
    #[arg(long)]
    pid: Vec<u32>,

    /// A file that the user named.
    #[arg(long)]
    file: Vec<PathBuf>,
}

/// The process that opens files of other processes for a confined tokengap.
pub(crate) fn run_opener(args: &Args) -> anyhow::Result<ExitCode> {
    open_files::raise_open_file_limit(open_files::DISCOVERY);
    confinement::confine_opener();
    // This process ends when tokengap does. tokengap receives these signals, too, and needs this process to complete its report.
    ignore_ending_signals()?;
    let permitted = Permitted { engines: engines::DISCOVERED, pids: args.pid.clone(), files: args.file.clone() };
    opener::serve_connections(stdin(), permitted).context("cannot serve requests for files")?;
    Ok(ExitCode::SUCCESS)
}
