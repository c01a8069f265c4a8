//! `cargo xtask pod`: runs the release binary alone in a root folder, and in containers next to a running engine at every privilege level
//! of a pod. Prints the table of docs/install.md.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::e2e::setup::Home;
use crate::{dist, script};

/// SGLang release of the engine to attach to.
const RELEASE: &str = "0.5.23";

/// Run the release binary in an empty root and in containers, at every privilege level
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The static program [default: the result of `cargo xtask dist`]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let program = dist::program(options.program.as_deref())?;
    ensure!(rustix::process::geteuid().is_root(), "containers need root");
    Home::find().prepare(&[RELEASE])?;
    // The pod: engine and containers share a PID namespace in which nothing else runs. All of them exit with it.
    let mut check = script::python("pod/check.py")?;
    check.arg(program).args([RELEASE, env!("CARGO_PKG_VERSION")]);
    script::in_pid_namespace(&check)
}
