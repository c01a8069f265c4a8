//! `cargo xtask faults`: injects faults around tokengap between real peers that keep their own counts. docs/internals/FAULTS.md has the
//! results. Faults of the relay are in `engine/e2e/faults.py`; those of the probe are here, because they call it as a library.

mod peers;
mod probe;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use self::peers::Arrived;
use crate::document;
use crate::e2e::check::Checks;
use crate::e2e::kernel::refusal;
use crate::e2e::setup::{harness, prepare};
use crate::script::{root, tokengap, tokengap_with_faults};

/// Options of `cargo xtask faults`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
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

/// Result of one fault of the probe.
struct Seen {
    /// Number of messages whose arrival was checked.
    messages: u64,
    outcome: String,
}

impl Seen {
    fn of(arrived: &Arrived, outcome: String) -> Self {
        Self { messages: arrived.messages(), outcome }
    }
}

/// A finished row of the table.
#[derive(Deserialize)]
struct Row {
    name: String,
    what: String,
    seconds: f64,
    /// Number of comparisons, and those that failed or the error that ended the row.
    made: u32,
    failed: Vec<String>,
    messages: u64,
    outcome: String,
}

/// The table, printed as rows finish.
#[derive(Default)]
struct Table {
    rows: String,
    failed: u32,
    made: u32,
    messages: u64,
}

/// Runs `cargo xtask faults`.
pub(crate) fn run(options: &Options) -> Result<()> {
    prepare(&[])?;
    let started = Instant::now();
    let mut table = Table::default();
    relay(options, &mut table)?;
    probe(options, &mut table)?;
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
        let long = if options.long { " --long" } else { "" };
        let text = format!(
            "`cargo xtask faults{long}`: {summary}.\n\n| fault | done | result |\n|---|---|---|\n{}",
            table.rows
        );
        document::write(root(), "internals/FAULTS.md", "Faults", &text)?;
    }
    Ok(())
}

/// Faults of the relay and its environment.
fn relay(options: &Options, table: &mut Table) -> Result<()> {
    let mut command = harness("engine.e2e.faults");
    command.arg("--faulty").arg(tokengap_with_faults()?);
    command.arg("--tokengap").arg(tokengap(options.tokengap.as_deref())?);
    command.arg("--xtask").arg(std::env::current_exe()?);
    command.args(options.long.then_some("--long"));
    command.args(options.only.iter().flat_map(|text| ["--only", text]));
    let mut faults = command.stdout(Stdio::piped()).spawn().context("starting engine.e2e.faults")?;
    for line in BufReader::new(faults.stdout.take().context("no standard output")?).lines() {
        table.add(&serde_json::from_str(&line?)?);
    }
    ensure!(faults.wait()?.success(), "engine.e2e.faults did not complete");
    Ok(())
}

fn probe(options: &Options, table: &mut Table) -> Result<()> {
    if let Some(why) = refusal() {
        println!("SKIPPED: {} faults of the probe: {why}", probe::FAULTS.len());
        return Ok(());
    }
    let only = options.only.as_deref().unwrap_or_default();
    for fault in probe::FAULTS.iter().filter(|fault| fault.name.contains(only)) {
        let (started, mut checks) = (Instant::now(), Checks::default());
        let dir = tempfile::tempdir().context("making a folder")?;
        let seen = (fault.run)(options.long, dir.path(), &mut checks).unwrap_or_else(|error| {
            checks.mismatches.push(format!("{error:#}"));
            Seen { messages: 0, outcome: "did not complete".into() }
        });
        table.add(&Row {
            name: fault.name.into(),
            what: fault.what.into(),
            seconds: started.elapsed().as_secs_f64(),
            made: checks.made,
            failed: checks.mismatches,
            messages: seen.messages,
            outcome: seen.outcome,
        });
    }
    Ok(())
}

impl Table {
    fn add(&mut self, row: &Row) {
        let Row { name, what, outcome, .. } = row;
        let verdict = if row.failed.is_empty() { "ok" } else { "FAIL" };
        println!("{name:<20} {:>5.1}s {:>4} {verdict:<4} {outcome}", row.seconds, row.made);
        row.failed.iter().for_each(|line| println!("    {line}"));
        let _ = writeln!(self.rows, "| {name} | {what} | {outcome} |");
        self.failed += u32::from(!row.failed.is_empty());
        self.made += row.made;
        self.messages += row.messages;
    }
}
