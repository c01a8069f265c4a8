//! `cargo xtask ebpf`: builds the kernel side of the probe and keeps the objects in the repository, so that other builds do not need its
//! tools. The build is reproducible byte for byte: the same compiler, lock file and linker give the same object in any folder.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::toolchain::{library, output, succeed};

/// `0.11` and later need an installed LLVM; this version loads the compiler's own.
const BPF_LINKER: &str = "0.10.4";
/// Compiler whose LLVM generated the objects in the repository.
const RUSTC: &str = "1.95.0";
/// Register names in `pt_regs` differ by architecture, so each has its own object.
const MACHINES: [&str; 2] = ["x86_64", "aarch64"];
const SUMS: &str = "SHA256SUMS";

/// Build the kernel side of the probe into probe-ebpf/object
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Lint, build elsewhere, and fail if the result differs from the objects in the repository
    #[arg(long)]
    check: bool,
    /// Write the objects here
    #[arg(long, value_name = "DIR", conflicts_with = "check")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask has no parent folder")?;
    let kept = root.join("probe-ebpf/object");
    let tools = Tools::ready(root)?;
    if !args.check {
        let out = args.out.clone().unwrap_or(kept);
        return build(root, &tools, &out);
    }
    // Clippy for the host does not cover the kernel side.
    let mut clippy = cargo(root, &tools, MACHINES[0], "clippy")?;
    succeed(clippy.args(["--", "--deny", "warnings"]))?;
    let fresh = tempfile::tempdir()?;
    build(root, &tools, fresh.path())?;
    for name in MACHINES.iter().map(|m| object(m)).chain([SUMS.to_owned()]) {
        let read = |dir: &Path| fs::read(dir.join(&name)).with_context(|| format!("read {name} in {}", dir.display()));
        ensure!(
            read(fresh.path())? == read(&kept)?,
            "{name} in {} is not what probe-ebpf builds to: run `cargo xtask ebpf` and commit the result",
            kept.display()
        );
    }
    println!("the objects in {} are what probe-ebpf builds to", kept.display());
    Ok(())
}

fn object(machine: &str) -> String {
    format!("tokengap-{machine}.bpf.o")
}

fn build(root: &Path, tools: &Tools, out: &Path) -> Result<()> {
    fs::create_dir_all(out)?;
    for machine in MACHINES {
        succeed(&mut cargo(root, tools, machine, "build")?)?;
        // Strip DWARF, whose hashes differ between builds; keep the BTF that the kernel reads.
        succeed(
            Command::new(&tools.objcopy)
                .env("LD_LIBRARY_PATH", tools.sysroot.join("lib"))
                .arg("--strip-debug")
                .arg(target(root, machine).join("bpfel-unknown-none/bpf/tokengap-bpf"))
                .arg(out.join(object(machine))),
        )?;
    }
    let sums = output(Command::new("sha256sum").current_dir(out).args(MACHINES.map(object)))?;
    fs::write(out.join(SUMS), &sums)?;
    print!("{sums}");
    Ok(())
}

fn target(root: &Path, machine: &str) -> PathBuf {
    root.join("target/bpf").join(machine)
}

/// `cargo build` or `cargo clippy` of the kernel side for one architecture.
fn cargo(root: &Path, tools: &Tools, machine: &str, what: &str) -> Result<Command> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(root)
        .args([
            what,
            "--quiet",
            "--locked",
            "--package",
            "probe-ebpf",
            "--features",
            "kernel",
        ])
        .args([
            "--bin",
            "tokengap-bpf",
            "--profile",
            "bpf",
            "-Z",
            "build-std=core",
            "--target",
            "bpfel-unknown-none",
        ])
        .arg("--target-dir")
        .arg(target(root, machine))
        .env("PATH", tools.path()?)
        // A stable compiler builds `core` only with these variables.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("__CARGO_TESTS_ONLY_SRC_ROOT", &tools.library)
        .env("CARGO_ENCODED_RUSTFLAGS", flags(root, tools, machine)?)
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    Ok(cargo)
}

fn flags(root: &Path, tools: &Tools, machine: &str) -> Result<OsString> {
    let home = std::env::var_os("CARGO_HOME").map_or_else(
        || {
            std::env::home_dir()
                .map(|home| home.join(".cargo"))
                .context("no home folder: set CARGO_HOME")
        },
        |home| Ok(PathBuf::from(home)),
    )?;
    let mut flags = OsString::from(format!("--cfg=bpf_target_arch=\"{machine}\""));
    for flag in ["-Cdebuginfo=2", "-Clink-arg=--btf"] {
        flags.push("\x1f");
        flags.push(flag);
    }
    for (from, to) in [
        (root, "/src"),
        (home.as_path(), "/cargo"),
        (tools.library.as_path(), "/rust-src"),
    ] {
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

/// Build tools beside the compiler.
struct Tools {
    /// Folder that holds `bin/bpf-linker`.
    dir: PathBuf,
    sysroot: PathBuf,
    /// Source of the standard library of exactly this compiler.
    library: PathBuf,
    objcopy: PathBuf,
}

impl Tools {
    fn ready(root: &Path) -> Result<Self> {
        let version = output(Command::new("rustc").arg("-vV"))?;
        let line = |key: &str| version.lines().find_map(|l| l.strip_prefix(key)).map(str::trim);
        let release = line("release:").context("rustc -vV names no release")?;
        ensure!(
            release == RUSTC,
            "rustc is {release}; the objects are built with {RUSTC} (its LLVM is the linker's): \
             run `cargo +{RUSTC} xtask ebpf`"
        );
        let host = line("host:").context("rustc -vV names no host")?;
        let sysroot = PathBuf::from(output(Command::new("rustc").args(["--print", "sysroot"]))?.trim());
        let objcopy = sysroot.join(format!("lib/rustlib/{host}/bin/rust-objcopy"));
        ensure!(
            objcopy.is_file(),
            "{} is missing: use rustup's toolchain, which has it (GNU objcopy cannot write BPF)",
            objcopy.display()
        );
        let dir = root.join(".tools");
        let library = library(&sysroot, &dir, release)?;
        let linker = dir.join("bin/bpf-linker");
        if !linker.is_file() {
            eprintln!(
                "installing bpf-linker {BPF_LINKER} into {} (about a minute, once)",
                dir.display()
            );
            succeed(
                Command::new("cargo")
                    .args([
                        "install",
                        "--quiet",
                        "--locked",
                        "bpf-linker",
                        "--version",
                        BPF_LINKER,
                        "--root",
                    ])
                    .arg(&dir),
            )?;
        }
        let found = output(Command::new(&linker).arg("--version"))?;
        ensure!(
            found.contains(BPF_LINKER),
            "{} is {}, not {BPF_LINKER}: remove it and run this again",
            linker.display(),
            found.trim()
        );
        Ok(Self {
            dir,
            sysroot,
            library,
            objcopy,
        })
    }

    fn path(&self) -> Result<OsString> {
        let rest = std::env::var_os("PATH").unwrap_or_default();
        Ok(std::env::join_paths(
            std::iter::once(self.dir.join("bin")).chain(std::env::split_paths(&rest)),
        )?)
    }
}
