//! Converts between clap's flags and values of a file.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml_edit::{Array, Value};

/// Flags that a file can set: all of the subcommand and the program, except those about the file itself.
pub(super) fn settable_flags(command: &Command, subcommand_name: &str) -> Vec<Arg> {
    let subcommand = command.find_subcommand(subcommand_name);
    let own = subcommand.into_iter().flat_map(Command::get_arguments);
    let global = command.get_arguments().filter(|arg| arg.is_global_set());
    own.chain(global).filter(|arg| is_settable(arg)).cloned().collect()
}

/// Returns whether a configuration file may set the flag.
fn is_settable(arg: &Arg) -> bool {
    let is_about_the_file = ["config", "print_config"].contains(&arg.get_id().as_str());
    let sets_value =
        matches!(arg.get_action(), ArgAction::Set | ArgAction::Append | ArgAction::SetTrue | ArgAction::Count);
    arg.get_long().is_some() && sets_value && !is_about_the_file && !arg.is_hide_set()
}

/// Long name of a flag, without its dashes.
pub(super) fn long_name(arg: &Arg) -> &str {
    arg.get_long().unwrap_or_default()
}

/// Command-line words that set a flag to the value that the configuration file has for it. No words if the value turns the flag off. Fails
/// if the flag needs another kind of value.
pub(super) fn flag_words(arg: &Arg, value: &Value) -> Result<Vec<OsString>, String> {
    let flag = format!("--{}", long_name(arg));
    let words = match arg.get_action() {
        ArgAction::SetTrue => words_of_switch(flag, value),
        ArgAction::Count => words_of_counter(flag, value),
        ArgAction::Append => words_of_list(&flag, value),
        _ => flag_with_value(&flag, value).map(|word| vec![word]),
    };
    words.ok_or_else(|| {
        format!("{} must be {}, not {}", long_name(arg), expected_value_in_words(arg), kind_in_words(value))
    })
}

/// Values that the flag accepts, for a message.
fn expected_value_in_words(arg: &Arg) -> &'static str {
    match arg.get_action() {
        ArgAction::SetTrue => "true or false",
        ArgAction::Count => "a number from 0 to 255",
        ArgAction::Append => "a list of values",
        _ => "a string or a number",
    }
}

/// The flag, or nothing if the value is false. `None` if the value is not boolean.
fn words_of_switch(flag: String, value: &Value) -> Option<Vec<OsString>> {
    let is_on = value.as_bool()?;
    Some(if is_on { vec![flag.into()] } else { Vec::new() })
}

/// The flag, repeated as often as the value says. `None` if the value is no number from 0 to 255: clap counts repetitions in a byte.
fn words_of_counter(flag: String, value: &Value) -> Option<Vec<OsString>> {
    let count = u8::try_from(value.as_integer()?).ok()?;
    Some(vec![flag.into(); usize::from(count)])
}

/// The flag with each value of a list, or with a single value. `None` if one has the wrong type.
fn words_of_list(flag: &str, value: &Value) -> Option<Vec<OsString>> {
    match value {
        Value::Array(values) => values.iter().map(|value| flag_with_value(flag, value)).collect(),
        single => flag_with_value(flag, single).map(|word| vec![word]),
    }
}

/// `--flag=value`; `None` for a table, a list, a boolean or a date.
fn flag_with_value(flag: &str, value: &Value) -> Option<OsString> {
    match value {
        Value::String(text) => Some(format!("{flag}={}", text.value()).into()),
        Value::Integer(number) => Some(format!("{flag}={}", number.value()).into()),
        Value::Float(number) => Some(format!("{flag}={}", number.value()).into()),
        _ => None,
    }
}

/// Kind of a TOML value in words.
fn kind_in_words(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::InlineTable(_) => "a table",
    }
}

/// The known name that is most similar to the typed one; `None` if none is similar.
pub(crate) fn most_similar_name<'a>(typed_name: &str, known_names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// Names with at most this similarity are no typing errors; 1 is equality.
    const MIN_SIMILARITY: f64 = 0.5;
    let mut most_similar = None;
    let mut highest_similarity = 0.0;
    for candidate in known_names {
        let similarity = strsim::normalized_damerau_levenshtein(typed_name, candidate);
        // Of equally similar names, the last one is chosen.
        if similarity > MIN_SIMILARITY && similarity >= highest_similarity {
            highest_similarity = similarity;
            most_similar = Some(candidate);
        }
    }
    most_similar
}

/// The effective configuration as a file that reproduces it: one section with a line for each flag. Defaults are comments.
pub(crate) fn effective_config(command: &Command, section: &str, matches: &ArgMatches) -> String {
    let lines = settable_flags(command, section).iter().filter_map(|arg| config_line(arg, matches)).collect::<Vec<_>>();
    format!("[{section}]\n{}\n", lines.join("\n"))
}

/// The flag's line in a configuration file, as a comment if it has its default. `None` if the flag has no long name.
fn config_line(arg: &Arg, matches: &ArgMatches) -> Option<String> {
    let id = arg.get_id().as_str();
    let long = arg.get_long()?;
    let is_set = matches.value_source(id).is_some_and(|source| source != ValueSource::DefaultValue);
    let value = match arg.get_action() {
        ArgAction::SetTrue => matches.get_flag(id).into(),
        ArgAction::Count => i64::from(matches.get_count(id)).into(),
        ArgAction::Append => Value::Array(raw_values(id, matches).collect::<Array>()),
        // If the flag is given several times, the last value counts.
        _ => match raw_values(id, matches).next_back() {
            Some(value) => value,
            None => return Some(format!("# {long} is not set")),
        },
    };
    let comment = if is_set { "" } else { "# " };
    Some(format!("{comment}{long} = {value}"))
}

/// Values of a flag as they were written. A parsed value has lost its form, such as the unit of a duration.
fn raw_values(id: &str, matches: &ArgMatches) -> impl DoubleEndedIterator<Item = Value> {
    matches.get_raw(id).into_iter().flatten().map(|raw| toml_value(&raw.to_string_lossy()))
}

/// TOML value of the text of a flag: a number if the text is one, otherwise a string.
fn toml_value(raw: &str) -> Value {
    match raw.parse::<i64>() {
        // Another form, such as `007`, would be lost.
        Ok(number) if number.to_string() == raw => number.into(),
        _ => raw.into(),
    }
}
