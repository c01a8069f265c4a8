//! `cargo xtask engine`: creates the virtual environment of the engine harness and unpacks releases from their wheels.
//!
//! Wheels are unpacked, not installed: their dependencies include the GPU stack, which `engine/stubs.py` replaces. Downloads use pip's
//! normal configuration and are not repeated.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Paths of the harness.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    /// Project root, which holds `engine/`.
    pub(crate) root: PathBuf,
    /// Python of the virtual environment.
    pub(crate) python: PathBuf,
}

impl Home {
    /// Determines the paths, whether or not they exist.
    pub(crate) fn find() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("xtask lies in the project")
            .to_path_buf();
        Self {
            python: root.join(".venv-engine/bin/python"),
            root,
        }
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
        lock.lock()
            .context("waiting for another run that prepares the engine")?;
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
        eprintln!("engine: making .venv-engine");
        let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
        run(Command::new(python)
            .args(["-m", "venv", "--clear"])
            .arg(self.root.join(".venv-engine")))?;
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
        run(Command::new(&self.python)
            .args(install)
            .arg(self.root.join("engine/requirements.txt")))?;
        fs::write(made_from, wanted)?;
        Ok(())
    }

    fn release(&self, release: &str) -> Result<()> {
        self.unpack(&["sglang"], release, &self.source(release))
            .with_context(|| format!("unpacking SGLang {release}"))
    }

    /// Folder of an unpacked Dynamo release.
    pub(crate) fn dynamo(&self, release: &str) -> PathBuf {
        self.sources().join("dynamo").join(release)
    }

    /// Like [`Home::prepare`], with Dynamo releases as well.
    pub(crate) fn prepare_dynamo(&self, dynamo: &[&str], releases: &[&str]) -> Result<()> {
        self.prepare(releases)?;
        let folder = self.sources().join("dynamo");
        fs::create_dir_all(&folder)?;
        let lock = File::create(self.sources().join("lock"))?;
        lock.lock()
            .context("waiting for another run that prepares the engine")?;
        for release in dynamo {
            self.unpack(&["ai-dynamo-runtime", "ai-dynamo"], release, &self.dynamo(release))
                .with_context(|| format!("unpacking Dynamo {release}"))?;
        }
        self.frontend()
    }

    /// Python path of a Dynamo frontend.
    pub(crate) fn frontend_path(&self, release: &str) -> Result<OsString> {
        Ok(std::env::join_paths([self.dynamo(release), self.dynamo("frontend")])?)
    }

    /// Installs the frontend's dependencies unless the folder holds a copy of the current requirements.
    fn frontend(&self) -> Result<()> {
        let wanted = fs::read_to_string(self.root.join("engine/dynamo/requirements.txt"))?;
        let target = self.dynamo("frontend");
        let made_from = target.join("requirements.txt");
        if fs::read_to_string(&made_from).is_ok_and(|made| made == wanted) {
            return Ok(());
        }
        eprintln!("engine: installing what Dynamo's frontend imports");
        let install = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--upgrade",
        ];
        run(Command::new(&self.python)
            .args(install)
            .arg("--target")
            .arg(&target)
            .arg("-r")
            .arg(self.root.join("engine/dynamo/requirements.txt")))?;
        fs::write(made_from, wanted)?;
        Ok(())
    }

    /// Downloads a release's wheels and unpacks them into one folder.
    fn unpack(&self, packages: &[&str], release: &str, target: &Path) -> Result<()> {
        let named = release.starts_with(|c: char| c.is_ascii_digit())
            && release.chars().all(|c| c.is_ascii_alphanumeric() || c == '.');
        ensure!(
            named,
            "`{release}` is not a release's number, such as 0.5.9 or 0.4.6.post4"
        );
        if target.is_dir() {
            return Ok(());
        }
        eprintln!("engine: unpacking {} {release}", packages.join(" and "));
        let wheels = tempfile::tempdir_in(self.sources())?;
        let arch = std::env::consts::ARCH;
        let mut download = Command::new(&self.python);
        download.args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]);
        download.args([
            "--only-binary=:all:",
            "--implementation",
            "cp",
            "--python-version",
            "3.11",
        ]);
        for platform in [
            format!("manylinux_2_34_{arch}"),
            format!("manylinux_2_28_{arch}"),
            "any".into(),
        ] {
            download.args(["--platform", &platform]);
        }
        download.arg("--dest").arg(wheels.path());
        run(download.args(packages.iter().map(|package| format!("{package}=={release}"))))?;
        let unpacked = tempfile::tempdir_in(self.sources())?;
        for wheel in fs::read_dir(wheels.path())? {
            let mut unzip = Command::new(&self.python);
            unzip.args(["-m", "zipfile", "-e"]);
            run(unzip.arg(wheel?.path()).arg(unpacked.path()))?;
        }
        // Rename at the end, so that an interrupted run leaves no partial release.
        fs::rename(unpacked.keep(), target)?;
        Ok(())
    }
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}
