//! `cargo xtask unit`: the systemd unit, started by a real systemd that is PID 1 of its own namespaces, beside a real engine: started
//! before it, reloaded, killed, over the engine's restart, stopped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::dist;
use crate::e2e::setup::Home;

/// The engine that is watched.
const RELEASE: &str = "0.5.23";
const SYSTEMD: &str = "/usr/lib/systemd/systemd";
const PATIENCE: Duration = Duration::from_mins(2);

/// Start the systemd unit as a service beside a real engine, under a systemd of its own
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The program that the unit starts; what `cargo xtask dist` made when not given.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let program = match &options.program {
        Some(program) => program.clone(),
        None => dist::program()?,
    };
    let program = fs::canonicalize(&program).with_context(|| format!("there is no {}", program.display()))?;
    ensure!(rustix::process::geteuid().is_root(), "namespaces and mounts need root");
    ensure!(Path::new(SYSTEMD).exists(), "there is no {SYSTEMD}");
    Home::find().prepare(&[RELEASE])?;
    let root = dist::root()?;
    let (top, shared) = (tempfile::tempdir()?, tempfile::tempdir()?);
    fs::write(shared.path().join("steps.sh"), include_str!("steps.sh"))?;
    let boot = Command::new("unshare")
        .args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--cgroup",
            "--uts",
            "--ipc",
        ])
        .args(["sh", "-c", include_str!("boot.sh"), "boot.sh"])
        .args([top.path(), &program, &root.join("deploy/systemd"), shared.path(), &root])
        .arg(RELEASE)
        .stdin(Stdio::null())
        .stdout(fs::File::create(shared.path().join("boot.log"))?)
        .stderr(fs::File::create(shared.path().join("boot.err"))?)
        .spawn()
        .context("starting unshare")?;
    let outcome = steps(&mut Booted(boot), shared.path());
    let read = |name: &str| fs::read_to_string(shared.path().join(name)).unwrap_or_default();
    print!("{}", read("steps.log"));
    outcome.with_context(|| {
        format!(
            "{}{}{}{}",
            read("boot.err"),
            read("steps.log"),
            read("log"),
            read("engine.log")
        )
    })?;
    let report: Value = serde_json::from_str(&read("report.json")).context("the service left no report")?;
    check(&report)
}

/// Its end takes the PID namespace, and all that runs in it, along.
struct Booted(Child);

impl Drop for Booted {
    fn drop(&mut self) {
        // Both fail only when it has ended and been reaped already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn steps(booted: &mut Booted, shared: &Path) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let said = fs::read_to_string(shared.join("steps.log")).unwrap_or_default();
        if said.contains("ALL STEPS") {
            return Ok(());
        }
        if said.contains("never said") {
            bail!("a step failed");
        }
        if let Some(status) = booted.0.try_wait()? {
            bail!("systemd ended with {status}");
        }
        ensure!(Instant::now() < until, "the steps took longer than {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The unit's restrictions left nothing out.
fn check(report: &Value) -> Result<()> {
    let count = |place: &str| report.pointer(place).and_then(Value::as_u64).unwrap_or_default();
    let degraded = report
        .pointer("/self/degraded")
        .map(Value::to_string)
        .unwrap_or_default();
    ensure!(
        count("/chunks/taken") > 0 && !report["cpu"].is_null(),
        "the service saw no takes or no threads: {degraded}"
    );
    ensure!(
        !degraded.contains("missing") && !degraded.contains("refused"),
        "the unit grants too little: {degraded}"
    );
    let ended = report["findings"].as_array().into_iter().flatten();
    ensure!(
        ended.clone().any(|finding| finding["kind"] == "engine-ended"),
        "the engine's restart is no finding"
    );
    println!(
        "the service saw {} chunks taken over the engine's restart; degraded: {degraded}",
        count("/chunks/taken")
    );
    Ok(())
}
