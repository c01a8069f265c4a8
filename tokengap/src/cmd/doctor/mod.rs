//! `tokengap doctor`: tests what this machine permits, and prints the command that grants the rest.

mod facts;
mod rows;
mod trial;

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::bail;
use outputs::report::hostile::line;
use probe_user::RunEnvironment;
use probe_user::discover::{Engine, PickError, RoleSpec, Watcher};
use serde::Serialize;
use sources::attach::{Reason, Row, State};

use crate::cmd::attach::{choose_engines, processes, role_spec};
use crate::{app, output};
use facts::Fact;

/// Show which features work on this machine, and the command that enables each of the others.
///
/// Loads the probe with a uprobe on itself, and leaves the engine alone. With --try it attaches to the engine briefly, as `attach`
/// does, and checks the result. Nothing is recorded and nothing stays attached.
#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 everything works, 1 something is degraded or missing, 2 error.\n\n\
                  Examples:\n  tokengap doctor\n  tokengap doctor --try --pid 4711 --json")]
pub(crate) struct Args {
    /// A process of the engine, and its role if its title does not show it. Repeatable. Default: the engine running
    /// on this machine.
    #[arg(long, value_name = "PID[=ROLE]", value_parser = role_spec)]
    pid: Vec<RoleSpec>,

    /// Attach to the engine briefly. Without it, memory access is judged by capabilities.
    #[arg(long = "try")]
    attach: bool,

    /// Print JSON, schema tokengap.doctor/1.
    #[arg(long)]
    json: bool,
}

/// Result of all tests.
#[derive(Debug, Serialize)]
pub(crate) struct Diagnosis {
    schema: &'static str,
    /// Environment of this process, which determines the form of a fix.
    place: &'static str,
    /// Tested processes of the engine; `null` without an engine.
    pids: Option<Vec<u32>>,
    features: Vec<Row>,
    facts: Vec<Fact>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let watcher = processes(&args.pid)?;
    let topology = watcher.topology();
    let engine = match topology.pick_engine(&args.pid) {
        Err(PickError::None(_) | PickError::Unconfirmed(_)) => None,
        Err(error @ PickError::Several(_)) => {
            err!("{topology}");
            bail!(error);
        }
        _ => choose_engines(topology, &args.pid)?.pop(),
    };
    let diagnosis = diagnose(watcher, engine, args.attach);
    let text = if args.json { serde_json::to_string_pretty(&diagnosis)? + "\n" } else { diagnosis_text(&diagnosis) };
    output::write_result(None, &text, app::form(args.json), false)?;
    let all_work = diagnosis.features.iter().all(|row| row.state == State::Works);
    Ok(ExitCode::from(u8::from(!all_work)))
}

fn diagnose(watcher: Watcher, engine: Option<Engine>, attach: bool) -> Diagnosis {
    let mut facts = facts::machine_facts();
    facts.extend(engine.iter().flat_map(facts::engine_facts));
    facts.extend(facts::candidate_fact(watcher.topology()));
    let mut features = vec![rows::engine_row(engine.as_ref(), watcher.topology())];
    let pids = engine.as_ref().map(|engine| {
        let mut pids: Vec<u32> = engine.processes.iter().map(|process| process.id.pid).collect();
        pids.sort_unstable();
        pids
    });
    features.extend(engine.as_ref().map(rows::thread_times_row));
    match engine {
        Some(engine) if attach => {
            let seen = engine.clone();
            features.extend(trial::try_on_engine(watcher, engine));
            features.push(rows::splice_row(&seen));
        }
        _ => features.extend(trial::try_on_tokengap()),
    }
    features.extend([rows::tap_row(), rows::recording_row()]);
    Diagnosis { schema: "tokengap.doctor/1", place: RunEnvironment::current().identifier(), pids, features, facts }
}

const NAME_WIDTH: usize = 14;
const STATE_WIDTH: usize = 9;

/// Table of features, then each reason once with its fix, then the facts.
fn diagnosis_text(diagnosis: &Diagnosis) -> String {
    let mut out = format!("tokengap {} {}", env!("CARGO_PKG_VERSION"), RunEnvironment::current().phrase());
    match &diagnosis.pids {
        Some(pids) => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            let _ = writeln!(out, ", engine of pids {}\n", pids.join(", "));
        }
        None => out.push_str(", without an engine\n\n"),
    }
    for row in &diagnosis.features {
        let _ = writeln!(out, "{:NAME_WIDTH$} {:STATE_WIDTH$} {}", row.name, row.state.word(), line(&row.tried));
    }
    let mut printed: Vec<&Reason> = Vec::new();
    for row in diagnosis.features.iter().filter(|row| row.state != State::Works) {
        for reason in &row.reasons {
            if printed.contains(&reason) {
                continue;
            }
            if printed.is_empty() {
                out.push('\n');
            }
            printed.push(reason);
            let _ = writeln!(out, "{}: {}", row.name, line(&reason.why));
            if let Some(fix) = &reason.fix {
                let _ = writeln!(out, "    {}", line(fix));
            }
        }
    }
    out.push('\n');
    let widest = diagnosis.facts.iter().map(|fact| fact.name.len()).max().unwrap_or(0);
    for fact in &diagnosis.facts {
        let value = line(fact.value.as_deref().unwrap_or("not known"));
        let _ = writeln!(out, "{:widest$}  {value}", line(&fact.name));
    }
    out
}
