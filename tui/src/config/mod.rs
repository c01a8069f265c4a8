//! The configuration file: flags of the live sources in TOML. A file's values become flags before the command line's own, which
//! win; what a flag is, and what it takes, only clap knows.

mod file;
mod flags;
mod print;
mod reload;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use file::File;
pub(crate) use print::effective;
pub(crate) use reload::Configured;

/// Flags of a file that cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}:{line}:{column}: {what}")]
pub(crate) struct ConfigError {
    path: String,
    line: usize,
    column: usize,
    what: String,
}

/// The command line with what the file that it names says, if it names one. A command line that is wrong by itself comes back
/// as it is: clap says what is wrong with it.
pub(crate) fn resolve(command: &Command, line: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
    let Some((section, matches, path)) = asked(command, &line) else {
        return Ok(line);
    };
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("--config {}: it cannot be read", path.display()))?;
    Ok(with_file(command, line, &section, &matches, &path, &text)?)
}

/// The subcommand, what the line says of it by itself, and the file that it names.
fn asked(command: &Command, line: &[OsString]) -> Option<(String, ArgMatches, PathBuf)> {
    // What the file gives may be what the line lacks.
    let matches = command.clone().ignore_errors(true).try_get_matches_from(line).ok()?;
    let (section, matches) = matches.subcommand()?;
    let path = matches.try_get_one::<PathBuf>("config").ok()??.clone();
    Some((section.to_owned(), matches.clone(), path))
}

/// `line` with the flags of `text` put behind the subcommand's name.
fn with_file(
    command: &Command,
    line: Vec<OsString>,
    section: &str,
    matches: &ArgMatches,
    path: &Path,
    text: &str,
) -> Result<Vec<OsString>, ConfigError> {
    let file = File::parse(path, text)?;
    let mut flags = Vec::new();
    for entry in file.entries(command, section)? {
        let asked = matches.value_source(entry.arg.get_id().as_str()) == Some(ValueSource::CommandLine);
        let given = flags::of(&entry.arg, &entry.value).map_err(|what| file.error(entry.at, what))?;
        if let Err(what) = accepts(command, section, &given) {
            return Err(file.error(entry.at, what));
        }
        if !asked {
            flags.extend(given);
        }
    }
    let at = line
        .iter()
        .position(|word| word == section)
        .map_or(line.len(), |at| at + 1);
    let mut whole = line;
    whole.splice(at..at, flags);
    Ok(whole)
}

/// Whether the flag takes the value, in clap's judgement.
fn accepts(command: &Command, section: &str, given: &[OsString]) -> Result<(), String> {
    let line = ["tokengap".into(), section.into()]
        .into_iter()
        .chain(given.iter().cloned());
    match command.clone().try_get_matches_from(line) {
        Err(error) if matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) => {
            let said = error.to_string();
            let first = said.lines().next().unwrap_or_default();
            Err(first.trim_start_matches("error: ").to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
