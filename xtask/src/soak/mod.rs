//! `cargo xtask soak`: all features at once for an hour. tokengap's resource use must not grow, its counts must add up, and replays of its
//! recordings must give the same report.

mod engine;
mod footprint;
mod load;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use self::load::Load;
use crate::document;
use crate::e2e::check::Checks;
use crate::e2e::setup::Home;
use crate::faults::released;

/// Number of resource samples over a run.
const LOOKS: u32 = 200;

/// Options of `cargo xtask soak`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// How long: 90s, 20m, 1h.
    #[arg(long = "for", value_name = "T", default_value = "1h", value_parser = duration)]
    time: Duration,
    /// The tokengap program; built from this workspace when not given.
    #[arg(long, value_name = "FILE")]
    tokengap: Option<PathBuf>,
    /// Write the results into docs/internals/RELIABILITY.md.
    #[arg(long)]
    write: bool,
}

fn duration(text: &str) -> Result<Duration> {
    let span: jiff::SignedDuration = text.parse().context("write it like 90s, 20m or 1h")?;
    Ok(Duration::try_from(span)?)
}

/// Runs `cargo xtask soak`.
pub(crate) fn run(options: &Options) -> Result<()> {
    let home = Home::find();
    home.prepare(&[engine::RELEASE])?;
    let program = released(&home, options.tokengap.as_deref())?;
    let dir = tempfile::tempdir().context("making a folder")?;
    let mut loads = load::start(&home, &program, options.time, dir.path())?;
    let (started, pause) = (Instant::now(), (options.time / LOOKS).max(Duration::from_millis(500)));
    println!("{} under load for {:?}", names(&loads), options.time);
    while started.elapsed() < options.time {
        thread::sleep(pause);
        for load in &mut loads {
            load.look(started.elapsed())?;
        }
    }
    let mut checks = Checks::default();
    let mut rows = String::from(
        "| load | carried | memory | a minute | files, threads, mappings, kernel maps | report |\n|---|---|---|---|---|---|\n",
    );
    for load in loads {
        let name = load.name;
        let footprint = load.footprint.judge(name, &mut checks)?;
        let told = load.end(&program, &mut checks)?;
        println!("{name}: {footprint}; {told}");
        writeln!(rows, "| {name} | {} | {footprint} | {} |", told.carried, told.report)?;
    }
    for mismatch in &checks.mismatches {
        println!("    {mismatch}");
    }
    println!(
        "{} comparisons in {:.0} s",
        checks.made,
        started.elapsed().as_secs_f64()
    );
    ensure!(checks.mismatches.is_empty(), "something grew, or does not add up");
    if options.write {
        let minutes = options.time.as_secs_f64() / 60.0;
        let text = format!(
            "`cargo xtask soak`, {minutes:.0} minutes, {} comparisons:\n\n{rows}",
            checks.made
        );
        document::write(&home.root, "internals/RELIABILITY.md", "Soak", &text)?;
    }
    Ok(())
}

fn names(loads: &[Load]) -> String {
    loads.iter().map(|load| load.name).collect::<Vec<_>>().join(", ")
}
