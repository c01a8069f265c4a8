//! `tokengap locator`: hidden command, started by the prober and by itself.

use std::process::{Command, ExitCode};

use adapter::discover::InnerServer;
use anyhow::Context;
use foreign::{ExpectedFile, RegularFile};
use probe_user::locator;
use rustix::stdio::{stdin, stdout};

use super::ignore_ending_signals;
use crate::confinement;

/// Finds the probe points of libraries for the process at the other end of its standard input.
#[derive(clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {
    /// Find those of one library, whose descriptor is in the first message on standard input.
    #[arg(long, value_name = "NUMBER")]
    sought: Option<u32>,
}

/// Analyses libraries in two kinds of processes. The one without `--sought` starts another one for each request. That one has `--sought`
/// with the number of a kind of probe points, which it searches in one library.
pub(crate) fn run_locator(args: &Args) -> anyhow::Result<ExitCode> {
    // The first kind starts the second one.
    match args.sought {
        None => start_analysis_for_each_request()?,
        Some(number) => analyse_received_library(number)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts a process for each request on stdin. This process itself reads no library.
fn start_analysis_for_each_request() -> anyhow::Result<()> {
    confinement::drop_rights_beyond_analysis();
    // This process ends when the prober closes its end of the socket.
    ignore_ending_signals()?;
    locator::supervise_analyses(stdin(), command_to_analyse_library).context("cannot analyse libraries")
}

/// Command that starts this program to search one library for the kind of probe points with this number.
fn command_to_analyse_library(sought_number: u32) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("locator").arg(format!("--sought={sought_number}"));
    command
}

/// Receives a library from stdin, searches it and writes the answer to stdout. The process is confined before it reads the first byte.
fn analyse_received_library(sought_number: u32) -> anyhow::Result<()> {
    let sought = locator::sought_by_number(sought_number, &inner_servers()).context("unknown number")?;
    let library = RegularFile::open_located(&locator::receive_library(stdin())?, ExpectedFile::ANY)?;
    let answer = std::fs::File::from(stdout().try_clone_to_owned()?);
    locator::limit_own_resources()?;
    confinement::confine_analysis();
    Ok(locator::answer_once(sought, &library, answer)?)
}

/// Servers inside processes of engines, in the order of their numbers.
pub(crate) fn inner_servers() -> Vec<InnerServer> {
    engines::DISCOVERED.iter().filter_map(|engine| engine.inner_server()).collect()
}
