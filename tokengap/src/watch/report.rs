//! Final output: the report of one run, or of several.

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;
use trace::report::Report;

use super::Watched;
use crate::app;
use crate::args::OutcomeArgs;

/// Schema name of several reports in one document.
const SCHEMA: &str = "tokengap.watch/1";

#[derive(Serialize)]
struct All<'a> {
    schema: &'static str,
    pods: Vec<One<'a>>,
}

#[derive(Serialize)]
struct One<'a> {
    pod: &'a str,
    endpoint: &'a str,
    /// State of the connection at the end.
    state: String,
    /// Missed records, and the number of gaps they form.
    records_missed: u64,
    gaps: u64,
    report: &'a Report,
}

/// Prints the reports and returns the exit code for `--fail-on` over all of them.
pub(crate) fn conclude(watched: &[Watched], outcome: OutcomeArgs) -> anyhow::Result<ExitCode> {
    if let [one] = watched {
        return app::conclude(&one.report, outcome);
    }
    let mut out = std::io::stdout().lock();
    if outcome.json {
        let pods = watched.iter().map(|one| One {
            pod: &one.name,
            endpoint: &one.address,
            state: one.link.to_lowercase(),
            records_missed: one.missed,
            gaps: one.gaps,
            report: &one.report,
        });
        let all = All {
            schema: SCHEMA,
            pods: pods.collect(),
        };
        serde_json::to_writer(&mut out, &all).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        for one in watched {
            writeln!(out, "=== {} ({}): {}\n", one.name, one.address, one.link.to_lowercase())?;
            write!(out, "{}", one.report.to_text())?;
            writeln!(out)?;
        }
    }
    out.flush()?;
    let worst = watched.iter().filter_map(|one| one.report.worst()).max();
    let failed = outcome.fail_on.is_some_and(|min| worst >= Some(min));
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}
