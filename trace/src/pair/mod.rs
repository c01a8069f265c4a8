//! Requests of a prefill and a decode server, joined by the room that both know.
//!
//! The two analyses are separate: request ids of one request may differ, and equal ones may be of different attempts.

mod activity;
mod clock;
mod finding;
mod interval;
mod join;
mod moment;
mod request;
mod row;
#[cfg(test)]
mod tests;

pub use clock::{ClockUse, PairClocks};
pub use finding::PairFinding;
pub use join::{Pair, PairLegLengths, PrefillServer};
pub use moment::{PairLeg, PairMoment};
pub use row::PairRow;

use crate::ledger::Ledger;
use crate::words::names;

impl Pair<'_> {
    /// Problems of the pair, worst first.
    pub fn findings(&self) -> Vec<PairFinding> {
        finding::find_pair_problems(self)
    }
}

/// Side of a server in a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairSide {
    /// Computes the prompt and the first token.
    Prefill,
    /// Computes all later tokens, and sends all.
    Decode,
}

names! {
    PairSide { Prefill = "prefill", Decode = "decode" }
}

impl PairSide {
    /// The side with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|side| side.as_str() == name)
    }

    /// The side of a server by the messages that its scheduler sent to the other; `None` without any, or with those of both sides.
    pub fn of_messages(ledger: &Ledger) -> Option<Self> {
        let counts = ledger.pair_message_counts();
        let has_allocated = counts.allocated > 0;
        let has_transferred = counts.transferred + counts.failed > 0;
        match (has_allocated, has_transferred) {
            (true, false) => Some(Self::Decode),
            (false, true) => Some(Self::Prefill),
            _ => None,
        }
    }
}
