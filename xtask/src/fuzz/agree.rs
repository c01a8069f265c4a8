//! The decoder against CPython: CPython must read the same requests from every fuzzed input that the decoder accepts.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Compares over the files of the corpus and the seeds; returns a summary line.
pub(super) fn check(root: &Path, corpus: &Path, seeds: &Path) -> Result<String> {
    let build = Command::new("cargo")
        .current_dir(root)
        .args(["build", "--quiet", "--bin", "tokengap"])
        .status()?;
    ensure!(build.success(), "tokengap does not build");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fuzz/agree.py");
    let output = Command::new("python3")
        .arg(&script)
        .arg(root.join("target/debug/tokengap"))
        .args([corpus, seeds])
        .output()
        .context("start python3")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "decoder and CPython disagree:\n{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(said.trim_end().to_owned())
}
