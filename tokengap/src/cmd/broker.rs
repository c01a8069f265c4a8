//! `tokengap broker`: hidden command, started by [`crate::broker`].

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use rustix::stdio::stdin;

use super::ignore_ending_signals;
use crate::broker::{self, ResultFiles};
use crate::confinement;

/// Creates files of results for the process at the other end of its standard input.
#[derive(clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {
    #[command(flatten)]
    results: ResultFiles,
}

/// The process that creates, renames and removes result files for a confined tokengap.
pub(crate) fn run_broker(args: &Args) -> anyhow::Result<ExitCode> {
    let ResultFiles { file, folder, .. } = &args.results;
    // A result file stands for its folder, in which the confinement permits writing.
    let files_in_folders: Vec<PathBuf> = folder.iter().map(|folder| folder.join("any")).collect();
    let paths: Vec<Option<&Path>> = file.iter().chain(&files_in_folders).map(|path| Some(path.as_path())).collect();
    // Opens the folders before the confinement: afterwards, paths through the root of another process cannot be opened.
    let rules = broker::Rules::new(args.results.clone());
    let no_inputs = [];
    confinement::confine_to_files(&no_inputs, &paths);
    // This process ends when tokengap does. tokengap receives these signals, too, and needs this process to complete its files.
    ignore_ending_signals()?;
    broker::serve_requests(stdin(), rules).context("cannot serve requests for files")?;
    Ok(ExitCode::SUCCESS)
}
