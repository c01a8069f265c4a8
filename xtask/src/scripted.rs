//! Commands that test a program or the release with one Python script of this folder.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::dist;
use crate::e2e::setup::prepare;
use crate::script::{in_pid_namespace, python, run, succeed, tokengap};

/// SGLang release of the engine to observe.
const RELEASE: &str = "0.5.23";
const SYSTEMD: &str = "/usr/lib/systemd/systemd";

#[derive(clap::Args)]
pub(crate) struct Pages {
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

/// `cargo xtask pages`: opens the HTML report of demo runs in headless Chromium: light, dark, narrow and on paper.
pub(crate) fn pages(options: &Pages) -> Result<()> {
    let binary = tokengap(options.binary.as_deref())?;
    run("pages/check.py", [&binary, &options.output, &options.browser])
}

#[derive(clap::Args)]
pub(crate) struct Telemetry {
    /// The tokengap program [default: a release build of this tree]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// `cargo xtask telemetry`: a real Prometheus scrapes the demo, and a real collector receives its pushes. Both must match the report
/// (docs/reference/metrics.md). Alerting rules and dashboard are evaluated against that Prometheus.
pub(crate) fn telemetry(options: &Telemetry) -> Result<()> {
    run("telemetry/check.py", [tokengap(options.binary.as_deref())?])
}

#[derive(clap::Args)]
pub(crate) struct Screens {
    /// Write only the README's picture
    #[arg(long)]
    only_picture: bool,

    /// The tokengap program [default: a release build of this tree]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// `cargo xtask screens`: captures demo screens in tmux for docs/reference/gallery.md and other pages.
pub(crate) fn screens(options: &Screens) -> Result<()> {
    let mut take = python("screens/take.py")?;
    take.arg(tokengap(options.binary.as_deref())?);
    succeed(take.args(options.only_picture.then_some("picture")))
}

#[derive(clap::Args)]
pub(crate) struct Install {
    /// Folder of the artifacts of `cargo xtask dist`.
    #[arg(long, value_name = "DIR", default_value = "target/shipped")]
    shipped: PathBuf,
}

/// `cargo xtask install`: installs the release in every documented way, in a minimal Debian without Rust.
pub(crate) fn install(options: &Install) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "containers need root");
    let shipped = std::fs::canonicalize(&options.shipped);
    let shipped =
        shipped.with_context(|| format!("cannot find {}: run `cargo xtask dist`", options.shipped.display()))?;
    run("pod/install.py", [shipped.as_os_str(), env!("CARGO_PKG_VERSION").as_ref()])
}

#[derive(clap::Args)]
pub(crate) struct Pod {
    /// The static program [default: the result of `cargo xtask dist`]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// `cargo xtask pod`: runs the release binary alone in a root folder, and in containers next to a running engine at every privilege
/// level of a pod. Prints the table of docs/install.md.
pub(crate) fn pod(options: &Pod) -> Result<()> {
    let program = dist::program(options.program.as_deref())?;
    ensure!(rustix::process::geteuid().is_root(), "containers need root");
    prepare(&[RELEASE])?;
    // The pod: engine and containers share a PID namespace in which nothing else runs. All of them exit with it.
    let mut check = python("pod/check.py")?;
    check.arg(program).args([RELEASE, env!("CARGO_PKG_VERSION")]);
    in_pid_namespace(&check)
}

#[derive(clap::Args)]
pub(crate) struct Unit {
    /// The program that the unit starts [default: the result of `cargo xtask dist`]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// `cargo xtask unit`: a real systemd, as PID 1 of its own namespaces, runs the systemd unit next to a real engine. The unit is started
/// before the engine, reloaded, killed and stopped, and the engine restarts.
pub(crate) fn unit(options: &Unit) -> Result<()> {
    let program = dist::program(options.program.as_deref())?;
    ensure!(rustix::process::geteuid().is_root(), "namespaces and mounts need root");
    ensure!(Path::new(SYSTEMD).exists(), "cannot find {SYSTEMD}");
    prepare(&[RELEASE])?;
    run("unit/check.py", [program.as_path(), Path::new(RELEASE)])
}
