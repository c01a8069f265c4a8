//! Waits of responses in a frontend.

use serde::{Deserialize, Serialize};
use trace::ledger::Ledger;
use trace::stats::Spread;
use trace::words::{duration, plural};

use super::Report;
use super::brief::{NO_NAME, write_named_row};
use super::hostile::escape_and_cut_line as escape_line;

/// Waits of responses in a frontend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrontendCounts {
    /// Number of responses with a wait.
    pub responses: u64,
    /// From the server's write of a first token to the frontend's; `null` if none is known.
    pub first_token_ns: Option<Spread>,
    /// From the server's write of a last token to the frontend's; `null` if none is known.
    pub last_token_ns: Option<Spread>,
    /// Request with the longest wait.
    pub worst_rid: String,
}

/// Summary of the times that responses spent in a frontend, the server in front of the engine's. `None` without any.
pub(super) fn summarise_frontend_waits(ledger: &Ledger) -> Option<FrontendCounts> {
    let waits = ledger.frontend();
    if waits.responses == 0 {
        return None;
    }
    Some(FrontendCounts {
        responses: waits.responses,
        first_token_ns: Spread::of_distribution(&waits.first_token),
        last_token_ns: Spread::of_distribution(&waits.last_token),
        worst_rid: waits.worst.rid.to_string(),
    })
}

impl FrontendCounts {
    /// One sentence for each kind of token, first and last, whose waits are known.
    pub(super) fn describe_frontend_waits(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (which, waits) in [("first", self.first_token_ns), ("last", self.last_token_ns)] {
            let Some(Spread { count, p50, p90, p99, max }) = waits else { continue };
            let [p50, p90, p99, max] = [p50, p90, p99, max].map(duration);
            let responses = plural(count, "response");
            lines.push(format!("{which} tokens wait: median {p50}, p90 {p90}, p99 {p99}, max {max} over {responses}"));
        }
        lines
    }
}

/// Writes how long tokens waited in a frontend, the server in front of the engine's. Writes nothing if no wait is known.
pub(super) fn write_frontend_rows(out: &mut String, report: &Report) {
    let Some(waits) = &report.frontend else { return };
    for (index, line) in waits.describe_frontend_waits().iter().enumerate() {
        let name = if index == 0 { "frontend" } else { NO_NAME };
        write_named_row(out, name, line);
    }
    write_named_row(out, NO_NAME, &format!("worst: {}", escape_line(&waits.worst_rid)));
}
