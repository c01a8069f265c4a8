//! Parsed configuration file with positions for error messages.

use std::path::Path;

use clap::{Arg, Command};
use toml_edit::{Document, Item, Table, Value};

use super::flags::{long_name, most_similar_name, settable_flags};

/// Sections: one for each live source, and a shared one.
const SHARED_SECTION: &str = "live";
pub(super) const SOURCES: [&str; 4] = ["attach", "demo", "tap", "run"];

pub(super) struct ConfigFile<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

/// A key in one of the relevant sections.
pub(super) struct Entry {
    pub(super) arg: Arg,
    pub(super) value: Value,
    /// Offset of the value in the file.
    pub(super) at: usize,
}

impl ConfigFile<'_> {
    /// Creates the error `FILE:LINE:COLUMN: message`, with the position of the byte `byte_offset`.
    pub(super) fn error_at(&self, byte_offset: usize, message: &str) -> anyhow::Error {
        let text_before = self.text.get(..byte_offset).unwrap_or(self.text);
        let line = text_before.matches('\n').count() + 1;
        let start_of_line = text_before.rsplit('\n').next().unwrap_or_default();
        let column = start_of_line.chars().count() + 1;
        anyhow::anyhow!("{}:{line}:{column}: {message}", self.path.display())
    }

    /// The flags that the file sets for the subcommand `section_name`. A flag of its own section takes precedence over the same flag of the
    /// shared section. Fails at the first mistake in any section, also in those of other subcommands.
    pub(super) fn entries_for(&self, command: &Command, section_name: &str) -> anyhow::Result<Vec<Entry>> {
        let document = Document::parse(self.text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            self.error_at(offset, error.message().lines().next().unwrap_or("not valid TOML"))
        })?;
        let root: &Table = document.as_table();
        for (name, item) in root {
            self.check_is_section(root, name, item)?;
            if name != SHARED_SECTION && name != section_name {
                // Read only to find its errors. A section has the name of its subcommand.
                let subcommand = name;
                self.section_entries(root, command, name, subcommand)?;
            }
        }
        let mut entries = self.section_entries(root, command, SHARED_SECTION, section_name)?;
        for own in self.section_entries(root, command, section_name, section_name)? {
            // Replaces the shared value of the same flag.
            entries.retain(|entry| entry.arg.get_id() != own.arg.get_id());
            entries.push(own);
        }
        Ok(entries)
    }

    /// Fails if this item at the top of the file is no section, or has no name of a section.
    fn check_is_section(&self, root: &Table, name: &str, item: &Item) -> anyhow::Result<()> {
        if name != SHARED_SECTION && !SOURCES.contains(&name) {
            let suggestion = did_you_mean(name, SOURCES.into_iter().chain([SHARED_SECTION]));
            let what = format!("unknown section [{name}]{suggestion}");
            return Err(self.error_at(key_offset(root, name, item), &what));
        }
        if item.as_table_like().is_none() {
            let what = format!("[{name}] is a section: put its flags below a line [{name}]");
            return Err(self.error_at(key_offset(root, name, item), &what));
        }
        Ok(())
    }

    /// Reads the keys of this section, each of which sets a flag of `subcommand`. An error names the position of a wrong key.
    fn section_entries(
        &self,
        root: &Table,
        command: &Command,
        section_name: &str,
        subcommand: &str,
    ) -> anyhow::Result<Vec<Entry>> {
        let known_flags = flags_of_section(command, section_name, subcommand);
        let mut entries = Vec::new();
        let Some(table) = root.get(section_name).and_then(Item::as_table_like) else { return Ok(entries) };
        for (key, item) in table.iter() {
            let offset = key_offset(table, key, item);
            let Some(arg) = known_flags.iter().find(|arg| long_name(arg) == key).cloned() else {
                let suggestion = did_you_mean(key, known_flags.iter().map(long_name));
                return Err(self.error_at(offset, &format!("[{section_name}] has no flag {key}{suggestion}")));
            };
            let Some(value) = item.as_value().cloned() else {
                return Err(self.error_at(offset, &format!("{key} is a flag, not a section")));
            };
            let value_offset = value.span().map_or(offset, |span| span.start);
            entries.push(Entry { arg, value, at: value_offset });
        }
        Ok(entries)
    }
}

/// Flags of `subcommand` that this section can set. The shared section has only those of all sources.
fn flags_of_section(command: &Command, section_name: &str, subcommand: &str) -> Vec<Arg> {
    let mut known_flags = settable_flags(command, subcommand);
    if section_name == SHARED_SECTION {
        for source in SOURCES {
            let flags = settable_flags(command, source);
            known_flags.retain(|arg| flags.iter().any(|flag| long_name(flag) == long_name(arg)));
        }
    }
    known_flags
}

/// Byte offset of a key, or of its value if the parser has no position of the key; 0 without both.
fn key_offset(table: &dyn toml_edit::TableLike, key: &str, item: &Item) -> usize {
    let key_span = table.key(key).and_then(toml_edit::Key::span);
    key_span.or_else(|| item.span()).map_or(0, |span| span.start)
}

/// `; did you mean X?` with the most similar of the known names; empty if none is similar.
fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    most_similar_name(name, known).map_or_else(String::new, |known| format!("; did you mean {known}?"))
}
