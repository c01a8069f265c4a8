//! `tokengap doctor`: tests what this machine permits, and prints the command that grants the rest.

mod facts;
mod rows;
mod trial;

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::bail;
use outputs::report::hostile::line as printable_line;
use probe_user::RunEnvironment;
use probe_user::discover::{Engine, PickError, RoleSpec, Watcher};
use serde::Serialize;
use sources::attach::{EngineTraits, FeatureRow, FeatureState, Reason};

use crate::cmd::attach::{choose_engines, find_processes, role_spec};
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
    /// A process of the engine, and its role if its title does not show it. Repeatable. Default: the engines running
    /// on this machine.
    #[arg(long, value_name = "PID[=ROLE]", value_parser = role_spec)]
    pid: Vec<RoleSpec>,

    /// Attach to the engine briefly; with several, --pid chooses one. Without it, memory access is judged by capabilities.
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
    /// Engines that were found.
    engines: Vec<EngineLine>,
    /// Tested processes of the engines; `null` without an engine.
    pids: Option<Vec<u32>>,
    features: Vec<FeatureRow>,
    facts: Vec<Fact>,
}

/// One of the engines of the machine.
#[derive(Debug, Serialize)]
struct EngineLine {
    name: String,
    /// `null` if unknown.
    port: Option<u16>,
    model: Option<String>,
    release: Option<String>,
    main_pid: Option<u32>,
    processes: usize,
}

impl EngineLine {
    /// The line of a found engine.
    fn of_engine(engine: &Engine) -> Self {
        let EngineTraits { name, port, model, .. } = EngineTraits::read(engine);
        Self {
            name,
            port,
            model,
            release: engine.release().map(|release| release.value.clone()),
            main_pid: engine.main_process().map(|process| process.id.pid),
            processes: engine.processes.len(),
        }
    }

    /// The line in words.
    fn to_text(&self) -> String {
        const UNKNOWN: &str = "unknown";
        format!(
            "{}: release {}, model {}, {} processes, main pid {}",
            self.name,
            self.release.as_deref().unwrap_or(UNKNOWN),
            self.model.as_deref().unwrap_or(UNKNOWN),
            self.processes,
            self.main_pid.map_or_else(|| UNKNOWN.to_owned(), |pid| pid.to_string())
        )
    }
}

/// `tokengap doctor`: prints which features work here. Exit code 1 if one does not.
pub(crate) fn run_doctor(args: &Args) -> anyhow::Result<ExitCode> {
    let watcher = find_processes(&args.pid)?;
    let topology = watcher.topology();
    let engines = match topology.pick_engines(&args.pid) {
        // Without an engine, the machine is diagnosed.
        Err(PickError::None(_) | PickError::Unconfirmed(_)) => Vec::new(),
        // Any other error is that of `attach`.
        _ => choose_engines(topology, &args.pid)?,
    };
    if args.attach && engines.len() > 1 {
        err!("{topology}");
        bail!("--try attaches to one engine: {}", PickError::Several(engines.len()));
    }
    let diagnosis = diagnose(watcher, &engines, args.attach);
    let text = if args.json { serde_json::to_string_pretty(&diagnosis)? + "\n" } else { diagnosis_text(&diagnosis) };
    output::print_result(&text, app::escape_form(args.json))?;
    let all_work = diagnosis.features.iter().all(|row| row.state == FeatureState::Works);
    Ok(ExitCode::from(u8::from(!all_work)))
}

/// Pids of the engine's processes, the lowest first.
fn sorted_pids(engine: &Engine) -> Vec<u32> {
    let mut pids: Vec<u32> = engine.processes.iter().map(|process| process.id.pid).collect();
    pids.sort_unstable();
    pids
}

