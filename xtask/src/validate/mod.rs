//! `cargo xtask validate`: programs that others wrote read what `tokengap export` writes (docs/reference/exports.md).

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::script;
use crate::toolchain::{output, succeed};

/// Let the tools that traces are for read what tokengap exports
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The recording to export; by default some seconds of the demo are recorded
    recording: Option<PathBuf>,

    /// The tokengap to export with; by default a release build of this tree
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,

    /// Take a picture of the trace in Perfetto's UI too, with the system's Chromium
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(
        output(Command::new("node").arg("--version")).is_ok(),
        "Node is missing, which runs Perfetto's trace processor: install nodejs (Debian: apt-get install nodejs)"
    );
    let (mut check, folder) = (script::python("validate/check.py")?, tempfile::tempdir()?);
    check
        .arg(script::tokengap(options.binary.as_deref())?)
        .arg(folder.path());
    for (flag, file) in [("--recording", &options.recording), ("--picture", &options.picture)] {
        if let Some(file) = file {
            check.arg(flag).arg(std::path::absolute(file)?);
        }
    }
    succeed(&mut check)
}
