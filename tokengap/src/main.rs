//! `tokengap`: where an LLM server's tokens wait between the scheduler and the client, and which ones never arrive.

// Everything printed passes `output` or `log`, which escape it.
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "code for live sources is unused on other systems"))]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[macro_use]
mod log;

mod advice;
mod app;
mod args;
#[cfg(target_os = "linux")]
mod broker;
mod cli;
mod cmd;
mod config;
#[cfg(target_os = "linux")]
mod confinement;
#[cfg(all(test, target_os = "linux"))]
mod documents;
mod headless;
mod named_file;
mod output;
mod progress;
#[cfg(target_os = "linux")]
mod spawn;

#[cfg(target_os = "linux")]
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
#[cfg(target_os = "linux")]
use clap::Parser;
use clap::{CommandFactory, FromArgMatches};
use outputs::report::hostile::{self, EscapeForm, indent_following_lines};
use signal_hook::consts::SIGXFSZ;

/// Only Linux has a confinement.
#[cfg(not(target_os = "linux"))]
mod confinement {
    use std::path::Path;

    /// Does nothing on this system.
    pub(crate) fn disable() {
        // There is no confinement to disable.
    }

    /// Does nothing on this system.
    pub(crate) fn confine_to_files(_: &[&Path], _: &[Option<&Path>]) {
        // There is no confinement.
    }

    /// Does nothing on this system.
    pub(crate) fn confine_watch(_: impl Iterator<Item = u16>, _: &[Option<&Path>]) {
        // There is no confinement.
    }
}

/// Runs the command line. An error is printed with its causes and advice; exit code 2.
fn main() -> ExitCode {
    // First, so that the CPU time reported for tokengap begins here.
    session::own::start();
    match run_command_line() {
        Ok(code) => code,
        // The reader of the output needs no more of it.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            errln!("tokengap: {}", indent_following_lines(&advice::error_line_with_advice(&error)));
            ExitCode::from(2)
        }
    }
}

/// Parses the command line and runs its command.
fn run_command_line() -> anyhow::Result<ExitCode> {
    // With SIGXFSZ caught, a file size limit causes a write error that is reported. The process survives, since traffic may pass through
    // it.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).context("cannot listen for signals")?;
    let Some(cli) = parse_command_line()? else { return Ok(ExitCode::SUCCESS) };
    log::init_or_change_level(cli.verbose);
    tui::theme::set_palette(cli.theme.palette());
    if cli.no_confine {
        confinement::disable();
    }
    cli.run_command()
}

/// Asks the user what to watch, and shows and parses the command line for it. `None` if the user has quit the picker.
#[cfg(target_os = "linux")]
fn pick_and_parse_arguments() -> anyhow::Result<Option<cli::Cli>> {
    let Some(line) = cmd::pick::pick_arguments()? else { return Ok(None) };
    errln!("tokengap {}", line.join(" "));
    let line = std::iter::once("tokengap".to_owned()).chain(line);
    Ok(Some(cli::Cli::parse_from(line)))
}

/// Whether `--print-config` was given. For a command without this flag, clap returns an error.
fn asks_for_configuration(flags: &clap::ArgMatches) -> bool {
    flags.try_get_one::<bool>("print_config").is_ok_and(|print| print == Some(&true))
}

/// Parses the command line. An empty one on a terminal opens the picker. Returns `None` if nothing is left to run, because the user has
/// quit the picker, or `--print-config` was answered. A mistake on the command line ends the process.
fn parse_command_line() -> anyhow::Result<Option<cli::Cli>> {
    // The only argument is the program's name.
    #[cfg(target_os = "linux")]
    if std::env::args_os().len() == 1 && headless::has_terminal() && std::io::stdin().is_terminal() {
        return pick_and_parse_arguments();
    }
    let command = cli::Cli::command();
    config::set_command_definition(cli::Cli::command);
    let line = config::add_flags_of_file(&command, std::env::args_os().collect())?;
    let parsed = cli::shorten_help_to_everyday_flags(command.clone()).try_get_matches_from(&line);
    let matches =
        parsed.unwrap_or_else(|error| print_and_exit(&cli::suggest_most_similar_flag(error, &command, &line)));
    if let Some((section, flags)) = matches.subcommand()
        && asks_for_configuration(flags)
    {
        output::print_result(&config::effective_config(&command, section, flags), EscapeForm::Text)?;
        return Ok(None);
    }
    Ok(Some(cli::Cli::from_arg_matches(&matches).unwrap_or_else(|error| print_and_exit(&error))))
}

/// Prints the help or the error, and ends the process. The text may contain hostile file names, for example from an expanded `*`.
fn print_and_exit(error: &clap::Error) -> ! {
    let text = error.render().to_string();
    // If nothing needs escaping, clap prints the text itself, in colours.
    if *hostile::escape_output(&text, EscapeForm::Text) == *text {
        error.exit();
    }
    // Without colours, which are control characters themselves.
    err!("{text}");
    std::process::exit(error.exit_code());
}

/// Returns whether the error is a closed pipe. That is no failure, because the reader (`tokengap ... | head`) has all it wants.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
}
