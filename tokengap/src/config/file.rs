//! Parsed configuration file with positions for error messages.

use std::path::Path;

use clap::{Arg, Command};
use toml_edit::{Document, Item, Table, TableLike};

use super::flags::{find, nearest, settable};

/// Sections: one for each live source, and a shared one.
const LIVE: &str = "live";
pub(super) const SOURCES: [&str; 4] = ["attach", "demo", "tap", "run"];

pub(super) use toml_edit::Value;

pub(super) struct File {
    path: String,
    text: String,
    document: Document<String>,
}

/// A key in one of the relevant sections.
pub(super) struct Entry {
    pub(super) arg: Arg,
    pub(super) value: Value,
    /// Offset of the value in the file.
    pub(super) at: usize,
}

impl File {
    pub(super) fn parse(path: &Path, text: &str) -> anyhow::Result<Self> {
        let path = path.display().to_string();
        match Document::parse(text.to_owned()) {
            Ok(document) => Ok(Self { path, text: text.to_owned(), document }),
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                let what = error.message().lines().next().unwrap_or("not valid TOML").to_owned();
                Err(locate(&path, text, at, &what))
            }
        }
    }

    /// Creates the error `what` at this offset.
    pub(super) fn error(&self, at: usize, what: &str) -> anyhow::Error {
        locate(&self.path, &self.text, at, what)
    }

    /// Entries for `section`: shared ones first, then its own, which take precedence. Checks all sections.
    pub(super) fn entries(&self, command: &Command, section: &str) -> anyhow::Result<Vec<Entry>> {
        let root: &Table = self.document.as_table();
        for (name, item) in root {
            if name != LIVE && !SOURCES.contains(&name) {
                let known = SOURCES.iter().copied().chain([LIVE]);
                let what = format!("unknown section [{name}]{}", nearest(name, known));
                return Err(self.error(Self::place(root, name, item), &what));
            }
            if item.as_table_like().is_none() {
                let what = format!("[{name}] is a section: put its flags below a line [{name}]");
                return Err(self.error(Self::place(root, name, item), &what));
            }
            if name != LIVE && name != section {
                self.section(command, name, name)?;
            }
        }
        let mut entries = self.section(command, LIVE, section)?;
        for own in self.section(command, section, section)? {
            entries.retain(|entry| entry.arg.get_id() != own.arg.get_id());
            entries.push(own);
        }
        Ok(entries)
    }

    /// Keys of the section `name`, as flags of the subcommand `of`.
    fn section(&self, command: &Command, name: &str, of: &str) -> anyhow::Result<Vec<Entry>> {
        let Some(table) = self.document.get(name).and_then(Item::as_table_like) else {
            return Ok(Vec::new());
        };
        let known = if name == LIVE {
            settable(command, of)
                .into_iter()
                .filter(|arg| SOURCES.iter().all(|s| find(command, s, long(arg)).is_some()))
                .collect()
        } else {
            settable(command, of)
        };
        let mut entries = Vec::new();
        for (key, item) in table.iter() {
            let at = Self::place(table, key, item);
            let Some(arg) = known.iter().find(|arg| long(arg) == key) else {
                let near = nearest(key, known.iter().map(long));
                return Err(self.error(at, &format!("[{name}] has no flag {key}{near}")));
            };
            let Some(value) = item.as_value() else {
                return Err(self.error(at, &format!("{key} is a flag, not a section")));
            };
            let at = value.span().map_or(at, |span| span.start);
            let (arg, value) = (arg.clone(), value.clone());
            entries.push(Entry { arg, value, at });
        }
        Ok(entries)
    }

    fn place(table: &dyn TableLike, key: &str, item: &Item) -> usize {
        let of_key = table.key(key).and_then(toml_edit::Key::span);
        of_key.or_else(|| item.span()).map_or(0, |span| span.start)
    }
}

fn long(arg: &Arg) -> &str {
    arg.get_long().unwrap_or_default()
}

/// The error `what` with its line and column.
fn locate(path: &str, text: &str, at: usize, what: &str) -> anyhow::Error {
    let before = text.get(..at).unwrap_or(text);
    let (line, last) = (before.matches('\n').count() + 1, before.rsplit('\n').next().unwrap_or_default());
    anyhow::anyhow!("{path}:{line}:{}: {what}", last.chars().count() + 1)
}
