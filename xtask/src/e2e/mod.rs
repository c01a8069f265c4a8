//! `cargo xtask e2e`: the real engine's output path through `tokengap tap` and under `tokengap attach`, and what the report
//! says against what the engine's own processes say. Every count must be equal and every byte must arrive; one difference fails the run.

mod accidents;
pub(crate) mod attach;
pub(crate) mod check;
mod dynamo;
mod moved;
mod narrow;
pub(crate) mod plain_relay;
pub(crate) mod plan;
pub(crate) mod process;
pub(crate) mod record;
mod scenario;
mod served;
pub(crate) mod session;
pub(crate) mod setup;
pub(crate) mod tap;
pub(crate) mod truth;
mod verdicts;
mod workers;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use self::accidents::{killed, stranger};
use self::check::{Checks, exact};
use self::plan::Engine;
use self::scenario::{RELEASES, SCENARIOS, engines};
use self::session::{Outcome, Session, Setting};
use self::setup::Home;
use self::tap::{Relay, Transport};

/// Options of `cargo xtask e2e`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Run with these releases instead of the usual ones.
    #[arg(long = "release", value_name = "RELEASE")]
    releases: Vec<String>,
    /// One scenario a release, and no accidents.
    #[arg(long)]
    quick: bool,
    /// Run only scenarios whose name contains this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// The tokengap program; built from this workspace when not given.
    #[arg(long, value_name = "FILE")]
    tokengap: Option<PathBuf>,
    /// Relay with a plain copy instead: tries the engine and this driver, not tokengap.
    #[arg(long, conflicts_with = "tokengap")]
    plain: bool,
    /// Let the tools that traces are for read what is exported of the engine's recordings: `cargo xtask validate`.
    #[arg(long)]
    readers: bool,
    /// Keep the engine's recordings in this folder.
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
}

/// Options of `cargo xtask engine`.
#[derive(clap::Args, Debug)]
pub(crate) struct EngineOptions {
    /// Releases to unpack, such as 0.5.9; without any, those that `e2e` runs with.
    releases: Vec<String>,
    /// A Dynamo release to unpack, such as 1.0.0; repeatable.
    #[arg(long, value_name = "RELEASE")]
    dynamo: Vec<String>,
}

/// `cargo xtask engine`: prepares the harness for use by hand or by other tests.
pub(crate) fn prepare(options: &EngineOptions) -> Result<()> {
    let wanted: Vec<&str> = options.releases.iter().map(String::as_str).collect();
    let home = Home::find();
    home.prepare(if wanted.is_empty() { &RELEASES } else { &wanted })?;
    if !options.dynamo.is_empty() {
        dynamo::prepare(&home, &options.dynamo)?;
    }
    println!(
        "{} -m engine RELEASE ...  (see engine/README.md)",
        home.python.display()
    );
    Ok(())
}

/// `cargo xtask e2e`.
pub(crate) fn run(options: &Options) -> Result<()> {
    let home = Home::find();
    let engines = engines(&options.releases);
    home.prepare(&engines.iter().map(|engine| engine.release.as_str()).collect::<Vec<_>>())?;
    let relay = if options.plain {
        Relay::Plain
    } else {
        Relay::Tokengap(tokengap(&home, options)?)
    };
    let mut table = Table::default();
    Table::head();
    table.group("tap");
    for engine in &engines {
        let wanted = if options.quick { 1 } else { SCENARIOS.len() };
        for (name, change) in &SCENARIOS[..wanted] {
            let mut setting = Setting::new(engine);
            change(&mut setting);
            table.row(options, engine, name, |checks, dir| {
                let mut session = Session::start(&home, &setting, &relay, dir)?;
                session.go()?;
                let outcome = session.finish()?;
                exact(&outcome, checks);
                Ok(summary(&outcome))
            });
        }
    }
    if !options.quick {
        let engine = engines.last().context("no release to run with")?;
        for (name, transport) in [("stranger ipc", Transport::Ipc), ("stranger tcp", Transport::Tcp)] {
            table.row(options, engine, name, |checks, dir| {
                Ok(summary(&stranger(&home, engine, transport, &relay, dir, checks)?))
            });
        }
        for (name, transport) in [("killed ipc", Transport::Ipc), ("killed tcp", Transport::Tcp)] {
            table.row(options, engine, name, |checks, dir| {
                let tolls: Vec<_> = [&relay, &Relay::Plain]
                    .iter()
                    .enumerate()
                    .map(|(number, relay)| {
                        let dir = dir.join(number.to_string());
                        std::fs::create_dir(&dir)?;
                        killed(&home, engine, transport, relay, &dir, checks)
                    })
                    .collect::<Result<_>>()?;
                let [ours, plain] = &tolls[..] else {
                    bail!("two relays were tried")
                };
                Ok(format!(
                    "lost {} of {}; with a plain relay {} of {}",
                    ours.lost, ours.sent, plain.lost, plain.sent
                ))
            });
        }
    }
    table.group("workers");
    workers::rows(&mut table, options, &home, &relay, &engines);
    if let Relay::Tokengap(program) = &relay {
        table.group("attach");
        attach::rows(&mut table, options, &home, program, &engines);
        table.group("dynamo");
        dynamo::rows(&mut table, options, &home, program);
        if !options.quick {
            table.group("served");
            served::rows(&mut table, options, &home, program, &engines);
        }
        table.group("narrow");
        narrow::rows(&mut table, options, &home, program, &engines);
        table.group("record");
        record::rows(&mut table, options, &home, program, &engines);
        table.group("moved");
        moved::rows(&mut table, options, &home, program, &engines);
        table.group("verdicts");
        verdicts::rows(&mut table, options, &home, program, &engines);
    }
    table.end()
}

