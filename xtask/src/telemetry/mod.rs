//! `cargo xtask telemetry`: a real Prometheus scrapes the demo, and a real collector receives its pushes. Both must match the report
//! (docs/reference/metrics.md). Alerting rules and dashboard are evaluated against that Prometheus.

use std::path::PathBuf;

use anyhow::Result;

use crate::script;

/// Compare the report with the data of a real Prometheus and a real OpenTelemetry collector
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The tokengap program [default: a release build of this tree]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    script::run("telemetry/check.py", [script::tokengap(options.binary.as_deref())?])
}
