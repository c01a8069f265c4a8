//! Commands that prepare programs and run one script of this folder.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::dist;
use crate::e2e::setup::{harness_module_command, prepare_sglang};
use crate::script::{
    command_output, given_or_built_program, project_root, python_script_command, replace_document_part,
    run_in_pid_namespace, run_script, run_to_success,
};

/// SGLang release of the engine to observe, as in `soak.py`.
const RELEASE: &str = "0.5.23";
const SYSTEMD: &str = "/usr/lib/systemd/systemd";

#[derive(clap::Args)]
pub(crate) struct Tested {
    /// The tokengap program [default: a release build of this tree]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

impl Tested {
    fn program(&self) -> Result<PathBuf> {
        given_or_built_program(self.binary.as_deref())
    }
}

/// `cargo xtask telemetry`: a real Prometheus scrapes the demo, and a real collector receives its pushes. Both must match the report
/// (docs/reference/metrics.md). Alerting rules and dashboard are evaluated against that Prometheus.
pub(crate) fn check_telemetry(tested: &Tested) -> Result<()> {
    run_script("telemetry/check.py", [tested.program()?])
}

#[derive(clap::Args)]
pub(crate) struct Docs {
    #[command(flatten)]
    tested: Tested,
    /// Check only this page
    #[arg(long, value_name = "FILE")]
    only: Option<PathBuf>,
}

/// `cargo xtask docs`: runs every command in the documentation, in a folder per page, unless the page gives a reason not to.
/// `tokengap/src/documents` checks that their flags exist.
pub(crate) fn run_documented_commands(options: &Docs) -> Result<()> {
    check_documents()?;
    let mut check = python_script_command("docs/check.py")?;
    check.arg("run").arg(options.tested.program()?).arg(RELEASE).args(&options.only);
    // Without root, the script leaves out the commands that attach to an engine.
    if !rustix::process::geteuid().is_root() {
        return run_to_success(&mut check);
    }
    prepare_sglang(&[RELEASE])?;
    run_in_pid_namespace(&check)
}

/// Checks that run no command: links, comments of blocks, and whether every shown `cargo xtask` command exists.
fn check_documents() -> Result<()> {
    /// With so few commands, the script no longer finds those of the pages.
    const TOO_FEW_COMMANDS: usize = 10;
    let shown = command_output(python_script_command("docs/check.py")?.arg("list"))?;
    ensure!(shown.lines().count() > TOO_FEW_COMMANDS, "the pages show too few commands: {shown}");
    for line in shown.lines() {
        let (_, command) = line.split_once("cargo xtask ").context("not a `cargo xtask` command")?;
        let words = std::iter::once("cargo xtask").chain(command.split_whitespace());
        crate::check_command_line(words).with_context(|| line.to_owned())?;
    }
    Ok(())
}

#[derive(clap::Args)]
pub(crate) struct Pages {
    /// Folder for pages and screenshots
    #[arg(long, value_name = "FOLDER", default_value = "target/pages")]
    output: PathBuf,
    #[command(flatten)]
    tested: Tested,
    /// Browser to use
    #[arg(long, value_name = "FILE", default_value = "chromium")]
    browser: PathBuf,
}

/// `cargo xtask pages`: opens the HTML report of demo runs in headless Chromium: light, dark, narrow and on paper.
pub(crate) fn check_pages(options: &Pages) -> Result<()> {
    run_script("pages/check.py", [&options.tested.program()?, &options.output, &options.browser])
}

#[derive(clap::Args)]
pub(crate) struct Screens {
    /// Write only the README's picture
    #[arg(long)]
    only_picture: bool,
    #[command(flatten)]
    tested: Tested,
}

/// `cargo xtask screens`: captures demo screens in tmux for docs/screens.md and other pages.
pub(crate) fn take_screens(options: &Screens) -> Result<()> {
    let mut take = python_script_command("screens/take.py")?;
    run_to_success(take.arg(options.tested.program()?).args(options.only_picture.then_some("picture")))
}

#[derive(clap::Args)]
pub(crate) struct Validate {
    /// The recording to export [default: a few seconds of the demo]
    recording: Option<PathBuf>,
    #[command(flatten)]
    tested: Tested,
    /// Also take a screenshot of the trace in Perfetto's UI, with the system's Chromium
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Read only the Parquet export, which the program must have
    #[arg(long)]
    parquet: bool,
}

/// `cargo xtask validate`: reads the output of `tokengap export` with third-party programs (docs/reference/exports.md).
pub(crate) fn validate_exports(options: &Validate) -> Result<()> {
    // Only Perfetto needs Node, and does not read Parquet exports.
    ensure!(
        options.parquet || command_output(Command::new("node").arg("--version")).is_ok(),
        "Perfetto's trace processor needs Node: install nodejs (Debian: apt-get install nodejs)"
    );
    let mut check = python_script_command("validate/check.py")?;
    let folder = tempfile::tempdir()?;
    check.arg(options.tested.program()?).arg(folder.path());
    for (flag, file) in [("--recording", &options.recording), ("--picture", &options.picture)] {
        if let Some(file) = file {
            check.arg(flag).arg(std::path::absolute(file)?);
        }
    }
    run_to_success(check.args(options.parquet.then_some("--parquet")))
}

#[derive(clap::Args)]
pub(crate) struct Soak {
    /// Duration, such as 90s, 20m or 1h.
    #[arg(long = "for", value_name = "T", default_value = "1h", value_parser = parse_duration)]
    time: Duration,
    /// The tokengap program [default: built from this workspace].
    #[arg(long, value_name = "FILE")]
    tokengap: Option<PathBuf>,
    /// Write the results to docs/internals/RELIABILITY.md.
    #[arg(long)]
    write: bool,
}

fn parse_duration(text: &str) -> Result<Duration> {
    let span: jiff::SignedDuration = text.parse().context("expected a duration such as 90s, 20m or 1h")?;
    Ok(Duration::try_from(span)?)
}

/// `cargo xtask soak`: runs all features at once for an hour (`testbed/e2e/soak.py`).
pub(crate) fn run_soak(options: &Soak) -> Result<()> {
    prepare_sglang(&[RELEASE])?;
    let table = tempfile::NamedTempFile::new()?;
    let mut soak = harness_module_command("testbed.e2e.soak");
    soak.args(["--seconds", &options.time.as_secs_f64().to_string(), "--tokengap"]);
    soak.arg(given_or_built_program(options.tokengap.as_deref())?);
    run_to_success(soak.arg("--table").arg(table.path())).context("resource use grew, or counts do not match")?;
    if options.write {
        replace_document_part("internals/RELIABILITY.md", "Soak", &std::fs::read_to_string(table.path())?)?;
    }
    Ok(())
}

#[derive(clap::Args)]
pub(crate) struct Install {
    /// Folder of the artifacts of `cargo xtask dist`.
    #[arg(long, value_name = "DIR", default_value = "target/shipped")]
    shipped: PathBuf,
}

/// `cargo xtask install`: installs the release in every documented way, in a minimal Debian without Rust and in clean
/// Python environments.
pub(crate) fn install_release(options: &Install) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "containers need root");
    let shipped = std::fs::canonicalize(&options.shipped);
    let shipped =
        shipped.with_context(|| format!("cannot find {}: run `cargo xtask dist`", options.shipped.display()))?;
    run_script("pod/install.py", [shipped.as_os_str(), env!("CARGO_PKG_VERSION").as_ref()])
}

