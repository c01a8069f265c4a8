//! `cargo xtask screens`: captures demo screens in tmux for docs/reference/gallery.md and other pages.

use std::path::PathBuf;

use anyhow::Result;

use crate::script;
use crate::toolchain::succeed;

/// Capture the screens of docs/reference/gallery.md from the demo, in tmux
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write only the README's picture
    #[arg(long)]
    only_picture: bool,

    /// The tokengap program [default: a release build of this tree]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut take = script::python("screens/take.py")?;
    take.arg(script::tokengap(options.binary.as_deref())?);
    succeed(take.args(options.only_picture.then_some("picture")))
}