/// The program under test: given, or built from this workspace.
fn tokengap(home: &Home, options: &Options) -> Result<PathBuf> {
    if let Some(program) = &options.tokengap {
        return std::fs::canonicalize(program).with_context(|| format!("looking for {}", program.display()));
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build
        .current_dir(&home.root)
        .args(["build", "--quiet", "--release", "--package", "tui", "--bin", "tokengap"]);
    ensure!(
        build.status().context("starting cargo")?.success(),
        "tokengap does not build"
    );
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| home.root.join("target"), PathBuf::from);
    Ok(target.join("release/tokengap"))
}

/// What happened, in the engine's own words.
fn summary(outcome: &Outcome) -> String {
    let output: truth::Counts = outcome.senders.iter().map(|sender| sender.totals.output).sum();
    let client = outcome.receiver.totals.given;
    let lost = match client.clients_without_ids {
        0 => format!("lost {} of {} tokens", client.lost, client.completion_tokens),
        _ => "and no ids to tell loss by".into(),
    };
    format!(
        "{} frames, {} chunks, {} tokens; {} clients got {} outputs, {lost}",
        outcome.receiver.totals.frames, output.chunks, output.tokens, client.finished, client.outputs
    )
}

/// The table of results, printed as it grows.
#[derive(Default)]
struct Table {
    failed: u32,
    passed: u32,
    skipped: u32,
    comparisons: u32,
    /// How well drops were predicted, a run each.
    scores: Vec<String>,
    /// The rows that run now belong to the last of these; how long each took.
    groups: Vec<(&'static str, Duration)>,
}

impl Table {
    fn head() {
        println!(
            "{:<16} {:<25} {:>6}  {:<6} what the engine says",
            "release", "scenario", "time", "checks"
        );
    }

    /// What runs from here on is told as one sum in the end.
    fn group(&mut self, name: &'static str) {
        self.groups.push((name, Duration::ZERO));
    }

    /// Runs one scenario in a folder of its own and prints its row, and below it what differs.
    fn row(
        &mut self,
        options: &Options,
        engine: &Engine,
        name: &str,
        scenario: impl FnOnce(&mut Checks, &std::path::Path) -> Result<String>,
    ) {
        let full = format!("{} {name}", engine.name());
        if options.only.as_ref().is_some_and(|text| !full.contains(text.as_str())) {
            return;
        }
        let started = Instant::now();
        let mut checks = Checks::default();
        let result = tempfile::tempdir()
            .context("making a folder")
            .and_then(|dir| scenario(&mut checks, dir.path()));
        let good = result.is_ok() && checks.mismatches.is_empty();
        let verdict = format!("{}{}", checks.made, if good { " ok" } else { " FAIL" });
        let told = result.as_ref().map_or("did not run to its end", String::as_str);
        let took = started.elapsed();
        if let Some((_, sum)) = self.groups.last_mut() {
            *sum += took;
        }
        let seconds = took.as_secs_f64();
        println!("{:<16} {name:<25} {seconds:>5.1}s  {verdict:<6} {told}", engine.name());
        for mismatch in &checks.mismatches {
            println!("    {mismatch}");
        }
        if let Err(error) = &result {
            println!("    {error:#}");
        }
        self.comparisons += checks.made;
        *(if good { &mut self.passed } else { &mut self.failed }) += 1;
    }

    /// Whether a scenario is among those asked for.
    fn wants(options: &Options, engine: &Engine, name: &str) -> bool {
        let full = format!("{} {name}", engine.name());
        options.only.as_ref().is_none_or(|text| full.contains(text.as_str()))
    }

    /// Says that a scenario cannot run here.
    fn skip(&mut self, options: &Options, engine: &Engine, name: &str, why: &str) {
        let full = format!("{} {name}", engine.name());
        if options.only.as_ref().is_some_and(|text| !full.contains(text.as_str())) {
            return;
        }
        println!("{:<16} {name:<25} SKIPPED: {why}", engine.name());
        self.skipped += 1;
    }

    fn end(&self) -> Result<()> {
        if !self.scores.is_empty() {
            println!("\nPredicted drops against what clients miss:");
            println!(
                "| release | consumer | tokens lost | predicted | precision, requests | recall | precision, tokens | recall | right places |"
            );
            println!("|---|---|--:|--:|--:|--:|--:|--:|--:|");
            self.scores.iter().for_each(|line| println!("{line}"));
            println!();
        }
        let sums = self.groups.iter().filter(|(_, sum)| !sum.is_zero());
        let sums: Vec<_> = sums
            .map(|(name, sum)| format!("{name} {:.0} s", sum.as_secs_f64()))
            .collect();
        println!("time: {}", sums.join(", "));
        println!(
            "{} scenarios passed, {} failed, {} SKIPPED; {} comparisons",
            self.passed, self.failed, self.skipped, self.comparisons
        );
        ensure!(
            self.passed + self.failed + self.skipped > 0,
            "no scenario has that name"
        );
        ensure!(self.failed == 0, "the report and the engine differ");
        Ok(())
    }
}
