//! `cargo xtask engine`: creates the virtual environment of the engine harness and unpacks releases from their wheels.
//!
//! Wheels are unpacked, not installed, because their dependencies include the GPU stack, which `testbed/stubs.py` replaces. Downloads use
//! pip's normal configuration and are kept.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::script::{environment, once, root, succeed};

/// `python -m MODULE` with the harness's Python, in the project's folder.
pub(crate) fn harness(module: &str) -> Command {
    let mut command = Command::new(python());
    command.current_dir(root()).args(["-m", module]);
    command
}

/// Python of the harness, which may not exist yet.
pub(crate) fn python() -> PathBuf {
    root().join(".venv-testbed/bin/python")
}

fn sources() -> PathBuf {
    root().join(".engine")
}

/// Creates the virtual environment and unpacks SGLang `releases` where missing.
pub(crate) fn prepare(releases: &[&str]) -> Result<()> {
    let _lock = lock()?;
    environment(&root().join("testbed/requirements.txt"))?;
    for release in releases {
        unpack(&["sglang"], release, &sources().join(release))
            .with_context(|| format!("unpacking SGLang {release}"))?;
    }
    Ok(())
}

/// Unpacks a vLLM release unless it is there. Returns its folder.
pub(crate) fn prepare_vllm(release: &str) -> Result<PathBuf> {
    let folder = sources().join("vllm");
    fs::create_dir_all(&folder)?;
    let target = folder.join(release);
    unpack(&["vllm"], release, &target).with_context(|| format!("unpacking vLLM {release}"))?;
    Ok(target)
}

/// Unpacks Dynamo releases, and installs the dependencies of its frontend, where missing.
pub(super) fn prepare_dynamo(releases: &[String]) -> Result<()> {
    let folder = sources().join("dynamo");
    fs::create_dir_all(&folder)?;
    let _lock = lock()?;
    for release in releases {
        unpack(&["ai-dynamo-runtime", "ai-dynamo"], release, &folder.join(release))
            .with_context(|| format!("unpacking Dynamo {release}"))?;
    }
    let (requirements, target) = (root().join("testbed/dynamo/requirements.txt"), folder.join("frontend"));
    once(&requirements, &target, || {
        let mut install = pip("install");
        install.args(["--no-deps", "--upgrade", "--target"]).arg(&target).arg("-r").arg(&requirements);
        succeed(&mut install)
    })
}

/// Serializes concurrent preparations.
fn lock() -> Result<File> {
    fs::create_dir_all(sources())?;
    let lock = File::create(sources().join("lock"))?;
    lock.lock().context("waiting for another run that prepares the engine")?;
    Ok(lock)
}

fn pip(command: &str) -> Command {
    let mut pip = harness("pip");
    pip.args([command, "--quiet", "--disable-pip-version-check"]);
    pip
}

/// Downloads a release's wheels and unpacks them into one folder.
fn unpack(packages: &[&str], release: &str, target: &Path) -> Result<()> {
    let named = release.starts_with(|c: char| c.is_ascii_digit())
        && release.chars().all(|c| c.is_ascii_alphanumeric() || c == '.');
    ensure!(named, "`{release}` is not a release number such as 0.5.9 or 0.4.6.post4");
    if target.is_dir() {
        return Ok(());
    }
    eprintln!("engine: unpacking {} {release}", packages.join(" and "));
    let wheels = tempfile::tempdir_in(sources())?;
    let arch = std::env::consts::ARCH;
    let mut download = pip("download");
    download.args(["--no-deps", "--only-binary=:all:"]);
    download.args(["--implementation", "cp", "--python-version", "3.11"]);
    for platform in [format!("manylinux_2_34_{arch}"), format!("manylinux_2_28_{arch}"), "any".into()] {
        download.args(["--platform", &platform]);
    }
    download.arg("--dest").arg(wheels.path());
    succeed(download.args(packages.iter().map(|package| format!("{package}=={release}"))))?;
    let unpacked = tempfile::tempdir_in(sources())?;
    for wheel in fs::read_dir(wheels.path())? {
        succeed(harness("zipfile").arg("-e").arg(wheel?.path()).arg(unpacked.path()))?;
    }
    // Rename at the end, so that an interrupted run leaves no partial release.
    fs::rename(unpacked.keep(), target)?;
    Ok(())
}

/// Installs the packages of a server unless they are there. Returns their Python.
pub(crate) fn installed(engine: &str, release: &str) -> Result<PathBuf> {
    let servers = servers(engine)?;
    let script = match engine {
        "vllm" => "testbed/vllm/install.sh",
        _ => "testbed/real/install.sh",
    };
    succeed(Command::new(root().join(script)).arg(&servers).arg(release))
        .with_context(|| format!("cannot install the packages of {engine} {release}"))?;
    Ok(servers.join(format!("venv-{release}/bin/python")))
}

/// Folder of an engine's packages, shared by all checkouts because they need 9 GB.
pub(super) fn servers(engine: &str) -> Result<PathBuf> {
    let variable = format!("TOKENGAP_{}", engine.to_uppercase());
    if let Some(folder) = std::env::var_os(&variable) {
        return Ok(folder.into());
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache")));
    Ok(cache.with_context(|| format!("neither {variable} nor HOME is set"))?.join("tokengap").join(engine))
}
