//! SIGHUP: reads the file again and applies the changes that are possible during a run. Other changes are listed, and an invalid file
//! changes nothing.

use std::sync::OnceLock;

use clap::{ArgMatches, Command, FromArgMatches};

use super::{add_flags_of_file, effective_config};
use crate::args::LiveArgs;
use crate::log;

/// Flags that can change during a run.
const RELOADABLE_FLAGS: [&str; 5] = ["verbose", "slowest", "hindsight-on", "hindsight-every", "hindsight-max-copies"];

/// Definition of the command line.
static DEFINITION: OnceLock<fn() -> Command> = OnceLock::new();

/// Sets the definition of the command line, by which the file is read again.
pub(crate) fn set_command_definition(command: fn() -> Command) {
    DEFINITION.get_or_init(|| command);
}

/// Definition of the command line.
pub(crate) fn command_definition() -> Command {
    DEFINITION.get().map_or_else(|| Command::new("tokengap"), |command| command())
}

/// Flags in effect.
pub(crate) struct Configured {
    section: String,
    matches: ArgMatches,
}

impl Configured {
    /// Flags at the start of the program; `None` without a file.
    pub(crate) fn at_start(args: &LiveArgs) -> anyhow::Result<Option<Self>> {
        args.config.as_ref().map(|_| Self::parse_current_command_line()).transpose()
    }

    /// Parses the command line of this process again, with the configuration file as it is now.
    fn parse_current_command_line() -> anyhow::Result<Self> {
        let command = command_definition();
        let line = add_flags_of_file(&command, std::env::args_os().collect())?;
        let matches = command.try_get_matches_from(line)?;
        let (section, matches) = matches.subcommand().ok_or_else(|| anyhow::anyhow!("no command"))?;
        Ok(Self { section: section.to_owned(), matches: matches.clone() })
    }

    /// Reads the file again and sets the log level by it. Returns the new flags, and a message about the changed ones. An error changes
    /// nothing.
    pub(crate) fn reload_and_describe_changes(&mut self) -> anyhow::Result<(LiveArgs, String)> {
        let new = Self::parse_current_command_line()?;
        let args = LiveArgs::from_arg_matches(&new.matches)?;
        log::init_or_change_level(new.matches.get_count("verbose"));
        let message = describe_changes(&self.effective_text(), &new.effective_text());
        *self = new;
        Ok((args, message))
    }

    fn effective_text(&self) -> String {
        effective_config(&command_definition(), &self.section, &self.matches)
    }
}

/// Names of the flags whose lines differ between two texts of the configuration in effect. Both list all flags in the same order.
fn changed_flag_names<'t>(old_text: &str, new_text: &'t str) -> Vec<&'t str> {
    let mut names = Vec::new();
    for (old_line, new_line) in old_text.lines().zip(new_text.lines()) {
        if old_line != new_line {
            // The line of a flag with its default value is a comment. The name is its first word.
            let line = new_line.trim_start_matches("# ");
            names.push(line.split(' ').next().unwrap_or_default());
        }
    }
    names
}

/// Describes what a reload of the configuration has changed, from its texts before and after. Flags that cannot change during the run are
/// listed apart, because they change at the next start. The message then begins with `!`.
fn describe_changes(old_text: &str, new_text: &str) -> String {
    let mut changed_now = Vec::new();
    let mut changed_later = Vec::new();
    for name in changed_flag_names(old_text, new_text) {
        let changed = if RELOADABLE_FLAGS.contains(&name) { &mut changed_now } else { &mut changed_later };
        changed.push(name);
    }
    let mut parts = Vec::new();
    if !changed_now.is_empty() {
        parts.push(format!("changed {}", changed_now.join(", ")));
    }
    if !changed_later.is_empty() {
        parts.push(format!("{} will change at the next start", changed_later.join(", ")));
    }
    if parts.is_empty() {
        parts.push("no changes".to_owned());
    }
    let mark = if changed_later.is_empty() { "" } else { "! " };
    format!("{mark}configuration reloaded: {}", parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_reports_immediate_and_deferred_changes() {
        let old = "[attach]\nslowest = 1\n# ring = 5\n";
        assert_eq!(describe_changes(old, old), "configuration reloaded: no changes");
        let new = "[attach]\nslowest = 2\nring = 6\n";
        assert_eq!(
            describe_changes(old, new),
            "! configuration reloaded: changed slowest; ring will change at the next start"
        );
    }
}
