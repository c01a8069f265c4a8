//! `cargo xtask soak`: runs all features at once for an hour (`engine/e2e/soak.py`). This command prepares the programs.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::document;
use crate::e2e::setup::{harness, prepare};
use crate::script::{root, succeed, tokengap};

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
    prepare(&[RELEASE])?;
    let table = tempfile::NamedTempFile::new()?;
    let mut soak = harness("engine.e2e.soak");
    soak.args(["--seconds", &options.time.as_secs_f64().to_string(), "--tokengap"]);
    soak.arg(tokengap(options.tokengap.as_deref())?);
    succeed(soak.arg("--table").arg(table.path())).context("resource use grew, or counts do not match")?;
    if options.write {
        let text = std::fs::read_to_string(table.path())?;
        document::write(root(), "internals/RELIABILITY.md", "Soak", &text)?;
    }
    Ok(())
}
