//! `cargo xtask e2e --real`: runs a real SGLang server with its model on the CPU, and compares the report with the clients' counts.
//!
//! `engine/real` contains the rows. This module prepares the servers' packages and the program under test.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Options, pass_on};
use crate::script::{root, succeed, tokengap};

const RELEASES: [&str; 2] = ["0.5.9", "0.5.23"];

/// Installs missing packages and runs the rows.
pub(super) fn run(options: &Options) -> Result<()> {
    let servers = folder("sglang")?;
    for release in RELEASES {
        installed("sglang", release)?;
    }
    let program = tokengap(options.tokengap.as_deref())?;
    let mut rows = Command::new(servers.join("venv-0.5.9/bin/python"));
    rows.args(["-m", "engine.real", "--tokengap"]).arg(program);
    rows.arg("--home").arg(&servers).current_dir(root());
    if options.quick {
        rows.arg("--quick");
    }
    succeed(pass_on(&mut rows, options)?)
}

/// Installs the packages of a server unless they are there. Returns their Python.
pub(crate) fn installed(engine: &str, release: &str) -> Result<PathBuf> {
    let servers = folder(engine)?;
    let script = match engine {
        "vllm" => "engine/vllm/install.sh",
        _ => "engine/real/install.sh",
    };
    succeed(Command::new(root().join(script)).arg(&servers).arg(release))
        .with_context(|| format!("cannot install the packages of {engine} {release}"))?;
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
