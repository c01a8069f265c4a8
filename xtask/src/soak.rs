//! `cargo xtask soak`: runs all features at once for an hour (`engine/e2e/soak.py`). This command prepares the programs.

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
    /// Duration, such as 90s, 20m or 1h.
    #[arg(long = "for", value_name = "T", default_value = "1h", value_parser = duration)]
    time: Duration,
    /// The tokengap program [default: built from this workspace].
    #[arg(long, value_name = "FILE")]
    tokengap: Option<PathBuf>,
    /// Write the results to docs/internals/RELIABILITY.md.
    #[arg(long)]
    write: bool,
}

fn duration(text: &str) -> Result<Duration> {
    let span: jiff::SignedDuration = text.parse().context("expected a duration such as 90s, 20m or 1h")?;
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
    ensure!(status.success(), "resource use grew, or counts do not match");
    if options.write {
        let text = std::fs::read_to_string(table.path())?;
        document::write(&home.root, "internals/RELIABILITY.md", "Soak", &text)?;
    }
    Ok(())
}
