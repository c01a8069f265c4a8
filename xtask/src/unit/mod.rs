//! `cargo xtask unit`: the systemd unit, started by a real systemd that is PID 1 of its own namespaces, beside a real engine: started
//! before it, reloaded, killed, over the engine's restart, stopped.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::e2e::setup::Home;
use crate::{dist, script};

/// SGLang release of the engine to watch.
const RELEASE: &str = "0.5.23";
const SYSTEMD: &str = "/usr/lib/systemd/systemd";

/// Start the systemd unit as a service beside a real engine, under a systemd of its own
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The program that the unit starts; what `cargo xtask dist` made when not given.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let program = dist::program(options.program.as_deref())?;
    ensure!(rustix::process::geteuid().is_root(), "namespaces and mounts need root");
    ensure!(Path::new(SYSTEMD).exists(), "there is no {SYSTEMD}");
    Home::find().prepare(&[RELEASE])?;
    script::run("unit/check.py", [program.as_path(), Path::new(RELEASE)])
}