#[derive(clap::Args)]
pub(crate) struct Released {
    /// The static program [default: the result of `cargo xtask dist`]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// `cargo xtask pod`: runs the release binary alone in a root folder, and in containers next to a running engine at every privilege
/// level of a pod. Prints the table of docs/install.md.
pub(crate) fn run_in_pod(options: &Released) -> Result<()> {
    let program = dist::given_or_released_program(options.program.as_deref())?;
    ensure!(rustix::process::geteuid().is_root(), "containers need root");
    prepare_sglang(&[RELEASE])?;
    // The pod: engine and containers share a PID namespace in which nothing else runs. All of them exit with it.
    let mut check = python_script_command("pod/check.py")?;
    run_in_pid_namespace(check.arg(program).args([RELEASE, env!("CARGO_PKG_VERSION")]))
}

/// `cargo xtask unit`: a real systemd, as PID 1 of its own namespaces, runs the systemd unit next to a real engine. The unit is started
/// before the engine, reloaded, killed and stopped, and the engine restarts.
pub(crate) fn run_systemd_unit(options: &Released) -> Result<()> {
    let program = dist::given_or_released_program(options.program.as_deref())?;
    ensure!(rustix::process::geteuid().is_root(), "namespaces and mounts need root");
    ensure!(Path::new(SYSTEMD).exists(), "cannot find {SYSTEMD}");
    prepare_sglang(&[RELEASE])?;
    run_script("unit/check.py", [program.as_os_str(), RELEASE.as_ref()])
}

#[derive(clap::Args)]
pub(crate) struct Kernels {
    /// Boot only kernels whose line in xtask/src/kernels/kernels.txt contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Static program for x86-64 [default: the result of `cargo xtask dist`]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Static program for ARM64, built by `cargo xtask dist --target aarch64-unknown-linux-musl` [default: no ARM64]
    #[arg(long, value_name = "FILE")]
    arm64: Option<PathBuf>,
    /// A test program, which also runs on each kernel of its architecture; repeatable. `live-*` of the probe or `refused-*` of confinement,
    /// as built by `xtask/src/dist/build.sh test TARGET`, or a package, wheel or archive of `cargo xtask dist`, which is installed there
    #[arg(long = "tests", value_name = "FILE")]
    tests: Vec<PathBuf>,
    /// Run only the test programs, and keep the other results of an earlier run
    #[arg(long, requires = "tests")]
    only_tests: bool,
    /// Folder for the results as JSON; the table includes earlier results in it
    #[arg(long, value_name = "DIR", default_value = "target/kernels/results")]
    results: PathBuf,
    /// Write the table to docs/reference/coverage.md
    #[arg(long)]
    write: bool,
}

/// The last release whose waiters keep only one of several queued chunks, so that tokens are lost.
const LOSSY_RELEASE: &str = "0.5.9";

/// `cargo xtask kernels`: boots kernels of Debian packages in QEMU and compares tokengap's reports there with the engine's own counts.
pub(crate) fn boot_kernels(options: &Kernels) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "the machines share this one's files, which needs root");
    prepare_sglang(&[LOSSY_RELEASE])?;
    // `-` makes the script leave out the kernels for ARM64.
    let arm64 = match options.arm64.as_deref() {
        Some(file) => dist::given_or_released_program(Some(file))?,
        None => PathBuf::from("-"),
    };
    let table = tempfile::NamedTempFile::new()?;
    let mut check = python_script_command("kernels/check.py")?;
    check.arg(dist::given_or_released_program(options.program.as_deref())?).arg(arm64);
    check.args([LOSSY_RELEASE, "--only", &options.only, "--table"]).arg(table.path());
    check.args(options.only_tests.then_some("--only-tests"));
    for test in &options.tests {
        check.arg("--test").arg(std::path::absolute(test)?);
    }
    run_to_success(check.arg("--results").arg(&options.results))?;
    if options.write {
        replace_document_part("reference/coverage.md", "Kernels", &std::fs::read_to_string(table.path())?)?;
    }
    Ok(())
}

