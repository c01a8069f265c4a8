//! `cargo xtask faults`: injects faults around tokengap between real peers that keep their own counts. docs/internals/FAULTS.md has the
//! results. Faults of the relay are in `testbed/e2e/faults.py`; those of the probe are here, because they call it as a library.

pub(crate) mod kernel;
mod peers;
mod probe;

use std::fmt::{Debug, Write as _};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use probe_user::{Capability, Permissions};
use serde::Deserialize;

use crate::e2e::setup::{harness_module_command, prepare_sglang};
use crate::script::{build_tokengap_with_faults, given_or_built_program, replace_document_part};

/// Options of `cargo xtask faults`.
#[derive(clap::Args, Debug)]
pub(crate) struct FaultOptions {
    /// Run overnight loads: millions of messages, a minute of freezing, 500 attaches.
    #[arg(long)]
    long: bool,
    /// Run only faults whose name contains this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// The tokengap program [default: built from this workspace]. Internal faults always use a special build.
    #[arg(long, value_name = "FILE")]
    tokengap: Option<PathBuf>,
    /// Write the results to docs/internals/FAULTS.md.
    #[arg(long, conflicts_with = "only")]
    write: bool,
}

/// Comparisons of expected values with the observed ones, and what else the table shows of a fault.
#[derive(Debug, Default, Deserialize)]
struct FaultChecks {
    /// Number of comparisons, and those that failed or the error that ended the row.
    made: u32,
    failed: Vec<String>,
    /// Number of messages whose arrival was checked.
    messages: u64,
    outcome: String,
}

impl FaultChecks {
    /// Compares an observed value with the expected one, and notes a difference as a failure.
    fn expect_equal<T: PartialEq + Debug>(&mut self, what: &str, expected: &T, got: &T) {
        self.made += 1;
        if expected != got {
            self.failed.push(format!("{what}: expected {expected:?}, got {got:?}"));
        }
    }

    /// Notes a failure unless the statement is true.
    fn expect_true(&mut self, statement: &str, is_true: bool) {
        self.expect_equal(statement, &true, &is_true);
    }
}

/// Conditions of one fault of the probe.
struct FaultSetup {
    /// Whether an overnight load was requested.
    is_long: bool,
    /// Endpoint of its peers.
    endpoint: String,
}

/// A finished row of the table.
#[derive(Deserialize)]
struct FaultRow {
    name: String,
    what: String,
    seconds: f64,
    #[serde(flatten)]
    checks: FaultChecks,
}

/// The table, printed as rows finish.
#[derive(Default)]
struct FaultTable {
    rows: String,
    failed: u32,
    made: u32,
    messages: u64,
}

/// `cargo xtask faults`: injects the faults, prints their rows, and writes the table if asked to. Fails if one affected traffic or results.
pub(crate) fn inject_faults(options: &FaultOptions) -> Result<()> {
    prepare_sglang(&[])?;
    let started = Instant::now();
    let mut table = FaultTable::default();
    run_relay_faults(options, &mut table)?;
    run_probe_faults(options, &mut table)?;
    ensure!(!table.rows.is_empty(), "no fault has that name");
    let summary = format!(
        "{} messages checked by hash, {} comparisons, {:.0} s",
        table.messages,
        table.made,
        started.elapsed().as_secs_f64()
    );
    println!("{summary}");
    ensure!(table.failed == 0, "{} faults affected traffic or results", table.failed);
    if options.write {
        let long_flag = if options.long { " --long" } else { "" };
        let text = format!(
            "`cargo xtask faults{long_flag}`: {summary}.\n\n| fault | done | result |\n|---|---|---|\n{}",
            table.rows
        );
        replace_document_part("internals/FAULTS.md", "Faults", &text)?;
    }
    Ok(())
}

/// Runs the faults of the relay and its environment, which are a script that prints a finished row in each line.
fn run_relay_faults(options: &FaultOptions, table: &mut FaultTable) -> Result<()> {
    let mut command = harness_module_command("testbed.e2e.faults");
    command.arg("--faulty").arg(build_tokengap_with_faults()?);
    command.arg("--tokengap").arg(given_or_built_program(options.tokengap.as_deref())?);
    command.arg("--xtask").arg(std::env::current_exe()?);
    command.args(options.long.then_some("--long"));
    command.args(options.only.iter().flat_map(|text| ["--only", text]));
    let mut faults = command.stdout(Stdio::piped()).spawn().context("starting testbed.e2e.faults")?;
    for line in BufReader::new(faults.stdout.take().context("no standard output")?).lines() {
        let row: FaultRow = serde_json::from_str(&line?)?;
        table.add_row(&row);
    }
    ensure!(faults.wait()?.success(), "testbed.e2e.faults did not complete");
    Ok(())
}

/// Runs the faults of the probe, each with its own pair of peers. Skips them without the rights to attach a probe.
fn run_probe_faults(options: &FaultOptions, table: &mut FaultTable) -> Result<()> {
    let here = Permissions::current();
    if !here.has(Capability::SysAdmin) || !here.has(Capability::SysPtrace) {
        println!(
            "SKIPPED: {} faults of the probe: needs root, or CAP_SYS_ADMIN and CAP_SYS_PTRACE",
            probe::FAULTS.len()
        );
        return Ok(());
    }
    let only = options.only.as_deref().unwrap_or_default();
    for fault in probe::FAULTS.iter().filter(|fault| fault.name.contains(only)) {
        let started = Instant::now();
        let mut checks = FaultChecks::default();
        let dir = tempfile::tempdir().context("making a folder")?;
        let endpoint = format!("ipc://{}", dir.path().join("hop").display());
        let setup = FaultSetup { is_long: options.long, endpoint };
        if let Err(error) = (fault.inject)(&setup, &mut checks) {
            checks.failed.push(format!("{error:#}"));
            checks.outcome = "did not complete".into();
        }
        let seconds = started.elapsed().as_secs_f64();
        table.add_row(&FaultRow { name: fault.name.into(), what: fault.what.into(), seconds, checks });
    }
    Ok(())
}

impl FaultTable {
    /// Prints a finished row, and adds it to the table and its sums.
    fn add_row(&mut self, row: &FaultRow) {
        let FaultRow { name, what, seconds, checks } = row;
        // `made` is the number of comparisons, and `failed` describes those that failed.
        let FaultChecks { made, failed, messages, outcome } = checks;
        let verdict = if failed.is_empty() { "ok" } else { "FAIL" };
        println!("{name:<20} {seconds:>5.1}s {made:>4} {verdict:<4} {outcome}");
        for line in failed {
            println!("    {line}");
        }
        // A row of the table in the documentation. Writing to a string cannot fail.
        let _ = writeln!(self.rows, "| {name} | {what} | {outcome} |");
        self.failed += u32::from(!failed.is_empty());
        self.made += made;
        self.messages += messages;
    }
}
