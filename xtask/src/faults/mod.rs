//! `cargo xtask faults`: injects faults around tokengap between real peers that keep their own truth. docs/internals/FAULTS.md has the
//! results.

mod peers;
mod probe;
mod raw;
mod relay;
pub(crate) mod tap;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::document;
use crate::e2e::attach::kernel::refusal;
use crate::e2e::check::Checks;
use crate::e2e::setup::Home;

/// Options of `cargo xtask faults`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// A night's worth: millions of messages, a minute of standstill, 500 attaches.
    #[arg(long)]
    long: bool,
    /// Only faults whose name contains this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// The tokengap program; built from this workspace when not given. Faults inside are a program's that is built for them.
    #[arg(long, value_name = "FILE")]
    tokengap: Option<PathBuf>,
    /// Write the results into docs/internals/FAULTS.md.
    #[arg(long, conflicts_with = "only")]
    write: bool,
}

/// Context of every fault.
pub(crate) struct Bench {
    home: Home,
    /// The release build.
    tokengap: PathBuf,
    /// A build with the `fault-injection` feature.
    faulty: PathBuf,
    long: bool,
}

/// One row of the table.
struct Fault {
    name: &'static str,
    /// Description of the fault.
    what: &'static str,
    run: fn(&Bench, &Path, &mut Checks) -> Result<Seen>,
}

/// Result of a fault.
struct Seen {
    /// Messages whose arrival was checked.
    messages: u64,
    told: String,
}

/// Runs `cargo xtask faults`.
pub(crate) fn run(options: &Options) -> Result<()> {
    let home = Home::find();
    home.prepare(&[])?;
    let bench = Bench {
        faulty: built(&home, true)?,
        tokengap: released(&home, options.tokengap.as_deref())?,
        home,
        long: options.long,
    };
    let wanted = |fault: &&Fault| {
        options
            .only
            .as_ref()
            .is_none_or(|text| fault.name.contains(text.as_str()))
    };
    let mut faults: Vec<&Fault> = relay::FAULTS.iter().filter(wanted).collect();
    match refusal() {
        None => faults.extend(probe::FAULTS.iter().filter(wanted)),
        Some(why) => println!("SKIPPED, {} faults of the probe: {why}", probe::FAULTS.len()),
    }
    ensure!(!faults.is_empty(), "no fault has that name");
    let (mut failed, mut messages, mut made) = (0, 0, 0);
    let mut rows = String::from("| fault | done | result |\n|---|---|---|\n");
    let started = Instant::now();
    for fault in faults {
        let begun = Instant::now();
        let mut checks = Checks::default();
        let dir = tempfile::tempdir().context("making a folder")?;
        let result = (fault.run)(&bench, dir.path(), &mut checks);
        let good = result.is_ok() && checks.mismatches.is_empty();
        let verdict = if good { "ok" } else { "FAIL" };
        let told = result.as_ref().map_or("did not run to its end", |seen| &seen.told);
        let seconds = begun.elapsed().as_secs_f64();
        println!(
            "{:<20} {seconds:>5.1}s {:>4} {verdict:<4} {told}",
            fault.name, checks.made
        );
        for mismatch in &checks.mismatches {
            println!("    {mismatch}");
        }
        match &result {
            Ok(seen) => messages += seen.messages,
            Err(error) => println!("    {error:#}"),
        }
        failed += u32::from(!good);
        made += checks.made;
        writeln!(rows, "| {} | {} | {told} |", fault.name, fault.what)?;
    }
    let summary = format!(
        "{messages} messages checked by hash, {made} comparisons, {:.0} s",
        started.elapsed().as_secs_f64()
    );
    println!("{summary}");
    if failed > 0 {
        bail!("{failed} faults did harm");
    }
    if options.write {
        let command = if options.long {
            "cargo xtask faults --long"
        } else {
            "cargo xtask faults"
        };
        document::write(
            &bench.home.root,
            "internals/FAULTS.md",
            "Faults",
            &format!("`{command}`: {summary}.\n\n{rows}"),
        )?;
    }
    Ok(())
}

impl Bench {
    /// Returns the report of a recording.
    fn report(&self, recording: &Path) -> Result<Value> {
        let mut command = Command::new(&self.tokengap);
        let output = command.arg("replay").arg(recording).arg("--json").output()?;
        ensure!(
            output.status.success(),
            "replay ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// The release program: given, or built from this workspace.
pub(crate) fn released(home: &Home, given: Option<&Path>) -> Result<PathBuf> {
    match given {
        Some(program) => std::fs::canonicalize(program).with_context(|| format!("looking for {}", program.display())),
        None => built(home, false),
    }
}

/// Builds the program from this workspace. The fault-injection build is unoptimised to save time, and uses its own folder so that it is not
/// mistaken for the other.
fn built(home: &Home, faulty: bool) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(&home.root);
    build.args(["build", "--quiet", "--package", "tui", "--bin", "tokengap"]);
    build.args(if faulty {
        ["--features", "tui/fault-injection"].as_slice()
    } else {
        ["--release"].as_slice()
    });
    ensure!(
        build.status().context("starting cargo")?.success(),
        "tokengap does not build"
    );
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| home.root.join("target"), PathBuf::from);
    if !faulty {
        return Ok(target.join("release/tokengap"));
    }
    let kept = target.join("faults");
    std::fs::create_dir_all(&kept)?;
    let (program, kept) = (target.join("debug/tokengap"), kept.join("tokengap"));
    std::fs::rename(&program, &kept).with_context(|| format!("moving {}", program.display()))?;
    Ok(kept)
}
