//! Configuration file with flags of the live sources in TOML. Its values are inserted before the flags of the command line, which take
//! precedence. Flag definitions exist only in clap.

mod file;
mod flags;
mod reload;

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use crate::named_file;

use file::ConfigFile;
pub(crate) use flags::{effective_config, most_similar_name};
pub(crate) use reload::{Configured, command_definition, set_command_definition};

/// Bytes of a configuration file that are read.
const MAX_BYTES: u64 = 1 << 20;

/// Adds the flags of the configuration file, if the command line names one. An invalid command line is returned unchanged, so that clap
/// reports the error.
pub(crate) fn add_flags_of_file(command: &Command, line: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
    let Some(request) = FileRequest::find(command, &line) else { return Ok(line) };
    let path = &request.path;
    let text = read_config_file(path).with_context(|| format!("--config {}: cannot read the file", path.display()))?;
    insert_flags(command, line, &request, &text)
}

/// Reads a configuration file, at most its first `MAX_BYTES`.
fn read_config_file(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    named_file::open(path)?.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// A configuration file that the command line names.
struct FileRequest {
    path: PathBuf,
    /// Name of the subcommand, and of its section in the file.
    section: String,
    /// Matches of the subcommand without the file.
    matches: ArgMatches,
}

impl FileRequest {
    /// The file of `--config`; `None` without that flag, or if the command line cannot be parsed.
    fn find(command: &Command, line: &[OsString]) -> Option<Self> {
        // Ignore errors, since the file may provide required flags.
        let matches = command.clone().ignore_errors(true).try_get_matches_from(line).ok()?;
        let (section, matches) = matches.subcommand()?;
        // For a command without this flag, clap returns an error.
        let value = matches.try_get_one::<PathBuf>("config").ok()?;
        let path = value?.clone();
        Some(Self { path, section: section.to_owned(), matches: matches.clone() })
    }
}

/// Inserts the flags of the configuration file into the command line, after the name of the subcommand. `file_text` is the content of the
/// file. Leaves out flags that the user has given on the command line. Fails at a value that its flag does not accept.
fn insert_flags(
    command: &Command,
    mut line: Vec<OsString>,
    request: &FileRequest,
    file_text: &str,
) -> anyhow::Result<Vec<OsString>> {
    let FileRequest { path, section, matches } = request;
    let file = ConfigFile { path, text: file_text };
    let mut flags = Vec::new();
    for entry in file.entries_for(command, section)? {
        let words = flags::flag_words(&entry.arg, &entry.value).map_err(|what| file.error_at(entry.at, &what))?;
        if let Err(what) = check_flag_value(command, section, &words) {
            return Err(file.error_at(entry.at, &what));
        }
        // The command line takes precedence over the file.
        let is_on_command_line = matches.value_source(entry.arg.get_id().as_str()) == Some(ValueSource::CommandLine);
        if !is_on_command_line {
            flags.extend(words);
        }
    }
    // The section has the name of its subcommand.
    let subcommand_index = line.iter().position(|word| **word == **section);
    let after_subcommand = subcommand_index.map_or(line.len(), |index| index + 1);
    line.splice(after_subcommand..after_subcommand, flags);
    Ok(line)
}

/// Checks with clap whether the flag accepts the value. Ignores other errors, such as a missing flag, because `flag_words` are only a part
/// of the command line.
fn check_flag_value(command: &Command, subcommand: &str, flag_words: &[OsString]) -> Result<(), String> {
    let line = ["tokengap".into(), subcommand.into()].into_iter().chain(flag_words.iter().cloned());
    match command.clone().try_get_matches_from(line) {
        Err(error) if matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) => {
            let message = error.to_string();
            let first_line = message.lines().next().unwrap_or_default();
            Err(first_line.trim_start_matches("error: ").to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
