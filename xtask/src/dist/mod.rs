//! `cargo xtask dist`: release artifacts in `target/shipped`, built and packed by the scripts of this folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::toolchain::succeed;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Build the static program and pack it: archive, Debian package, bill of materials, checksums
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Build for this target instead of this machine's musl; may be given several times. Other targets than this machine's
    /// come with their own program and with documents that this machine's program writes.
    #[arg(long = "target", value_name = "TRIPLE")]
    targets: Vec<String>,
    /// Compile for this target without linking or packing: targets other than Linux have the commands that read recordings.
    #[arg(long, value_name = "TRIPLE", conflicts_with = "targets")]
    check: Option<String>,
    /// Put everything here.
    #[arg(long, value_name = "DIR", default_value = "target/shipped")]
    out: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let scripts = root()?.join("xtask/src/dist");
    let build = |what: &str, target: &str| succeed(Command::new(scripts.join("build.sh")).args([what, target]));
    if let Some(target) = &options.check {
        build("check", target)?;
        println!("{target}: compiles; not linked, not run");
        return Ok(());
    }
    let here = here();
    build("zigbuild", &here)?;
    for target in options.targets.iter().filter(|target| **target != here) {
        build("zigbuild", target)?;
    }
    let writer = format!("target/{here}/dist/tokengap");
    let default = [here];
    let targets = if options.targets.is_empty() {
        &default[..]
    } else {
        &options.targets
    };
    let mut pack = Command::new(scripts.join("pack.sh"));
    succeed(pack.arg(VERSION).arg(&options.out).arg(writer).args(targets))
}

/// This machine's target. Only a program for it can run to generate its documents.
fn here() -> String {
    format!("{}-unknown-linux-musl", std::env::consts::ARCH)
}

/// The given program, or this machine's from the last `cargo xtask dist`.
pub(crate) fn program(given: Option<&Path>) -> Result<PathBuf> {
    let made = root()?.join(format!("target/shipped/tokengap-{VERSION}-{}/tokengap", here()));
    let program = given.unwrap_or(&made);
    std::fs::canonicalize(program)
        .with_context(|| format!("there is no {}: `cargo xtask dist` makes it", program.display()))
}

/// Root folder of the project.
pub(crate) fn root() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    Ok(root.context("xtask has no parent folder")?.to_owned())
}
