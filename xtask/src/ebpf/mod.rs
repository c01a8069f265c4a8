//! `cargo xtask ebpf`: builds the kernel side of the probe. The objects are in the repository, so that other builds do not need the BPF
//! toolchain.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::script::{root, succeed};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Lint, build elsewhere, and fail if the result differs from the objects in the repository
    #[arg(long)]
    check: bool,
    /// Folder for the objects
    #[arg(long, value_name = "DIR", default_value = "probe-ebpf/object", conflicts_with = "check")]
    out: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut build = Command::new(root().join("xtask/src/ebpf/build.sh"));
    succeed(build.args(args.check.then_some("--check")).arg(&args.out))
}
