//! `cargo xtask e2e`: the real engine's output path through `tokengap tap` and under `tokengap attach`, with the report checked against the
//! engine's own processes. Every count must be equal and every byte must arrive; one difference at two attempts fails the run.

mod accidents;
pub(crate) mod attach;
mod beside;
pub(crate) mod check;
mod dynamo;
mod moved;
mod narrow;
pub(crate) mod plain_relay;
pub(crate) mod plan;
pub(crate) mod process;
mod real;
pub(crate) mod record;
mod scenario;
mod served;
pub(crate) mod session;
pub(crate) mod setup;
mod table;
pub(crate) mod tap;
pub(crate) mod truth;
mod verdicts;
mod workers;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use self::accidents::{killed, stranger};
use self::check::exact;
use self::plan::Engine;
use self::scenario::{RELEASES, SCENARIOS, engines};
use self::session::{Outcome, Session, Setting};
use self::setup::Home;
use self::table::{Needs, Pass, Table};
use self::tap::{Relay, Transport};

/// Options of `cargo xtask e2e`.
#[derive(clap::Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one switch a flag, each read by its name")]
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
    /// A real server with its model on the CPU, in place of the harness with stubs: installs 9 GB.
    #[arg(long, conflicts_with_all = ["plain", "quick", "readers", "releases"])]
    real: bool,
    /// Check the exports of the engine's recordings with the tools that read such traces: `cargo xtask validate`.
    #[arg(long)]
    readers: bool,
    /// Keep the engine's recordings in this folder.
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Scenarios that run at once, of those that need no more than a core; the others have the machine to themselves.
    #[arg(long, value_name = "N", default_value_t = std::thread::available_parallelism().map_or(1, usize::from))]
    jobs: usize,
    /// Run this row of the table and print it for the program that asked for it.
    #[arg(long, value_name = "NAME", hide = true)]
    row: Option<String>,
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

/// `cargo xtask engine`: prepares the harness for manual use or other tests.
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

/// Runs `cargo xtask e2e`.
pub(crate) fn run(options: &Options) -> Result<()> {
    let home = Home::find();
    if options.real {
        return real::run(&home, options);
    }
    let engines = engines(&options.releases);
    home.prepare(&engines.iter().map(|engine| engine.release.as_str()).collect::<Vec<_>>())?;
    let relay = if options.plain {
        Relay::Plain
    } else {
        Relay::Tokengap(tokengap(&home, options)?)
    };
    if let Some(name) = &options.row {
        let mut table = Table::new(Pass::One(name.clone(), None));
        rows(&mut table, options, &home, &relay, &engines)?;
        let row = table.one().with_context(|| format!("there is no {name}"))?;
        println!("{}", serde_json::to_string(&row)?);
        return Ok(());
    }
    Table::head();
    let mut table = Table::new(Pass::Rest(BTreeSet::new()));
    if options.jobs > 1 {
        let mut noted = Table::new(Pass::Note(Vec::new()));
        rows(&mut noted, options, &home, &relay, &engines)?;
        beside::run(&mut table, options, &relay, noted.noted());
    }
    rows(&mut table, options, &home, &relay, &engines)?;
    if table.repeat() {
        rows(&mut table, options, &home, &relay, &engines)?;
    }
    table.end()
}

/// Runs all rows of the table.
fn rows(table: &mut Table, options: &Options, home: &Home, relay: &Relay, engines: &[Engine]) -> Result<()> {
    table.group("tap", Needs::Core);
    for engine in engines {
        let wanted = if options.quick { 1 } else { SCENARIOS.len() };
        for (name, change) in &SCENARIOS[..wanted] {
            let mut setting = Setting::new(engine);
            change(&mut setting);
            table.row(options, engine, name, |checks, dir| {
                let mut session = Session::start(home, &setting, relay, dir)?;
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
                Ok(summary(&stranger(home, engine, transport, relay, dir, checks)?))
            });
        }
        table.needs(Needs::Machine);
        for (name, transport) in [("killed ipc", Transport::Ipc), ("killed tcp", Transport::Tcp)] {
            table.row(options, engine, name, |checks, dir| {
                let tolls: Vec<_> = [relay, &Relay::Plain]
                    .iter()
                    .enumerate()
                    .map(|(number, relay)| {
                        let dir = dir.join(number.to_string());
                        std::fs::create_dir(&dir)?;
                        killed(home, engine, transport, relay, &dir, checks)
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
    table.group("workers", Needs::Core);
    workers::rows(table, options, home, relay, engines);
    if let Relay::Tokengap(program) = relay {
        table.group("attach", Needs::Machine);
        attach::rows(table, options, home, program, engines);
        table.group("dynamo", Needs::Core);
        dynamo::rows(table, options, home, program);
        if !options.quick {
            table.group("served", Needs::Core);
            served::rows(table, options, home, program, engines);
        }
        table.group("narrow", Needs::Machine);
        narrow::rows(table, options, home, program, engines);
        table.group("record", Needs::Machine);
        record::rows(table, options, home, program, engines);
        table.group("moved", Needs::Machine);
        moved::rows(table, options, home, program, engines);
        table.group("verdicts", Needs::Machine);
        verdicts::rows(table, options, home, program, engines);
    }
    Ok(())
}

/// Path of the program under test: given, or built from this workspace.
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

/// Summary of the engine's own counts.
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
