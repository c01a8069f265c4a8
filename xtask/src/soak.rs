//! `cargo xtask soak`: all features at once for an hour, in `engine/e2e/soak.py`; this command prepares the programs.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::document;
use crate::e2e::setup::{Home, tokengap};

/// SGLang release of the engine, as in `soak.py`.
const RELEASE: &str = "0.5.23";

/// Options of `cargo xtask soak`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// How long: 90s, 20m, 1h.
    #[arg(long = "for", value_name = "T", default_value = "1h", value_parser = duration)]
    time: Duration,
    /// The tokengap program; built from this workspace when not given.
    #[arg(long, value_name = "FILE")]
    tokengap: Option<PathBuf>,
    /// Write the results into docs/internals/RELIABILITY.md.
    #[arg(long)]
    write: bool,
}

fn duration(text: &str) -> Result<Duration> {
    let span: jiff::SignedDuration = text.parse().context("write it like 90s, 20m or 1h")?;
    Ok(Duration::try_from(span)?)
}

/// Runs `cargo xtask soak`.
pub(crate) fn run(options: &Options) -> Result<()> {
    let home = Home::find();
    home.prepare(&[RELEASE])?;
    let table = tempfile::NamedTempFile::new()?;
    let mut soak = Command::new(&home.python);
    soak.current_dir(&home.root).args(["-m", "engine.e2e.soak"]);
    soak.args(["--seconds", &options.time.as_secs_f64().to_string(), "--tokengap"]);
    soak.arg(tokengap(&home, options.tokengap.as_deref())?);
    soak.arg("--table").arg(table.path());
    let status = soak.status().context("starting engine.e2e.soak")?;
    ensure!(status.success(), "something grew, or does not add up");
    if options.write {
        let text = std::fs::read_to_string(table.path())?;
        document::write(&home.root, "internals/RELIABILITY.md", "Soak", &text)?;
    }
    Ok(())
}
