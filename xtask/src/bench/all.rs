//! Runs every benchmark in sequence, each in its own process. One that cannot run here prints the reason and is skipped.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context;

use super::aims;
use crate::document;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Fewer turns and less of everything, and nothing that needs an engine
    #[arg(long)]
    quick: bool,
    /// Write the results into docs/internals/PERFORMANCE.md and docs/internals/BENCHMARKS.md
    #[arg(long, conflicts_with = "quick")]
    write: bool,
    /// Only these of them
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
}

/// All benchmarks, with the arguments for a quick run if there is one.
const ALL: [(&str, Option<&[&str]>); 13] = [
    ("count", None),
    ("decode", Some(&["--rounds", "5", "--messages", "200"])),
    ("ledger", Some(&["--rounds", "3"])),
    ("grow", Some(&["--rounds", "1", "--finished", "50000"])),
    ("record", Some(&["--rounds", "1", "--seconds", "2", "--minutes", "1"])),
    (
        "relay",
        Some(&[
            "--rounds",
            "1",
            "--volume",
            "128",
            "--sizes",
            "64",
            "--only",
            "throughput",
        ]),
    ),
    (
        "attach",
        Some(&["--seconds", "5", "--burst", "2", "--times", "1,2", "--starts", "3"]),
    ),
    ("export", Some(&["--chunks", "200000"])),
    ("screen", None),
    ("probe", None),
    ("target", None),
    ("egress", None),
    ("volume", None),
];

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    let gathered = tempfile::NamedTempFile::new()?;
    let mut left_out = Vec::new();
    let mut text = format!("{}\n", machine()?);
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    for (name, quick) in ALL.into_iter().filter(|(name, _)| wanted(name)) {
        let words: &[&str] = match (args.quick, quick) {
            (false, _) => &[],
            (true, Some(words)) => words,
            (true, None) => continue,
        };
        println!("\n== bench {name} {}", words.join(" "));
        let start = Instant::now();
        let mut part = Command::new(&program)
            .args(["bench", name])
            .args(words)
            .env(aims::GATHERED_IN, gathered.path())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| program.display().to_string())?;
        let printed = BufReader::new(part.stdout.take().context("its output is piped")?);
        write!(text, "\n### {name}\n\n```text\n")?;
        for line in printed.lines() {
            let line = line?;
            println!("{line}");
            writeln!(text, "{line}")?;
        }
        text.push_str("```\n");
        println!("-- {:.0} s", start.elapsed().as_secs_f64());
        if !part.wait()?.success() {
            left_out.push(name);
        }
    }
    if !left_out.is_empty() {
        let said = format!("LEFT OUT, for reasons of this machine: {}", left_out.join(", "));
        println!("\n{said}");
        write!(text, "\n{said}\n")?;
    }
    let table = aims::table(gathered.path())?;
    if !args.quick {
        println!("\n{table}");
    }
    if args.write {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("the workspace")?;
        document::write(root, "internals/PERFORMANCE.md", "Aims", &table)?;
        document::write(root, "internals/BENCHMARKS.md", "Bench", &text)?;
    }
    Ok(())
}

/// Processor, cores, kernel and compiler of this machine.
fn machine() -> anyhow::Result<String> {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").context("/proc/cpuinfo")?;
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").context("/proc/sys/kernel/osrelease")?;
    let rustc = Command::new("rustc").arg("--version").output().context("rustc")?;
    Ok(format!(
        "{}, {} cores, Linux {}, {}.",
        model.map_or("an unnamed processor", |(_, model)| model),
        std::thread::available_parallelism()?,
        kernel.trim(),
        String::from_utf8_lossy(&rustc.stdout).trim()
    ))
}
