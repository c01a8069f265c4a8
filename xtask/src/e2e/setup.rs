//! `cargo xtask engine`: creates the virtual environment of the engine harness and unpacks releases from their wheels.
//!
//! Wheels are unpacked, not installed, because their dependencies include the GPU stack, which `testbed/stubs.py` replaces. Downloads use
//! pip's normal configuration and are kept.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::script::{install_once, prepare_virtual_environment_python, project_root, run_to_success};

/// `python -m MODULE` with the harness's Python, in the project's folder.
pub(crate) fn harness_module_command(module: &str) -> Command {
    let mut command = Command::new(harness_python());
    command.current_dir(project_root()).args(["-m", module]);
    command
}

/// Python of the harness, which may not exist yet.
pub(crate) fn harness_python() -> PathBuf {
    project_root().join(".venv-testbed/bin/python")
}

fn unpacked_folder() -> PathBuf {
    project_root().join(".engine")
}

/// Creates the virtual environment and unpacks SGLang `releases` where missing.
pub(crate) fn prepare_sglang(releases: &[&str]) -> Result<()> {
    let _lock = lock_unpacked_folder()?;
    prepare_virtual_environment_python(&project_root().join("testbed/requirements.txt"))?;
    for release in releases {
        unpack_wheels(&["sglang"], release, &unpacked_folder().join(release))
            .with_context(|| format!("unpacking SGLang {release}"))?;
    }
    Ok(())
}

/// Unpacks a vLLM release unless it is there. Returns its folder.
pub(crate) fn prepare_vllm(release: &str) -> Result<PathBuf> {
    let folder = unpacked_folder().join("vllm");
    fs::create_dir_all(&folder)?;
    let target = folder.join(release);
    unpack_wheels(&["vllm"], release, &target).with_context(|| format!("unpacking vLLM {release}"))?;
    Ok(target)
}

/// Unpacks Dynamo releases, and installs the dependencies of its frontend, where missing.
pub(super) fn prepare_dynamo(releases: &[String]) -> Result<()> {
    let folder = unpacked_folder().join("dynamo");
    fs::create_dir_all(&folder)?;
    let _lock = lock_unpacked_folder()?;
    for release in releases {
        unpack_wheels(&["ai-dynamo-runtime", "ai-dynamo"], release, &folder.join(release))
            .with_context(|| format!("unpacking Dynamo {release}"))?;
    }
    let requirements = project_root().join("testbed/dynamo/requirements.txt");
    let target = folder.join("frontend");
    install_once(&requirements, &target, || {
        let mut install = pip_command("install");
        install.args(["--no-deps", "--upgrade", "--target"]).arg(&target).arg("-r").arg(&requirements);
        run_to_success(&mut install)
    })
}

/// Waits until no other run prepares the engine, and keeps others waiting until the returned file is dropped.
fn lock_unpacked_folder() -> Result<File> {
    fs::create_dir_all(unpacked_folder())?;
    let lock = File::create(unpacked_folder().join("lock"))?;
    lock.lock().context("waiting for another run that prepares the engine")?;
    Ok(lock)
}

/// A pip command that prints only errors, in the harness's Python environment.
fn pip_command(command: &str) -> Command {
    let mut pip = harness_module_command("pip");
    pip.args([command, "--quiet", "--disable-pip-version-check"]);
    pip
}

/// Downloads a release's wheels and unpacks them into one folder, unless that exists.
fn unpack_wheels(packages: &[&str], release: &str, target: &Path) -> Result<()> {
    // The release becomes a part of pip's arguments and of a path.
    let is_release_number = release.starts_with(|c: char| c.is_ascii_digit())
        && release.chars().all(|character| character.is_ascii_alphanumeric() || character == '.');
    ensure!(is_release_number, "`{release}` is not a release number such as 0.5.9 or 0.4.6.post4");
    if target.is_dir() {
        return Ok(());
    }
    eprintln!("engine: unpacking {} {release}", packages.join(" and "));
    let wheels = tempfile::tempdir_in(unpacked_folder())?;
    download_wheels(packages, release, wheels.path())?;
    let unpacked = tempfile::tempdir_in(unpacked_folder())?;
    for wheel in fs::read_dir(wheels.path())? {
        run_to_success(harness_module_command("zipfile").arg("-e").arg(wheel?.path()).arg(unpacked.path()))?;
    }
    // Rename at the end, so that an interrupted run leaves no partial release.
    fs::rename(unpacked.keep(), target)?;
    Ok(())
}

/// Downloads the wheels of a release for Python 3.11 on Linux into a folder, whatever Python is installed here.
fn download_wheels(packages: &[&str], release: &str, folder: &Path) -> Result<()> {
    let arch = std::env::consts::ARCH;
    let mut download = pip_command("download");
    download.args(["--no-deps", "--only-binary=:all:"]);
    download.args(["--implementation", "cp", "--python-version", "3.11"]);
    for platform in [format!("manylinux_2_34_{arch}"), format!("manylinux_2_28_{arch}"), "any".into()] {
        download.args(["--platform", &platform]);
    }
    download.arg("--dest").arg(folder);
    run_to_success(download.args(packages.iter().map(|package| format!("{package}=={release}"))))
}

/// Installs the packages of a server unless they are there. Returns their Python.
pub(crate) fn install_server(engine: &str, release: &str) -> Result<PathBuf> {
    let servers = server_folder(engine)?;
    let script = match engine {
        "vllm" => "testbed/vllm/install.sh",
        _ => "testbed/real/install.sh",
    };
    run_to_success(Command::new(project_root().join(script)).arg(&servers).arg(release))
        .with_context(|| format!("cannot install the packages of {engine} {release}"))?;
    Ok(servers.join(format!("venv-{release}/bin/python")))
}

/// Folder of an engine's packages: the one that `TOKENGAP_SGLANG` or `TOKENGAP_VLLM` names, otherwise one in the user's cache. All
/// checkouts share it, because the packages need 9 GB.
pub(super) fn server_folder(engine: &str) -> Result<PathBuf> {
    let variable = format!("TOKENGAP_{}", engine.to_uppercase());
    if let Some(folder) = std::env::var_os(&variable) {
        return Ok(folder.into());
    }
    let cache = if let Some(folder) = std::env::var_os("XDG_CACHE_HOME") {
        PathBuf::from(folder)
    } else {
        let home = std::env::var_os("HOME").with_context(|| format!("neither {variable} nor HOME is set"))?;
        PathBuf::from(home).join(".cache")
    };
    Ok(cache.join("tokengap").join(engine))
}
