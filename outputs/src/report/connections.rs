//! New connections of clients in the report.

use serde::{Deserialize, Serialize};
use trace::detect::thresholds::LATE_NS;
use trace::ledger::Ledger;
use trace::stats::Spread;
use trace::words::{count, duration, plural};

/// Connections that clients opened during the capture, each known by its first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewConnectionsReport {
    /// Number of them.
    pub opened: u64,
    /// Time from the end of the handshake until the server had accepted it; `null` if no accept was observed.
    pub accept_wait_ns: Option<Spread>,
    /// Those that waited 250 ms or longer; `null` likewise.
    pub accepted_late: Option<u64>,
}

impl NewConnectionsReport {
    /// Number of connections opened so far, and how long they waited to be accepted; `None` if none was observed to open.
    pub fn of_ledger(ledger: &Ledger) -> Option<Self> {
        let connections = ledger.new_connections();
        let waits = &connections.accept_waits;
        (connections.opened > 0).then(|| Self {
            opened: connections.opened,
            accept_wait_ns: Spread::of_distribution(waits),
            accepted_late: (waits.count() > 0).then(|| waits.count_above(LATE_NS)),
        })
    }

    /// Describes the waits for an accept; `None` if none was long.
    pub(super) fn describe_late_accepts(&self) -> Option<String> {
        let late = self.accepted_late.filter(|late| *late > 0)?;
        let Spread { p50, p99, max, .. } = self.accept_wait_ns?;
        let [p50, p99, max] = [p50, p99, max].map(duration);
        let late_of_all = format!("{} of {}", count(late), plural(self.opened, "new connection"));
        let waited = format!("waited {} or longer to be accepted", duration(LATE_NS));
        Some(format!("{late_of_all} {waited} (median {p50}, p99 {p99}, max {max})"))
    }
}
