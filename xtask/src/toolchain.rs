//! Commands that must succeed.

use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// Runs a command and expects success.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    ensure!(
        status.success(),
        "{} failed ({status}): {command:?}",
        command.get_program().display()
    );
    Ok(())
}

/// Standard output of a command.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out = command
        .output()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    if !out.status.success() {
        bail!(
            "{} failed ({}): {}",
            command.get_program().display(),
            out.status,
            String::from_utf8_lossy(&out.stderr)
        );
    }
    Ok(String::from_utf8(out.stdout)?)
}
