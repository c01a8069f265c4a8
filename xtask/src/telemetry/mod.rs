//! `cargo xtask telemetry`: a real Prometheus scrapes the demo, and a real collector receives its pushes; both must match the report
//! (docs/reference/metrics.md). Rules and dashboard are evaluated against that Prometheus.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::validate::environment;

/// A collector that a package ships whole, and the schema's own classes behind it.
const PACKAGES: [&str; 2] = ["rotel==0.0.1a15", "opentelemetry-proto==1.45.2"];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The tokengap that is scraped; by default a debug build of this tree.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lies in the project")?;
    for tool in ["prometheus", "promtool"] {
        let there = Command::new(tool)
            .arg("--version")
            .output()
            .is_ok_and(|out| out.status.success());
        ensure!(
            there,
            "{tool} is missing: install prometheus (Debian: apt-get install prometheus)"
        );
    }
    let python = environment(&root.join(".venv-telemetry"), &PACKAGES)?;
    let binary = if let Some(binary) = &options.binary {
        binary.clone()
    } else {
        let built = Command::new("cargo")
            .current_dir(root)
            .args(["build", "--quiet", "--package", "tui"])
            .status()?;
        ensure!(built.success(), "tokengap cannot be built");
        root.join("target/debug/tokengap")
    };
    let folder = tempfile::tempdir()?;
    let checked = Command::new(python)
        .arg(root.join("xtask/src/telemetry/check.py"))
        .args([&binary, root, folder.path()])
        .status()?;
    ensure!(
        checked.success(),
        "Prometheus or the collector do not hold what the report says"
    );
    Ok(())
}
