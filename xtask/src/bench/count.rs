//! Instructions of the hot paths, counted by gungraun (the `count` bench targets) and compared with `count.txt`. The counts do not depend
//! on machine load, so continuous integration can detect a slower path.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::script::{command_output, project_root};

/// Baseline file: the compiler in the first line, then lines of `PATH INSTRUCTIONS`.
const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/count.txt");
/// Allowed deviation in percent, because hash tables get a new seed in each run.
const TOLERANCE: f64 = 3.0;
/// Frames in a benchmark: the constant `LAPS` of the bench targets.
const FRAMES: u64 = 256;
/// Makes glibc use the same memcpy on every machine, not the best one for its CPU.
const SAME_MEMCPY: &str = "--envs=GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-AVX512F,-ERMS,-FSRM";
/// Size in bytes of a frame of a thousand requests, whose cost per byte must match that of short ones.
const LONG_FRAME_BYTES: &str = "107000";

/// Counts the instructions of each benchmark and compares them with the baseline, or makes them the baseline if `makes_baseline`.
pub(crate) fn compare_counts_or_make_baseline(makes_baseline: bool) -> anyhow::Result<()> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("SKIPPED: counting instructions needs valgrind: apt-get install valgrind");
        return Ok(());
    }
    let counts = count_instructions()?;
    let baseline = InstructionCounts::read_baseline()?;
    let counted = InstructionCounts { compiler: compiler_here()?, counts };
    let current_compiler = &counted.compiler;
    let differing = print_changes_and_find_differing(&baseline, &counted);
    if makes_baseline {
        counted.write_baseline()?;
    } else if baseline.compiler != *current_compiler {
        // Another compiler makes other instructions of the same code.
        println!("SKIPPED: the baseline was recorded with {:?}, and this is {current_compiler:?}", baseline.compiler);
    } else if !differing.is_empty() {
        bail!(
            "more than {TOLERANCE} % off the baseline, or not counted: {}; to accept, run `cargo xtask bench --bless`",
            differing.join(", ")
        );
    }
    Ok(())
}

/// Prints the instructions of each benchmark beside those of the baseline. Returns the benchmarks that differ by more than [`TOLERANCE`],
/// or that one of the two lacks.
fn print_changes_and_find_differing<'c>(
    baseline: &'c InstructionCounts,
    counted: &'c InstructionCounts,
) -> Vec<&'c str> {
    let mut differing = Vec::new();
    println!("{:32} {:>12} {:>12}", "instructions a frame", "baseline", "counted");
    for (name, count) in &counted.counts {
        // Without a baseline, the expected count is 0 and the change infinite, so the benchmark differs.
        let expected = baseline.counts.get(name).copied().unwrap_or(0);
        let change_percent = (*count as f64 / expected as f64 - 1.0) * 100.0;
        println!("{name:32} {expected:>12} {count:>12} {change_percent:+8.1} %");
        if change_percent.abs() > TOLERANCE {
            differing.push(name.as_str());
        }
    }
    // Benchmarks of the baseline that do not exist any more.
    let is_gone = |name: &&String| !counted.counts.contains_key(*name);
    differing.extend(baseline.counts.keys().filter(is_gone).map(String::as_str));
    differing
}

/// Runs the bench targets under callgrind, and returns the instructions per frame of each benchmark by its name. Uses a target folder of
/// its own, so that other builds and their settings do not affect the counts.
fn count_instructions() -> anyhow::Result<BTreeMap<String, u64>> {
    let root = project_root();
    let tools = project_root().join(".tools/bin");
    let metadata = cargo_metadata::MetadataCommand::new().no_deps().exec()?;
    let target = metadata.target_directory.join("count").into_std_path_buf();
    std::fs::create_dir_all(target.join("tmp"))?;
    // Makes the long frame that a bench target decodes.
    let mut python = Command::new("python3");
    python.arg(root.join("engines/benches/decode/frame.py"));
    python.arg(root.join("zmq-tap/fixtures/messages/0.5.9/skip_delta_256rid.pkl"));
    command_output(python.arg(LONG_FRAME_BYTES).arg(target.join("tmp/long.pkl")))?;
    // The local tools include `gungraun-runner`.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([tools].into_iter().chain(std::env::split_paths(&path)))?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["bench", "--quiet", "--bench", "count"]);
    cargo.args(["engines", "recording", "sources"].map(|package| format!("--package={package}")));
    cargo.arg("--target-dir").arg(&target);
    cargo.args(["--", "--output-format=json", "--callgrind-args=--cache-sim=no", SAME_MEMCPY]);
    let summaries = command_output(cargo.current_dir(root).env("PATH", path))
        .context("gungraun-runner is needed: cargo install --locked --root .tools --version 0.20.0 gungraun-runner")?;
    summaries.lines().filter(|line| line.starts_with('{')).map(parse_name_and_instructions).collect()
}

/// Name of a benchmark and its instructions per frame, from its JSON summary.
fn parse_name_and_instructions(line: &str) -> anyhow::Result<(String, u64)> {
    let summary: Value = serde_json::from_str(line)?;
    let [function, id] = ["function_name", "id"].map(|key| summary[key].as_str().unwrap_or_default());
    // `Ir` are the instructions read by the CPU, in callgrind's words.
    let counted = &summary["profiles"][0]["data"]["total"]["metrics"]["Ir"]["values"]["new"];
    let instructions = counted.as_u64().with_context(|| format!("no instructions: {line}"))?;
    // The functions of the benchmarks are called `count_NAME`.
    Ok((format!("{}/{id}", function.trim_start_matches("count_")), instructions / FRAMES))
}

/// Counts of one run of the benchmarks.
struct InstructionCounts {
    /// Compiler that made the benchmarks.
    compiler: String,
    /// Instructions a frame of each benchmark.
    counts: BTreeMap<String, u64>,
}

impl InstructionCounts {
    /// Reads the baseline; an empty one if there is none.
    fn read_baseline() -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(BASELINE).unwrap_or_default();
        let compiler = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let mut counts = BTreeMap::new();
        for line in text.lines().skip(1) {
            let (name, count) = line.split_once(' ').with_context(|| format!("{BASELINE}: {line:?}"))?;
            counts.insert(name.into(), count.parse()?);
        }
        Ok(Self { compiler: compiler.unwrap_or_default().into(), counts })
    }

    /// Replaces the file of the baseline by these counts.
    fn write_baseline(&self) -> anyhow::Result<()> {
        let mut text = format!("# {}\n", self.compiler);
        for (name, count) in &self.counts {
            writeln!(text, "{name} {count}")?;
        }
        std::fs::write(BASELINE, text).with_context(|| BASELINE.to_string())
    }
}

/// Compiler version and architecture; both change the instruction counts.
fn compiler_here() -> anyhow::Result<String> {
    let version = command_output(Command::new("rustc").arg("--version"))?;
    Ok(format!("{} {}", version.trim(), std::env::consts::ARCH))
}
