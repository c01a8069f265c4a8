//! SIGHUP: reads the file again and applies the changes that are possible during a run. Other changes are listed, and an invalid file
//! changes nothing.

use clap::{ArgMatches, CommandFactory, FromArgMatches};

use super::{effective, resolve};
use crate::cli::{Cli, LiveArgs, init_log};

/// Flags that can change during a run.
const LIVE: [&str; 5] = [
    "verbose",
    "slowest",
    "hindsight-on",
    "hindsight-every",
    "hindsight-most",
];

/// Flags in effect.
pub(crate) struct Configured {
    section: String,
    matches: ArgMatches,
}

impl Configured {
    /// Flags at the start of the program; `None` without a file.
    pub(crate) fn at_start(args: &LiveArgs) -> anyhow::Result<Option<Self>> {
        args.config.as_ref().map(|_| Self::read()).transpose()
    }

    fn read() -> anyhow::Result<Self> {
        let command = Cli::command();
        let line = resolve(&command, std::env::args_os().collect())?;
        let matches = command.try_get_matches_from(line)?;
        let (section, matches) = matches.subcommand().ok_or_else(|| anyhow::anyhow!("no command"))?;
        Ok(Self {
            section: section.to_owned(),
            matches: matches.clone(),
        })
    }

    /// Reads the file again. Returns the new flags and a message. An error changes nothing.
    pub(crate) fn reread(&mut self) -> anyhow::Result<(LiveArgs, String)> {
        let new = Self::read()?;
        let args = LiveArgs::from_arg_matches(&new.matches)?;
        init_log(new.matches.get_count("verbose"));
        let said = difference(&self.text(), &new.text());
        *self = new;
        Ok((args, said))
    }

    fn text(&self) -> String {
        effective(&Cli::command(), &self.section, &self.matches)
    }
}

/// Lists the changed flags, and those that take effect at the next start.
fn difference(old: &str, new: &str) -> String {
    let changed = old.lines().zip(new.lines()).filter(|(old, new)| old != new);
    let name = |line: &str| {
        line.trim_start_matches("# ")
            .split(' ')
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let names = changed.map(|(_, new)| name(new));
    let (now, later): (Vec<String>, Vec<String>) = names.partition(|name| LIVE.contains(&name.as_str()));
    let list = |names: &[String]| names.join(", ");
    match (now.as_slice(), later.as_slice()) {
        ([], []) => "configuration read again: nothing has changed".into(),
        (now, []) => format!("configuration read again: changed {}", list(now)),
        ([], later) => format!(
            "! configuration read again: {} will change at the next start",
            list(later)
        ),
        (now, later) => format!(
            "! configuration read again: changed {}; {} will change at the next start",
            list(now),
            list(later)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_now_and_what_later_is_said() {
        let old = "[attach]\nslowest = 1\n# ring = 5\n";
        assert_eq!(difference(old, old), "configuration read again: nothing has changed");
        let new = "[attach]\nslowest = 2\nring = 6\n";
        assert_eq!(
            difference(old, new),
            "! configuration read again: changed slowest; ring will change at the next start"
        );
    }
}