/// Tests each feature. If `tries_attach`, the tests attach to the engine for a moment; otherwise they use only this process.
fn diagnose(watcher: Watcher, engines: &[Engine], tries_attach: bool) -> Diagnosis {
    let mut facts = facts::machine_facts();
    // The facts of many processes would hide those of the machine.
    if let [engine] = engines {
        facts.extend(facts::engine_facts(engine));
    }
    // From here on, all engines are tested like one: a permission that one of them lacks shows in the same row.
    let engine = merge_engines(engines);
    facts.extend(facts::candidate_fact(watcher.topology()));
    let mut features = vec![rows::engine_row(!engines.is_empty(), watcher.topology())];
    let mut pids = None;
    if let Some(engine) = &engine {
        pids = Some(sorted_pids(engine));
        features.push(rows::thread_times_row(engine));
    }
    features.extend(probe_rows(watcher, engine, tries_attach));
    features.extend([rows::tap_row(), rows::recording_row()]);
    let engines = engines.iter().map(EngineLine::of_engine).collect();
    Diagnosis {
        schema: "tokengap.doctor/1",
        engines,
        place: RunEnvironment::current().identifier(),
        pids,
        features,
        facts,
    }
}

/// Rows of the features that need probes. If `tries_attach` and there is an engine, the tests attach to it; otherwise they use only this
/// process.
fn probe_rows(watcher: Watcher, engine: Option<Engine>, tries_attach: bool) -> Vec<FeatureRow> {
    match engine {
        Some(engine) if tries_attach => {
            let mut tested = trial::try_features_on_engine(watcher, engine.clone());
            tested.push(rows::splice_row(&engine));
            tested
        }
        _ => trial::try_features_on_tokengap(),
    }
}

/// The engines as one, for tests of access to their processes; `None` without any.
fn merge_engines(engines: &[Engine]) -> Option<Engine> {
    let mut all = engines.first()?.clone();
    all.processes.extend(engines.iter().skip(1).flat_map(|engine| &engine.processes).cloned());
    Some(all)
}

const NAME_WIDTH: usize = 14;
const STATE_WIDTH: usize = 9;

/// Table of features, then each reason once with its fix, then the facts.
fn diagnosis_text(diagnosis: &Diagnosis) -> String {
    let mut out = format!("tokengap {} {}", env!("CARGO_PKG_VERSION"), RunEnvironment::current().phrase());
    write_engines_after_headline(&mut out, diagnosis);
    // Writing to a string cannot fail.
    for row in &diagnosis.features {
        let _ =
            writeln!(out, "{:NAME_WIDTH$} {:STATE_WIDTH$} {}", row.name, row.state.word(), printable_line(&row.tried));
    }
    write_reasons_with_fixes(&mut out, &diagnosis.features);
    out.push('\n');
    let widest = diagnosis.facts.iter().map(|fact| fact.name.len()).max().unwrap_or(0);
    for fact in &diagnosis.facts {
        let value = printable_line(fact.value.as_deref().unwrap_or("not known"));
        let _ = writeln!(out, "{:widest$}  {value}", printable_line(&fact.name));
    }
    out
}

/// Completes the first line with the engines, and adds a blank line. Several engines follow as a list.
fn write_engines_after_headline(out: &mut String, diagnosis: &Diagnosis) {
    let Some(pids) = &diagnosis.pids else {
        out.push_str(", without an engine\n\n");
        return;
    };
    // Writing to a string cannot fail.
    if diagnosis.engines.len() <= 1 {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let _ = writeln!(out, ", engine of pids {}\n", pids.join(", "));
        return;
    }
    let _ = writeln!(out, ", {} engines; --pid shows the processes of one\n", diagnosis.engines.len());
    for engine in &diagnosis.engines {
        let _ = writeln!(out, "{}", printable_line(&engine.to_text()));
    }
    out.push('\n');
}

/// Writes each reason once, with its fix, under the first feature that it limits.
fn write_reasons_with_fixes(out: &mut String, features: &[FeatureRow]) {
    // Several features often lack the same thing, such as a capability.
    let mut printed: Vec<&Reason> = Vec::new();
    for row in features.iter().filter(|row| row.state != FeatureState::Works) {
        for reason in &row.reasons {
            if printed.contains(&reason) {
                continue;
            }
            if printed.is_empty() {
                out.push('\n');
            }
            printed.push(reason);
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{}: {}", row.name, printable_line(&reason.why));
            if let Some(fix) = &reason.fix {
                let _ = writeln!(out, "    {}", printable_line(fix));
            }
        }
    }
}
