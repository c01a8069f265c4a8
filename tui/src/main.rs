//! `tokengap`: where an LLM server's tokens wait between the scheduler and the client, and which ones never arrive.

mod action;
mod app;
mod attach;
mod cli;
mod cmd;
mod demo;
mod keys;
mod log;
mod observer;
mod own;
mod screen;
mod source;
mod state;
mod theme;
mod view;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    cli::init_log(cli.verbose);
    match cli.run() {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tokengap: {}", in_one_line(&error));
            ExitCode::from(2)
        }
    }
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