#[derive(clap::Args)]
pub(crate) struct Schemas {
    /// Read every release again, including those in the tables
    #[arg(long)]
    all: bool,
    /// Write nothing; fail if a table would change
    #[arg(long)]
    check: bool,
}

/// `cargo xtask schemas`: updates the tables of message layouts from released wheels.
pub(crate) fn update_schemas(options: &Schemas) -> Result<()> {
    for (script, table) in [("schemas.py", "sglang/wire/schemas.txt"), ("layouts.py", "vllm/layouts.txt")] {
        let mut update = python_script_command(script)?;
        update.arg(project_root().join("engines/src").join(table));
        run_to_success(update.args(options.all.then_some("--all")).args(options.check.then_some("--check")))?;
    }
    Ok(())
}

#[derive(clap::Args)]
pub(crate) struct Ebpf {
    /// Lint, build elsewhere, and fail if the result differs from the objects in the repository
    #[arg(long)]
    check: bool,
    /// Folder for the objects
    #[arg(long, value_name = "DIR", default_value = "probe-ebpf/object", conflicts_with = "check")]
    out: PathBuf,
}

/// `cargo xtask ebpf`: builds the kernel side of the probe. The objects are in the repository, so that other builds do not need the BPF
/// toolchain.
pub(crate) fn build_ebpf(options: &Ebpf) -> Result<()> {
    let mut build = Command::new(project_root().join("xtask/src/ebpf/build.sh"));
    run_to_success(build.args(options.check.then_some("--check")).arg(&options.out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_links_and_commands_are_valid() -> Result<()> {
        if command_output(Command::new("python3").arg("--version")).is_err() {
            eprintln!("SKIPPED: reading the documentation needs python3");
            return Ok(());
        }
        check_documents()
    }
}
