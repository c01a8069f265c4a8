//! Cross builds of the program. zig is the C compiler and linker for all targets and provides musl and libunwind. The standard library
//! comes from rustup if it has the target, and is compiled otherwise.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::toolchain::{library, output, succeed};

/// Pinned versions that, with the compiler and Cargo.lock, reproduce a build.
const ZIG: &str = "ziglang==0.17.0";
const ZIGBUILD: &str = "cargo-zigbuild==0.24.0";

/// Compiler, linker and standard library for the targets.
pub(crate) struct Toolchain {
    root: PathBuf,
    /// Virtual environment with zig and cargo-zigbuild.
    zig: PathBuf,
    sysroot: PathBuf,
    release: String,
    host: String,
}

impl Toolchain {
    /// Finds the installed tools and installs missing ones into `.tools`.
    pub(crate) fn ready(root: &Path) -> Result<Self> {
        let version = output(Command::new("rustc").arg("-vV"))?;
        let line = |key: &str| {
            let value = version.lines().find_map(|l| l.strip_prefix(key)).map(str::trim);
            value
                .map(str::to_owned)
                .with_context(|| format!("rustc -vV names no {key}"))
        };
        Ok(Self {
            root: root.to_owned(),
            zig: zig(&root.join(".tools/zig"))?,
            sysroot: output(Command::new("rustc").args(["--print", "sysroot"]))?
                .trim()
                .into(),
            release: line("release:")?,
            host: line("host:")?,
        })
    }

    /// This machine's architecture in target notation, such as `x86_64`.
    pub(crate) fn machine(&self) -> &str {
        self.host.split('-').next().unwrap_or_default()
    }

    /// The compiler's release, such as `1.95.0`.
    pub(crate) fn release(&self) -> &str {
        &self.release
    }

    /// Folder with the sources and licences of the libraries that zig links.
    pub(crate) fn zig_lib(&self) -> Result<PathBuf> {
        let program = "import ziglang, os; print(os.path.dirname(ziglang.__file__))";
        let dir = output(Command::new(self.zig.join("bin/python")).args(["-c", program]))?;
        Ok(Path::new(dir.trim()).join("lib"))
    }

    /// Returns the `cargo zigbuild` or `cargo check` command, and a note on the source of the standard library.
    fn cargo(&self, what: &str, target: &str) -> Result<(Command, &'static str)> {
        let mut cargo = Command::new(self.zig.join("bin/cargo-zigbuild"));
        cargo
            .current_dir(&self.root)
            .args([
                what,
                "--locked",
                "--package",
                "tui",
                "--profile",
                "dist",
                "--target",
                target,
            ])
            .env("PATH", self.path()?)
            .env("CARGO_ZIGBUILD_CACHE_DIR", self.root.join(".tools/zig-cache"))
            .env("ZIG_GLOBAL_CACHE_DIR", self.root.join(".tools/zig-cache"))
            .env_remove("RUSTC_WRAPPER")
            .env_remove("RUSTC_WORKSPACE_WRAPPER");
        let prebuilt = self.sysroot.join("lib/rustlib").join(target).join("lib").is_dir();
        let mut sources = vec![(self.root.clone(), "/tokengap"), (cargo_home()?, "/cargo")];
        let std = if prebuilt {
            "rustup's standard library"
        } else {
            let library = library(&self.sysroot, &self.root.join(".tools"), &self.release)?;
            cargo
                .args(["-Z", "build-std=std,panic_unwind"])
                // A stable compiler builds the standard library only with these variables.
                .env("RUSTC_BOOTSTRAP", "1")
                .env("__CARGO_TESTS_ONLY_SRC_ROOT", &library);
            sources.push((library, "/rust-src"));
            "a standard library compiled here: rustup has none for the target"
        };
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags(target, &sources)?);
        Ok((cargo, std))
    }

    /// Builds the program for `target`; returns its path and a note on the standard library.
    pub(crate) fn build(&self, target: &str) -> Result<(PathBuf, &'static str)> {
        let (mut cargo, std) = self.cargo("zigbuild", target)?;
        succeed(cargo.args(["--quiet", "--bin", "tokengap"]))?;
        let program = self.root.join("target").join(target).join("dist/tokengap");
        ensure!(program.is_file(), "{} was not built", program.display());
        Ok((program, std))
    }

    /// Type-checks for `target` without linking.
    pub(crate) fn check(&self, target: &str) -> Result<&'static str> {
        let (mut cargo, std) = self.cargo("check", target)?;
        succeed(cargo.arg("--quiet"))?;
        Ok(std)
    }

    fn path(&self) -> Result<OsString> {
        let rest = std::env::var_os("PATH").unwrap_or_default();
        Ok(std::env::join_paths(
            std::iter::once(self.zig.join("bin")).chain(std::env::split_paths(&rest)),
        )?)
    }
}

/// Virtual environment with zig and cargo-zigbuild, created if it is missing or has other versions.
fn zig(dir: &Path) -> Result<PathBuf> {
    let made_from = dir.join("tokengap-tools");
    let wanted = format!("{ZIG}\n{ZIGBUILD}\n");
    if std::fs::read_to_string(&made_from).is_ok_and(|made| made == wanted) {
        return Ok(dir.to_owned());
    }
    eprintln!("installing {ZIG} and {ZIGBUILD} into {}", dir.display());
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    succeed(Command::new(python).args(["-m", "venv", "--clear"]).arg(dir))?;
    succeed(Command::new(dir.join("bin/python")).args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        ZIG,
        ZIGBUILD,
    ]))?;
    std::fs::write(made_from, wanted)?;
    Ok(dir.to_owned())
}

fn cargo_home() -> Result<PathBuf> {
    std::env::var_os("CARGO_HOME").map(PathBuf::from).map_or_else(
        || {
            let home = std::env::home_dir().context("no home folder: set CARGO_HOME")?;
            Ok(home.join(".cargo"))
        },
        Ok,
    )
}

/// Compiler flags that make builds path independent: messages name files relative to their package.
fn flags(target: &str, sources: &[(PathBuf, &str)]) -> Result<OsString> {
    let mut flags = OsString::from(if target.ends_with("-musl") {
        // zig provides the start files and libunwind as well.
        "-Ctarget-feature=+crt-static\x1f-Clink-self-contained=no"
    } else {
        "-Ctarget-cpu=generic"
    });
    for (from, to) in sources {
        // rustc receives paths with symbolic links resolved.
        let from = from
            .canonicalize()
            .with_context(|| format!("resolve {}", from.display()))?;
        flags.push("\x1f--remap-path-prefix=");
        flags.push(&from);
        flags.push("=");
        flags.push(to);
    }
    Ok(flags)
}
