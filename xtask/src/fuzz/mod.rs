//! `cargo xtask fuzz`: fuzzes every parser with libFuzzer, starting from real messages. `fuzz/run.py` builds and runs the targets. This
//! command generates the seeds that need the project's own Rust code.

mod seeds;

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::script::{self, root};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run only this target; repeatable
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// Seconds to run each target; 600 for a nightly run
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    time: u64,
    /// Number of targets to run at once
    #[arg(long, value_name = "N", default_value_t = std::thread::available_parallelism().map_or(2, usize::from))]
    jobs: usize,
    /// libFuzzer's random seed, to repeat a run; 0 picks a new seed for each run
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u32,
    /// Build the targets without running them
    #[arg(long)]
    no_run: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.no_run {
        return script::run("../../fuzz/run.py", ["build"]);
    }
    let root = root();
    let wanted = |target: &str| options.target.is_empty() || options.target.iter().any(|name| name == target);
    if wanted("block") {
        keep(root, "block", &seeds::blocks(root)?)?;
    }
    if wanted("feed") {
        keep(root, "feed", &seeds::states(root)?)?;
    }
    let numbers = [options.time, options.jobs as u64, u64::from(options.seed)].map(|number| number.to_string());
    script::run("../../fuzz/run.py", numbers.iter().chain(&options.target))
}

fn keep(root: &Path, target: &str, seeds: &[Vec<u8>]) -> Result<()> {
    let dir = root.join("target/fuzz/seeds").join(target);
    std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    for (index, seed) in seeds.iter().enumerate() {
        std::fs::write(dir.join(format!("{index:04}")), seed)?;
    }
    Ok(())
}
