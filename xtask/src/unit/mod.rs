//! `cargo xtask unit`: a real systemd, as PID 1 of its own namespaces, runs the systemd unit next to a real engine. The unit is started
//! before the engine, reloaded, killed and stopped, and the engine restarts.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::e2e::setup::Home;
use crate::{dist, script};

/// SGLang release of the engine to watch.
const RELEASE: &str = "0.5.23";
const SYSTEMD: &str = "/usr/lib/systemd/systemd";

/// Run the systemd unit next to a real engine, under a separate systemd instance
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The program that the unit starts [default: the result of `cargo xtask dist`]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let program = dist::program(options.program.as_deref())?;
    ensure!(rustix::process::geteuid().is_root(), "namespaces and mounts need root");
    ensure!(Path::new(SYSTEMD).exists(), "cannot find {SYSTEMD}");
    Home::find().prepare(&[RELEASE])?;
    script::run("unit/check.py", [program.as_path(), Path::new(RELEASE)])
}
