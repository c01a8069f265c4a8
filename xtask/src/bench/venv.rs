//! Virtual environment for peers from PyPI.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// Path of the environment's program folder, with `package` installed; created under `target/` on first use.
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
