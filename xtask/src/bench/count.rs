//! Instructions of the hot paths per frame of 256 requests, counted by callgrind and compared with the baseline beside this file. The
//! counts do not depend on machine load, so continuous integration can detect a slower path.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use super::relay;

/// Baseline file: the compiler in the first line, then lines of `PATH INSTRUCTIONS`.
const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/count.txt");
/// Laps of the two runs whose difference is counted, so that the setup before the first lap cancels out.
const LAPS: [u64; 2] = [256, 512];
/// Allowed deviation in percent: hash tables get a new seed in each run.
const TOLERANCE: f64 = 3.0;
/// A frame of a thousand requests, which Python pickles in two batches and two frames. Its cost per byte must match that of short ones.
const LONG: &str = "decode-0.5.9-pickle-long";
const LONG_BYTES: u64 = 107_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the counts to the baseline instead of comparing them
    #[arg(long)]
    bless: bool,
    /// Count these paths only
    #[arg(value_name = "PATH")]
    paths: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("SKIPPED: instructions are counted by valgrind, and there is none: apt-get install valgrind");
        return Ok(());
    }
    let program = build()?;
    let names = match args.paths.as_slice() {
        [] => {
            let names = text(&mut Command::new(&program))?;
            names.lines().chain([LONG]).map(String::from).collect()
        }
        some => some.to_vec(),
    };
    let folder = tempfile::tempdir()?;
    let long = folder.path().join("long.pkl");
    relay::frame(
        &Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("the workspace")?
            .join(relay::FIXTURE),
        LONG_BYTES,
        &long,
    )?;
    let long = format!("{}{}", hot::paths::DECODE, long.display());
    let (compiler, known) = baseline()?;
    let here = compiler_here()?;
    let (mut written, mut wrong) = (format!("# {here}\n"), Vec::new());
    println!(
        "{:26} {:>12} {:>12} {:>8}",
        "instructions a frame", "written down", "counted", ""
    );
    for name in &names {
        let path = if name == LONG { &long } else { name };
        let [few, many] = LAPS.map(|laps| instructions(&program, path, laps));
        let counted = many?.saturating_sub(few?) / (LAPS[1] - LAPS[0]);
        let before = known.get(name).copied();
        let change = before.map(|before| (counted as f64 / before as f64 - 1.0) * 100.0);
        println!(
            "{name:26} {:>12} {counted:>12} {:>8}",
            before.map_or_else(|| "-".into(), |before| before.to_string()),
            change.map_or_else(|| "new".into(), |change| format!("{change:+.1} %"))
        );
        writeln!(written, "{name} {counted}")?;
        if change.is_none_or(|change| change.abs() > TOLERANCE) {
            wrong.push(name.as_str());
        }
    }
    if args.bless {
        ensure!(args.paths.is_empty(), "--bless writes all paths: name none");
        std::fs::write(BASELINE, written).with_context(|| BASELINE.to_string())?;
    } else if compiler != here {
        println!("SKIPPED: not held to what is written down, which is of {compiler:?}; this is {here:?}");
    } else if !wrong.is_empty() {
        bail!(
            "more than {TOLERANCE} % off: {}; look for the cause, and where it is wanted `cargo xtask bench count --bless` writes it down",
            wrong.join(", ")
        );
    }
    Ok(())
}

/// Builds the paths as one small program in its own target folder, so that other builds and their settings do not affect it.
fn build() -> anyhow::Result<PathBuf> {
    let metadata = cargo_metadata::MetadataCommand::new().no_deps().exec()?;
    let target = metadata.target_directory.join("hot");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let status = cargo
        .args(["build", "--quiet", "--release", "--package", "hot", "--target-dir"])
        .arg(&target)
        .status()?;
    ensure!(status.success(), "{cargo:?}: {status}");
    Ok(target.join("release/hot").into())
}

fn instructions(program: &Path, name: &str, laps: u64) -> anyhow::Result<u64> {
    let out = tempfile::NamedTempFile::new()?;
    let mut valgrind = Command::new("valgrind");
    valgrind
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", out.path().display()))
        .arg(program)
        .arg(name)
        .arg(laps.to_string())
        // Use the same memcpy on every machine, not the best one for its CPU.
        .env("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2,-AVX512F,-ERMS,-FSRM");
    text(&mut valgrind)?;
    let counted = std::fs::read_to_string(out.path())?;
    let total = counted.lines().find_map(|line| line.strip_prefix("summary: "));
    let total = total.and_then(|line| line.split(' ').next()?.parse().ok());
    total.with_context(|| format!("{valgrind:?} left no summary"))
}

/// Standard output of a command.
fn text(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// The compiler of the baseline, and its counts.
fn baseline() -> anyhow::Result<(String, BTreeMap<String, u64>)> {
    let Ok(lines) = std::fs::read_to_string(BASELINE) else {
        return Ok((String::new(), BTreeMap::new()));
    };
    let compiler = lines.lines().next().and_then(|line| line.strip_prefix("# "));
    let count = |line: &str| -> anyhow::Result<(String, u64)> {
        let (name, count) = line.split_once(' ').with_context(|| format!("{BASELINE}: {line:?}"))?;
        Ok((name.into(), count.parse()?))
    };
    let counts = lines.lines().skip(1).map(count).collect::<anyhow::Result<_>>()?;
    Ok((compiler.unwrap_or_default().into(), counts))
}

/// Compiler version and architecture; both change the instruction counts.
fn compiler_here() -> anyhow::Result<String> {
    let version = text(Command::new("rustc").arg("--version"))?;
    Ok(format!("{} {}", version.trim(), std::env::consts::ARCH))
}
