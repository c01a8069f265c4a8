//! The command line: its commands and global flags. Help, man pages and completions are generated from it; every flag is declared once, in
//! `args` or beside its command.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};
use tui::theme::Palette;

use crate::cmd;
use crate::config::most_similar_name;

/// Shows where an LLM server's tokens wait between the scheduler and the client, and which ones never arrive.
#[derive(Parser)]
#[command(name = "tokengap", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 done, 1 findings at or above --fail-on, 2 error.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Log more to stderr (-v, -vv). -vv shows also what the eBPF programs log, if it is given at the start.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Keep all privileges: do not drop capabilities, or restrict files and system calls (docs/internals/CONFINEMENT.md).
    #[arg(long, global = true)]
    pub(crate) no_confine: bool,

    /// Colours of the screen; auto follows `NO_COLOR` and the colours that the terminal reports.
    #[arg(long, global = true, value_enum, value_name = "THEME", default_value_t)]
    pub(crate) theme: ThemeChoice,
}

/// Flags of live commands that `-h` shows; `--help` shows all.
const EVERYDAY: &[&str] = &[
    "pid", "follow", "listen", "upstream", "scenario", "report", "yes", "restore", "duration", "record", "headless",
    "json", "metrics", "fail_on", "help",
];

/// The command line with everyday flags only in the short help of live commands.
pub(crate) fn shorten_help_to_everyday_flags(command: clap::Command) -> clap::Command {
    command.mut_subcommands(|command| {
        // Only live commands have this flag. The help of the others is not shortened.
        if command.get_arguments().all(|arg| arg.get_id() != "headless") {
            return command;
        }
        command.mut_args(|arg| {
            let is_everyday = arg.is_positional() || EVERYDAY.contains(&arg.get_id().as_str());
            arg.hide_short_help(!is_everyday)
        })
    })
}

/// Puts the most similar flag of the command into the error of an unknown flag. Clap's own choice prefers long flags. Any other error is
/// returned unchanged.
pub(crate) fn suggest_most_similar_flag(
    mut error: clap::Error,
    command: &clap::Command,
    command_line: &[OsString],
) -> clap::Error {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    match most_similar_flag(unknown.trim_start_matches('-'), command, command_line) {
        Some(flag) => error.insert(ContextKind::SuggestedArg, ContextValue::String(format!("--{flag}"))),
        None => error.remove(ContextKind::SuggestedArg),
    };
    // The usage line names clap's own choice, too.
    error.remove(ContextKind::Usage);
    error
}

/// The flag that is most similar to `unknown_flag`, among those of the subcommand in `command_line` and the global ones. `None` if none is
/// similar.
fn most_similar_flag<'c>(unknown_flag: &str, command: &'c clap::Command, command_line: &[OsString]) -> Option<&'c str> {
    let mut words = command_line.iter().filter_map(|word| word.to_str());
    let subcommand = words.find_map(|word| command.find_subcommand(word)).unwrap_or(command);
    let arguments = subcommand.get_arguments().chain(command.get_arguments());
    let flags = arguments.filter(|argument| !argument.is_hide_set()).filter_map(clap::Arg::get_long);
    most_similar_name(unknown_flag, flags)
}

/// Defines the commands, in the order of the help, by the modules with their flags and the functions that execute them.
macro_rules! commands {
    ($($(#[$system:meta])? $command:ident($($module:ident)::+, $function:ident),)+) => {
        #[derive(Subcommand)]
        enum Command {
            $($(#[$system])? $command($($module)::+::Args),)+
        }

        impl Cli {
            /// Runs the command of the command line: the function that the list of `commands!` names for it.
            pub(crate) fn run_command(self) -> anyhow::Result<ExitCode> {
                match self.command {
                    $($(#[$system])? Command::$command(args) => $($module)::+::$function(&args),)+
                }
            }
        }
    };
}

commands! {
    #[cfg(target_os = "linux")]
    Attach(cmd::attach, run_attach),
    #[cfg(target_os = "linux")]
    Demo(cmd::demo, run_demo),
    Replay(cmd::replay, run_replay),
    Decode(cmd::decode, run_decode),
    Export(cmd::export, run_export),
    Diff(cmd::diff, run_diff),
    #[cfg(target_os = "linux")]
    Doctor(cmd::doctor, run_doctor),
    Report(cmd::report, run_report),
    Import(cmd::import, run_import),
    #[cfg(target_os = "linux")]
    Tap(cmd::tap, run_tap),
    Watch(cmd::watch, run_watch),
    #[cfg(target_os = "linux")]
    Run(cmd::run, run_child_command),
    #[cfg(target_os = "linux")]
    Splice(cmd::splice, run_splice),
    #[cfg(target_os = "linux")]
    Guard(cmd::guard, run_guard),
    #[cfg(target_os = "linux")]
    Broker(cmd::broker, run_broker),
    #[cfg(all(target_os = "linux", feature = "python-stacks"))]
    Stacks(cmd::stacks, run_stacks),
    #[cfg(target_os = "linux")]
    Prober(cmd::prober, run_prober),
    #[cfg(target_os = "linux")]
    Locator(cmd::locator, run_locator),
    #[cfg(target_os = "linux")]
    Opener(cmd::opener, run_opener),
    Generate(cmd::generate, run_generate),
}

/// Colour theme requested by the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ThemeChoice {
    /// Detected from the terminal.
    #[default]
    Auto,
    /// 256 colours on a dark background.
    Dark,
    /// 256 colours on a light background.
    Light,
    /// Bold, dim and reverse only.
    Mono,
}

impl ThemeChoice {
    /// The palette, unless the terminal decides it.
    pub(crate) fn palette(self) -> Option<Palette> {
        match self {
            Self::Auto => None,
            Self::Dark => Some(Palette::Dark),
            Self::Light => Some(Palette::Light),
            Self::Mono => Some(Palette::Mono),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn an_unknown_flag_names_the_most_similar_flag() {
        let said = |flag: &str| {
            let line = ["tokengap", "attach", flag].map(OsString::from);
            let error = Cli::command().try_get_matches_from(&line).expect_err("an unknown flag");
            suggest_most_similar_flag(error, &Cli::command(), &line).to_string()
        };
        for (typed, meant) in [("--tsl", "--tls"), ("--metric", "--metrics"), ("--verbos", "--verbose")] {
            let said = said(typed);
            assert!(said.contains(&format!("similar argument exists: '{meant}'")), "{said}");
        }
        assert!(!said("--colourless").contains("similar"));
    }
}
