//! `tokengap`: where an LLM server's tokens wait between the scheduler and the client, and which ones never arrive.

mod about;
mod action;
mod app;
mod attach;
mod cli;
mod cmd;
mod demo;
mod drive;
mod keys;
mod log;
mod observer;
mod output;
mod own;
mod progress;
mod replay;
mod screen;
mod sink;
mod source;
mod state;
mod telemetry;
mod theme;
mod view;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use signal_hook::consts::SIGXFSZ;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tokengap: {}", in_one_line(&error));
            ExitCode::from(2)
        }
    }
}

fn run() -> anyhow::Result<ExitCode> {
    // A limit on file sizes ends the writing with an error that is told, and not the process: traffic may run through it.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).context("cannot listen for signals")?;
    let nothing_asked = std::env::args_os().len() == 1;
    let cli = if nothing_asked && app::has_terminal() && std::io::stdin().is_terminal() {
        let Some(line) = cmd::pick::run()? else {
            return Ok(ExitCode::SUCCESS);
        };
        eprintln!("tokengap {}", line.join(" "));
        cli::Cli::parse_from(std::iter::once("tokengap".to_owned()).chain(line))
    } else {
        cli::Cli::parse()
    };
    cli::init_log(cli.verbose);
    cli.run()
}

/// The error and its causes, without those that an earlier one has already told.
fn in_one_line(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .fold(String::new(), |line, cause| match line.as_str() {
            "" => cause,
            told if told.contains(&cause) => line,
            _ => format!("{line}: {cause}"),
        })
}

/// A reader that closed early (`tokengap ... | head`) has what it wanted.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
}
