//! Prints the effective configuration as a file that reproduces it.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml_edit::{Array, Value};

use super::flags::settable;

/// Section with the flags that are set; defaults appear as comments.
pub(crate) fn effective(command: &Command, section: &str, matches: &ArgMatches) -> String {
    let lines = settable(command, section)
        .iter()
        .filter_map(|arg| line(arg, matches))
        .collect::<Vec<_>>();
    format!("[{section}]\n{}\n", lines.join("\n"))
}

fn line(arg: &Arg, matches: &ArgMatches) -> Option<String> {
    let (id, long) = (arg.get_id().as_str(), arg.get_long()?);
    let set = matches
        .value_source(id)
        .is_some_and(|source| source != ValueSource::DefaultValue);
    let value = match arg.get_action() {
        ArgAction::SetTrue => matches.get_flag(id).into(),
        ArgAction::Count => i64::from(matches.get_count(id)).into(),
        action => {
            let mut given = matches
                .get_raw(id)
                .into_iter()
                .flatten()
                .map(|raw| plain(&raw.to_string_lossy()));
            match action {
                ArgAction::Append => Value::Array(given.collect::<Array>()),
                _ => match given.next_back() {
                    Some(value) => value,
                    None => return Some(format!("# {long} is not set")),
                },
            }
        }
    };
    let comment = if set { "" } else { "# " };
    Some(format!("{comment}{long} = {value}"))
}

/// Returns a number as a number, anything else as a string.
fn plain(raw: &str) -> Value {
    match raw.parse::<i64>() {
        Ok(n) if n.to_string() == raw => n.into(),
        _ => raw.into(),
    }
}
