//! `cargo xtask engine`: creates the virtual environment of the engine harness and unpacks releases from their wheels.
//!
//! Wheels are unpacked, not installed, because their dependencies include the GPU stack, which `engine/stubs.py` replaces. Downloads use
//! pip's normal configuration and are kept.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::script::succeed;

/// Paths of the harness.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    /// Project root, which holds `engine/`.
    pub(crate) root: PathBuf,
    /// Python of the virtual environment.
    pub(crate) python: PathBuf,
}

impl Home {
    /// Determines the paths, which may not exist yet.
    pub(crate) fn find() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the project").to_path_buf();
        Self { python: root.join(".venv-engine/bin/python"), root }
    }

    /// Folder of an unpacked release.
    pub(crate) fn source(&self, release: &str) -> PathBuf {
        self.sources().join(release)
    }

    fn sources(&self) -> PathBuf {
        self.root.join(".engine")
    }

    /// Creates the virtual environment and unpacks `releases` where missing. A lock serializes concurrent calls.
    pub(crate) fn prepare(&self, releases: &[&str]) -> Result<()> {
        fs::create_dir_all(self.sources())?;
        let lock = File::create(self.sources().join("lock"))?;
        lock.lock().context("waiting for another run that prepares the engine")?;
        self.venv()?;
        for release in releases {
            self.release(release)?;
        }
        Ok(())
    }

    /// Creates the virtual environment unless it holds a copy of the current requirements.
    fn venv(&self) -> Result<()> {
        let wanted = fs::read_to_string(self.root.join("engine/requirements.txt"))?;
        let made_from = self.root.join(".venv-engine/requirements.txt");
        if self.python.exists() && fs::read_to_string(&made_from).is_ok_and(|made| made == wanted) {
            return Ok(());
        }
        eprintln!("engine: creating .venv-engine");
        let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
        succeed(Command::new(python).args(["-m", "venv", "--clear"]).arg(self.root.join(".venv-engine")))?;
        succeed(self.pip("install").arg("-r").arg(self.root.join("engine/requirements.txt")))?;
        fs::write(made_from, wanted)?;
        Ok(())
    }

    fn release(&self, release: &str) -> Result<()> {
        self.unpack(&["sglang"], release, &self.source(release)).with_context(|| format!("unpacking SGLang {release}"))
    }

    /// Unpacks a vLLM release unless it is there. Returns its folder.
    pub(crate) fn prepare_vllm(&self, release: &str) -> Result<PathBuf> {
        let target = self.sources().join("vllm").join(release);
        fs::create_dir_all(self.sources().join("vllm"))?;
        self.unpack(&["vllm"], release, &target).with_context(|| format!("unpacking vLLM {release}"))?;
        Ok(target)
    }

    /// Folder of an unpacked Dynamo release.
    fn dynamo(&self, release: &str) -> PathBuf {
        self.sources().join("dynamo").join(release)
    }

    /// Unpacks Dynamo releases where missing.
    pub(super) fn prepare_dynamo(&self, releases: &[String]) -> Result<()> {
        let folder = self.sources().join("dynamo");
        fs::create_dir_all(&folder)?;
        let lock = File::create(self.sources().join("lock"))?;
        lock.lock().context("waiting for another run that prepares the engine")?;
        for release in releases {
            self.unpack(&["ai-dynamo-runtime", "ai-dynamo"], release, &self.dynamo(release))
                .with_context(|| format!("unpacking Dynamo {release}"))?;
        }
        self.frontend()
    }

    /// Installs the frontend's dependencies unless the folder holds a copy of the current requirements.
    fn frontend(&self) -> Result<()> {
        let wanted = fs::read_to_string(self.root.join("engine/dynamo/requirements.txt"))?;
        let target = self.dynamo("frontend");
        let made_from = target.join("requirements.txt");
        if fs::read_to_string(&made_from).is_ok_and(|made| made == wanted) {
            return Ok(());
        }
        eprintln!("engine: installing the dependencies of Dynamo's frontend");
        succeed(
            self.pip("install")
                .args(["--no-deps", "--upgrade", "--target"])
                .arg(&target)
                .arg("-r")
                .arg(self.root.join("engine/dynamo/requirements.txt")),
        )?;
        fs::write(made_from, wanted)?;
        Ok(())
    }

    fn pip(&self, command: &str) -> Command {
        let mut pip = Command::new(&self.python);
        pip.args(["-m", "pip", command, "--quiet", "--disable-pip-version-check"]);
        pip
    }

    /// Downloads a release's wheels and unpacks them into one folder.
    fn unpack(&self, packages: &[&str], release: &str, target: &Path) -> Result<()> {
        let named = release.starts_with(|c: char| c.is_ascii_digit())
            && release.chars().all(|c| c.is_ascii_alphanumeric() || c == '.');
        ensure!(named, "`{release}` is not a release number such as 0.5.9 or 0.4.6.post4");
        if target.is_dir() {
            return Ok(());
        }
        eprintln!("engine: unpacking {} {release}", packages.join(" and "));
        let wheels = tempfile::tempdir_in(self.sources())?;
        let arch = std::env::consts::ARCH;
        let mut download = self.pip("download");
        download.args(["--no-deps", "--only-binary=:all:"]);
        download.args(["--implementation", "cp", "--python-version", "3.11"]);
        for platform in [format!("manylinux_2_34_{arch}"), format!("manylinux_2_28_{arch}"), "any".into()] {
            download.args(["--platform", &platform]);
        }
        download.arg("--dest").arg(wheels.path());
        succeed(download.args(packages.iter().map(|package| format!("{package}=={release}"))))?;
        let unpacked = tempfile::tempdir_in(self.sources())?;
        for wheel in fs::read_dir(wheels.path())? {
            let mut unzip = Command::new(&self.python);
            unzip.args(["-m", "zipfile", "-e"]);
            succeed(unzip.arg(wheel?.path()).arg(unpacked.path()))?;
        }
        // Rename at the end, so that an interrupted run leaves no partial release.
        fs::rename(unpacked.keep(), target)?;
        Ok(())
    }
}

/// Path of the program under test: given, or built from this workspace.
pub(crate) fn tokengap(home: &Home, given: Option<&Path>) -> Result<PathBuf> {
    if let Some(program) = given {
        return fs::canonicalize(program).with_context(|| format!("looking for {}", program.display()));
    }
    build(home, &["--release"])?;
    Ok(target(home).join("release/tokengap"))
}

/// Builds the program with the `fault-injection` feature, unoptimised to save time, and moves it away from the regular program's path.
pub(crate) fn tokengap_with_faults(home: &Home) -> Result<PathBuf> {
    build(home, &["--features", "tokengap/fault-injection"])?;
    let kept = target(home).join("faults");
    fs::create_dir_all(&kept)?;
    let (program, kept) = (target(home).join("debug/tokengap"), kept.join("tokengap"));
    fs::rename(&program, &kept).with_context(|| format!("moving {}", program.display()))?;
    Ok(kept)
}

fn build(home: &Home, options: &[&str]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(&home.root).args(["build", "--quiet", "--package", "tokengap", "--bin", "tokengap"]);
    succeed(build.args(options)).context("building tokengap")
}

fn target(home: &Home) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| home.root.join("target"), PathBuf::from)
}
