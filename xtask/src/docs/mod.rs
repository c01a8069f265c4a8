//! `cargo xtask docs`: runs every command in the documentation, in a folder per page, unless the page gives a reason not to.
//! `tokengap/src/documents` checks that their flags exist.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

use crate::e2e::setup::prepare;
use crate::script;
use crate::script::{output, succeed};

/// SGLang release of the engine that commands attach to.
const RELEASE: &str = "0.5.23";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The tokengap program to run [default: a release build of this tree]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Check only this page
    #[arg(long, value_name = "FILE")]
    only: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    check_documents()?;
    let mut check = script::python("docs/check.py")?;
    check.arg("run").arg(script::tokengap(options.binary.as_deref())?).arg(RELEASE);
    check.args(&options.only);
    if !rustix::process::geteuid().is_root() {
        return succeed(&mut check);
    }
    prepare(&[RELEASE])?;
    script::in_pid_namespace(&check)
}

/// Checks that run no command: links, comments of blocks, and whether every shown `cargo xtask` command exists.
fn check_documents() -> Result<()> {
    let shown = output(script::python("docs/check.py")?.arg("list"))?;
    ensure!(shown.lines().count() > 10, "the pages show too few commands: {shown}");
    for line in shown.lines() {
        let (_, command) = line.split_once("cargo xtask ").context("not a `cargo xtask` command")?;
        let words = std::iter::once("cargo xtask").chain(command.split_whitespace());
        crate::understood(words).with_context(|| line.to_owned())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_links_and_commands_are_valid() -> Result<()> {
        if output(std::process::Command::new("python3").arg("--version")).is_err() {
            eprintln!("SKIPPED: reading the documentation needs python3");
            return Ok(());
        }
        check_documents()
    }
}
