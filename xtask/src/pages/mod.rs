//! `cargo xtask pages`: opens the HTML report of demo runs in headless Chromium: light, dark, narrow and on paper.

use std::path::PathBuf;

use anyhow::Result;

use crate::script;

/// Open the HTML report in headless Chromium: light, dark, narrow, on paper
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Folder for pages and screenshots
    #[arg(long, value_name = "FOLDER", default_value = "target/pages")]
    output: PathBuf,

    /// The tokengap program [default: a release build of this tree]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,

    /// Browser to use
    #[arg(long, value_name = "FILE", default_value = "chromium")]
    browser: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let binary = script::tokengap(options.binary.as_deref())?;
    script::run("pages/check.py", [&binary, &options.output, &options.browser])
}
