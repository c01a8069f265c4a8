//! `cargo xtask e2e`: runs the real engine's output path through `tokengap tap` and under `tokengap attach`, and compares the report with
//! the counts of the engine's processes. `testbed/e2e` contains the rows, `testbed/real` those of a real server. This command prepares the
//! programs.

pub(crate) mod plain_relay;
pub(crate) mod setup;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::script::{given_or_built_program, project_root, run_to_success};

/// Releases that `cargo xtask engine` unpacks by default.
const RELEASES: &str = include_str!("../../../testbed/releases.txt");
/// Releases of the real servers. The rows run with the Python of the first.
const REAL_RELEASES: [&str; 2] = ["0.5.9", "0.5.23"];

/// Options of `cargo xtask e2e`.
#[derive(clap::Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one field per command-line flag")]
pub(crate) struct E2eOptions {
    /// Run with these releases instead of the default ones.
    #[arg(long = "release", value_name = "RELEASE")]
    releases: Vec<String>,
    /// Run the scenarios on every release that they are for, not only on two.
    #[arg(long, conflicts_with = "quick")]
    every: bool,
    /// Run one scenario per release, without injected failures; with --real, start three servers instead of seven.
    #[arg(long)]
    quick: bool,
    /// Run only scenarios whose name contains this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// The tokengap program [default: built from this workspace].
    #[arg(long, value_name = "FILE")]
    tokengap: Option<PathBuf>,
    /// Replace tokengap by a relay that only copies, to test the engine and this driver.
    #[arg(long, conflicts_with = "tokengap")]
    plain: bool,
    /// Run a real server with its model on the CPU instead of the harness with stubs; installs 9 GB.
    #[arg(long, conflicts_with_all = ["plain", "readers", "releases"])]
    real: bool,
    /// Also read the exports of the engine's recordings with third-party tools (`cargo xtask validate`).
    #[arg(long)]
    readers: bool,
    /// Keep the engine's recordings in this folder.
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Number of scenarios to run at once [default: two per core, because each waits half of its time]. Those that judge CPU times run alone.
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
}

/// Options of `cargo xtask engine`.
#[derive(clap::Args, Debug)]
pub(crate) struct EngineOptions {
    /// Releases to unpack, such as 0.5.9 [default: those of `e2e`].
    releases: Vec<String>,
    /// A Dynamo release to unpack, such as 1.0.0; repeatable.
    #[arg(long, value_name = "RELEASE")]
    dynamo: Vec<String>,
}

/// `cargo xtask engine`: prepares the harness for manual use or other tests.
pub(crate) fn prepare_harness(options: &EngineOptions) -> Result<()> {
    let given = options.releases.iter().map(String::as_str);
    let releases: Vec<&str> =
        if options.releases.is_empty() { RELEASES.split_whitespace().collect() } else { given.collect() };
    setup::prepare_sglang(&releases)?;
    if !options.dynamo.is_empty() {
        setup::prepare_dynamo(&options.dynamo)?;
    }
    println!("{} -m testbed RELEASE ...  (see testbed/README.md)", setup::harness_python().display());
    Ok(())
}

/// `cargo xtask e2e`: prepares the programs, and runs the rows (test cases) of `testbed/e2e` or, with `--real`, those of `testbed/real`.
pub(crate) fn run_end_to_end(options: &E2eOptions) -> Result<()> {
    if options.real {
        return run_on_real_server(options);
    }
    setup::prepare_sglang(&[])?;
    let mut rows = setup::harness_module_command("testbed.e2e");
    rows.arg("--xtask").arg(std::env::current_exe()?);
    if !options.plain {
        rows.arg("--tokengap").arg(given_or_built_program(options.tokengap.as_deref())?);
    }
    for release in &options.releases {
        rows.args(["--release", release]);
    }
    rows.args(options.every.then_some("--every"));
    rows.args(options.quick.then_some("--quick"));
    rows.args(options.readers.then_some("--readers"));
    let jobs = options.jobs.unwrap_or_else(|| 2 * std::thread::available_parallelism().map_or(1, usize::from));
    rows.args(["--jobs", &jobs.to_string()]);
    run_to_success(add_common_options(&mut rows, options)?)
}

/// `cargo xtask e2e --real`: the rows of `testbed/real`, on a real SGLang server with its model on the CPU. Installs missing packages.
fn run_on_real_server(options: &E2eOptions) -> Result<()> {
    let [first_release, other_releases @ ..] = REAL_RELEASES;
    let python = setup::install_server("sglang", first_release)?;
    // These are only installed, in the folder that the rows get as `--home`.
    for release in other_releases {
        setup::install_server("sglang", release)?;
    }
    let mut rows = Command::new(python);
    rows.args(["-m", "testbed.real", "--tokengap"]).arg(given_or_built_program(options.tokengap.as_deref())?);
    rows.arg("--home").arg(setup::server_folder("sglang")?).current_dir(project_root());
    rows.args(options.quick.then_some("--quick"));
    run_to_success(add_common_options(&mut rows, options)?)
}

/// Adds the options common to both kinds of rows, and returns the command. Creates the folder for recordings, if one is given.
fn add_common_options<'r>(rows: &'r mut Command, options: &E2eOptions) -> Result<&'r mut Command> {
    if let Some(only) = &options.only {
        rows.args(["--only", only]);
    }
    if let Some(keep) = &options.keep {
        std::fs::create_dir_all(keep)?;
        rows.args([Path::new("--keep"), &keep.canonicalize()?]);
    }
    Ok(rows)
}
