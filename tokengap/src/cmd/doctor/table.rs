//! Text form of the diagnosis.

use std::fmt::Write as _;

use probe_user::Place;

use super::Diagnosis;
use crate::attach::{Reason, State};

const NAME: usize = 14;
const STATE: usize = 9;

/// Table of features, then each reason once with its fix, then the facts.
pub(super) fn text(diagnosis: &Diagnosis) -> String {
    let mut out = format!("tokengap {} {}", env!("CARGO_PKG_VERSION"), Place::here().words());
    match &diagnosis.pids {
        Some(pids) => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            let _ = writeln!(out, ", engine of pids {}\n", pids.join(", "));
        }
        None => out.push_str(", without an engine\n\n"),
    }
    for row in &diagnosis.features {
        let _ = writeln!(out, "{:NAME$} {:STATE$} {}", row.name, row.state.word(), row.tried);
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
            let _ = writeln!(out, "{}: {}", row.name, reason.why);
            if let Some(fix) = &reason.fix {
                let _ = writeln!(out, "    {fix}");
            }
        }
    }
    out.push('\n');
    let widest = diagnosis.facts.iter().map(|fact| fact.name.len()).max().unwrap_or(0);
    for fact in &diagnosis.facts {
        let _ = writeln!(out, "{:widest$}  {}", fact.name, fact.value.as_deref().unwrap_or("not known"));
    }
    out
}
