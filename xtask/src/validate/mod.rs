//! `cargo xtask validate`: reads the output of `tokengap export` with third-party programs (docs/reference/exports.md).

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::script;
use crate::script::{output, succeed};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The recording to export [default: a few seconds of the demo]
    recording: Option<PathBuf>,

    /// The tokengap program [default: a release build of this tree]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,

    /// Also take a screenshot of the trace in Perfetto's UI, with the system's Chromium
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,

    /// Read only the Parquet export, which the program must have
    #[arg(long)]
    parquet: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(
        options.parquet || output(Command::new("node").arg("--version")).is_ok(),
        "Perfetto's trace processor needs Node: install nodejs (Debian: apt-get install nodejs)"
    );
    let (mut check, folder) = (script::python("validate/check.py")?, tempfile::tempdir()?);
    check.arg(script::tokengap(options.binary.as_deref())?).arg(folder.path());
    for (flag, file) in [("--recording", &options.recording), ("--picture", &options.picture)] {
        if let Some(file) = file {
            check.arg(flag).arg(std::path::absolute(file)?);
        }
    }
    if options.parquet {
        check.arg("--parquet");
    }
    succeed(&mut check)
}
