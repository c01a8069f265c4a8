//! `cargo xtask screens`: captures demo screens in tmux for docs/reference/gallery.md and other pages.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::script;
use crate::toolchain::succeed;

/// Take the pictures of docs/reference/gallery.md from the demo, in tmux
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write the README's picture only.
    #[arg(long)]
    only_picture: bool,

    /// The tokengap to take them from; by default a release build of this tree.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut take = script::python("screens/take.py")?;
    take.arg(script::tokengap(options.binary.as_deref())?);
    succeed(take.args(options.only_picture.then_some("picture")))
}

/// A release build of this tree's tokengap, of the packages that `cargo run` builds: a build of one package would have other features of its
/// dependencies, and all would be built again.
pub(crate) fn build() -> Result<PathBuf> {
    succeed(Command::new("cargo").args(["build", "--quiet", "--release", "--bin", "tokengap"]))?;
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    std::fs::canonicalize(Path::new(&target).join("release/tokengap")).context("no tokengap was built")
}
