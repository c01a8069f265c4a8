//! Waits of responses in a frontend.

use serde::{Deserialize, Serialize};

use super::hostile::plain;
use super::wrap::row;
use super::{Report, Spread};
use crate::ledger::Ledger;
use crate::words::{duration, plural};

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

/// Summary of the ledger's waits. `None` without any.
pub(super) fn frontend(ledger: &Ledger) -> Option<FrontendCounts> {
    let waits = ledger.frontend();
    (waits.responses > 0).then(|| FrontendCounts {
        responses: waits.responses,
        first_token_ns: Spread::of(&waits.first_token),
        last_token_ns: Spread::of(&waits.last_token),
        worst_rid: waits.worst.rid.to_string(),
    })
}

impl FrontendCounts {
    /// One sentence for each kind of token.
    pub(super) fn lines(&self) -> Vec<String> {
        let kinds = [("first", self.first_token_ns), ("last", self.last_token_ns)];
        let known = kinds.into_iter().filter_map(|(which, waits)| Some((which, waits?)));
        known
            .map(|(which, waits)| {
                format!(
                    "{which} tokens wait: median {}, p90 {}, p99 {}, max {} over {}",
                    duration(waits.p50),
                    duration(waits.p90),
                    duration(waits.p99),
                    duration(waits.max),
                    plural(waits.count, "response"),
                )
            })
            .collect()
    }
}

pub(super) fn rows(out: &mut String, report: &Report) {
    let Some(waits) = &report.frontend else { return };
    for (n, line) in waits.lines().iter().enumerate() {
        row(out, if n == 0 { "frontend" } else { "" }, line);
    }
    row(out, "", &format!("worst: {}", plain(&waits.worst_rid)));
}
