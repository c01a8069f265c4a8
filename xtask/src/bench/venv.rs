//! The virtual environment of the peers that Python's index has.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// The folder of its programs, `python` among them, with `package` installed; made under `target/` if there is none yet.
pub(super) fn with(package: &str) -> anyhow::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the workspace")?;
    let folder = root.join("target/bench-venv");
    let programs = folder.join("bin");
    let python = programs.join("python");
    if !python.exists() {
        step(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    }
    let pip = |words: &[&str]| {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "--disable-pip-version-check"]).args(words);
        pip
    };
    let known = pip(&["show", "-q", package]).output().context("pip")?;
    if !known.status.success() {
        step(&mut pip(&["install", "-q", package]))?;
    }
    Ok(programs)
}

fn step(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
