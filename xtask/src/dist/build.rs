//! The program for another target than the compiler's own: zig is the C compiler and linker for all of them, and brings
//! musl and libunwind with it. The standard library is rustup's where it has the target's, else it is compiled as well.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::toolchain::{library, output, succeed};

/// What reproduces a build beside the compiler and Cargo.lock.
const ZIG: &str = "ziglang==0.17.0";
const ZIGBUILD: &str = "cargo-zigbuild==0.24.0";

/// Compiler, linker and standard library for the targets.
pub(crate) struct Toolchain {
    root: PathBuf,
    /// A venv that holds zig and cargo-zigbuild.
    zig: PathBuf,
    sysroot: PathBuf,
    release: String,
    host: String,
}

impl Toolchain {
    /// Looks for what is there and installs what is not, into `.tools`.
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

    /// The machine that this runs on, as targets name it: `x86_64`.
    pub(crate) fn machine(&self) -> &str {
        self.host.split('-').next().unwrap_or_default()
    }

    /// The compiler's release, `1.95.0`.
    pub(crate) fn release(&self) -> &str {
        &self.release
    }

    /// Where zig keeps the sources, and licences, of what it links.
    pub(crate) fn zig_lib(&self) -> Result<PathBuf> {
        let program = "import ziglang, os; print(os.path.dirname(ziglang.__file__))";
        let dir = output(Command::new(self.zig.join("bin/python")).args(["-c", program]))?;
        Ok(Path::new(dir.trim()).join("lib"))
    }

    /// `cargo zigbuild` or `cargo check` of the command, and how it comes by a standard library.
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
                // Stable compiles the standard library only when asked this way.
                .env("RUSTC_BOOTSTRAP", "1")
                .env("__CARGO_TESTS_ONLY_SRC_ROOT", &library);
            sources.push((library, "/rust-src"));
            "a standard library compiled here: rustup has none for the target"
        };
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags(target, &sources)?);
        Ok((cargo, std))
    }

    /// The program for `target`, and a word on how it was made.
    pub(crate) fn build(&self, target: &str) -> Result<(PathBuf, &'static str)> {
        let (mut cargo, std) = self.cargo("zigbuild", target)?;
        succeed(cargo.args(["--quiet", "--bin", "tokengap"]))?;
        let program = self.root.join("target").join(target).join("dist/tokengap");
        ensure!(program.is_file(), "{} was not built", program.display());
        Ok((program, std))
    }

    /// Compiles for `target` as far as that goes without linking.
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

/// The venv with zig and cargo-zigbuild, made when it is not there or of other versions.
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

/// The same bytes in any folder: messages name files by where they are in their package.
fn flags(target: &str, sources: &[(PathBuf, &str)]) -> Result<OsString> {
    let mut flags = OsString::from(if target.ends_with("-musl") {
        // Start files and libunwind are zig's too.
        "-Ctarget-feature=+crt-static\x1f-Clink-self-contained=no"
    } else {
        "-Ctarget-cpu=generic"
    });
    for (from, to) in sources {
        // rustc is given paths without links in them.
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
