//! `cargo xtask e2e --real`: runs a real SGLang server with its model on the CPU, and compares the report with the clients' counts.
//!
//! `engine/real` contains the rows. This module prepares the servers' packages and the program under test.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::setup::{Home, tokengap};
use super::{Options, pass_on};

const RELEASES: [&str; 2] = ["0.5.9", "0.5.23"];

/// Installs missing packages and runs the rows.
pub(super) fn run(home: &Home, options: &Options) -> Result<()> {
    let servers = folder()?;
    for release in RELEASES {
        let mut install = Command::new(home.root.join("engine/real/install.sh"));
        install.arg(&servers).arg(release);
        ensure!(
            install.status().context("starting engine/real/install.sh")?.success(),
            "cannot install the packages of SGLang {release} below {}",
            servers.display()
        );
    }
    let program = tokengap(home, options.tokengap.as_deref())?;
    let mut rows = Command::new(servers.join("venv-0.5.9/bin/python"));
    rows.args(["-m", "engine.real", "--tokengap"]).arg(program);
    rows.arg("--home").arg(&servers).current_dir(&home.root);
    if options.quick {
        rows.arg("--quick");
    }
    pass_on(&mut rows, options)?;
    ensure!(rows.status().context("starting engine.real")?.success(), "rows failed");
    Ok(())
}

/// Folder of the servers' packages, shared by all checkouts because they need 9 GB.
fn folder() -> Result<PathBuf> {
    if let Some(folder) = env::var_os("TOKENGAP_SGLANG") {
        return Ok(folder.into());
    }
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cache")));
    Ok(cache
        .context("neither TOKENGAP_SGLANG nor HOME is set")?
        .join("tokengap/sglang"))
}
