//! `cargo xtask install`: installs the release in every documented way, in a minimal Debian without Rust.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

use crate::script;

/// Install the release in every documented way in a minimal Debian, and run it there
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Folder of the artifacts of `cargo xtask dist`.
    #[arg(long, value_name = "DIR", default_value = "target/shipped")]
    shipped: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "containers need root");
    let shipped = std::fs::canonicalize(&options.shipped);
    let shipped =
        shipped.with_context(|| format!("cannot find {}: run `cargo xtask dist`", options.shipped.display()))?;
    script::run(
        "pod/install.py",
        [shipped.as_os_str(), env!("CARGO_PKG_VERSION").as_ref()],
    )
}
