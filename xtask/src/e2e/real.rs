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
    let servers = folder("sglang")?;
    for release in RELEASES {
        installed(home, "sglang", release)?;
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

/// Installs the packages of a server unless they are there. Returns their Python.
pub(crate) fn installed(home: &Home, engine: &str, release: &str) -> Result<PathBuf> {
    let servers = folder(engine)?;
    let script = match engine {
        "vllm" => "engine/vllm/install.sh",
        _ => "engine/real/install.sh",
    };
    let mut install = Command::new(home.root.join(script));
    install.arg(&servers).arg(release);
    ensure!(
        install.status().with_context(|| format!("starting {script}"))?.success(),
        "cannot install the packages of {engine} {release} below {}",
        servers.display()
    );
    Ok(servers.join(format!("venv-{release}/bin/python")))
}

/// Folder of an engine's packages, shared by all checkouts because they need 9 GB.
fn folder(engine: &str) -> Result<PathBuf> {
    let variable = format!("TOKENGAP_{}", engine.to_uppercase());
    if let Some(folder) = env::var_os(&variable) {
        return Ok(folder.into());
    }
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cache")));
    Ok(cache.with_context(|| format!("neither {variable} nor HOME is set"))?.join("tokengap").join(engine))
}
