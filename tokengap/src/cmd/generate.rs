//! `tokengap generate`: man pages and shell completions, generated from the command-line definitions.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Command;
use clap_complete::Shell;

use crate::{config, output};

/// Write completions for a shell, or man pages.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  source <(tokengap generate bash)\n  tokengap generate fish > ~/.config/fish/completions/tokengap.fish\n  tokengap generate man -o ~/.local/share/man/man1"
)]
pub(crate) struct Args {
    /// File to generate.
    #[arg(value_enum)]
    what: GeneratedFile,

    /// Output folder, for one man page per command, or for the completions under the name that the shell expects.
    /// Default: standard output, with only tokengap's own man page.
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum GeneratedFile {
    Man,
    Bash,
    Zsh,
    Fish,
}

impl GeneratedFile {
    /// The shell of completions; `None` for man pages.
    fn shell(self) -> Option<Shell> {
        match self {
            Self::Man => None,
            Self::Bash => Some(Shell::Bash),
            Self::Zsh => Some(Shell::Zsh),
            Self::Fish => Some(Shell::Fish),
        }
    }
}

/// `tokengap generate`: writes the man pages or the completions of a shell.
pub(crate) fn run_generate(args: &Args) -> anyhow::Result<ExitCode> {
    let mut command = config::command_definition();
    if let Some(dir) = &args.output {
        std::fs::create_dir_all(dir)
            .and_then(|()| write_generated_files_into(dir, args.what, command))
            .with_context(|| format!("write into {}", dir.display()))?;
    } else {
        let mut text = Vec::new();
        match args.what.shell() {
            Some(shell) => clap_complete::generate(shell, &mut command, "tokengap", &mut text),
            None => clap_mangen::Man::new(command).render(&mut text)?,
        }
        output::raw_stdout().write_all(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the man pages, or the completions for a shell, into a folder.
fn write_generated_files_into(dir: &Path, file_kind: GeneratedFile, mut command: Command) -> std::io::Result<()> {
    match file_kind.shell() {
        Some(shell) => clap_complete::generate_to(shell, &mut command, "tokengap", dir).map(drop),
        None => clap_mangen::generate_to(command.disable_help_subcommand(true), dir),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn made(what: GeneratedFile) -> Vec<(String, String)> {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let args = Args { what, output: Some(dir.path().join("new")) };
        config::set_command_definition(crate::cli::Cli::command);
        run_generate(&args).expect("it is written");
        let mut files: Vec<_> = std::fs::read_dir(dir.path().join("new"))
            .expect("the folder was made")
            .map(|entry| entry.expect("it is listed"))
            .map(|entry| {
                let text = std::fs::read_to_string(entry.path()).expect("it is text");
                (entry.file_name().to_string_lossy().into_owned(), text)
            })
            .collect();
        files.sort();
        files
    }

    #[test]
    fn every_command_has_a_page_that_names_its_flags() {
        let pages = made(GeneratedFile::Man);
        let named = |name: &str| {
            let name = format!("{name}.1");
            &pages.iter().find(|(page, _)| *page == name).expect("it has a page").1
        };
        let commands = crate::cli::Cli::command();
        for sub in commands.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            named(&format!("tokengap-{}", sub.get_name()));
        }
        assert!(named("tokengap-attach").contains("\\-\\-duration"));
        assert!(named("tokengap").contains("tokengap\\-attach(1)"));
    }

    #[test]
    fn completions_use_the_file_name_each_shell_expects() {
        for (what, name) in [
            (GeneratedFile::Bash, "tokengap.bash"),
            (GeneratedFile::Zsh, "_tokengap"),
            (GeneratedFile::Fish, "tokengap.fish"),
        ] {
            let files = made(what);
            assert_eq!(files.len(), 1);
            assert_eq!(files[0].0, name);
            assert!(files[0].1.contains("headless"));
        }
    }
}
