//! Waits of responses in a frontend, between the engine's server and the clients.

use std::collections::VecDeque;

use super::limits::push_bounded;
use super::{CountedRids, GAP_WARNING_NS, Ledger, OccurrenceTimes, WorstGap};
use crate::clock::MonoNs;
use crate::event::FrontendWait;
use crate::stats::Distribution;

/// Maximum number of responses kept; the oldest is evicted first.
const MAX_RESPONSES: usize = 1_000;

/// Waits of all responses.
#[derive(Debug, Default)]
pub struct FrontendWaits {
    /// Number of responses with a wait.
    pub responses: u64,
    /// Waits of first tokens.
    pub first_token: Distribution,
    /// Waits of last tokens.
    pub last_token: Distribution,
    /// The longest wait.
    pub worst: WorstGap,
    /// Ends of waits that are worth a finding.
    pub(crate) late: OccurrenceTimes,
    /// Requests with such a wait.
    pub(crate) late_rids: CountedRids,
    latest: VecDeque<FrontendResponse>,
}

/// Waits of one response, as in [`FrontendWait`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendResponse {
    /// The engine's request id. If it is unknown, the frontend's.
    pub rid: Box<str>,
    /// Wait of the first token.
    pub first_token_ns: Option<u64>,
    /// Wait of the last token.
    pub last_token_ns: Option<u64>,
}

impl Ledger {
    /// Records how long a frontend held the tokens of a request back, unless that is a health check.
    pub(super) fn record_frontend_wait(&mut self, at: MonoNs, wait: &FrontendWait<'_>) {
        if wait.rid.is_empty() || self.engine.is_health_check(wait.rid) {
            return;
        }
        self.frontend.add_wait(at, wait);
    }

    /// Waits of responses in a frontend.
    pub fn frontend(&self) -> &FrontendWaits {
        &self.frontend
    }
}

impl FrontendWaits {
    /// Adds the waits of a response. One without any wait is not counted.
    fn add_wait(&mut self, at: MonoNs, wait: &FrontendWait<'_>) {
        let Some(longest_ns) = wait.longest_ns() else { return };
        self.responses += 1;
        if let Some(ns) = wait.first_token_ns {
            self.first_token.record(ns);
        }
        if let Some(ns) = wait.last_token_ns {
            self.last_token.record(ns);
        }
        self.worst.keep_longest(at, wait.rid, longest_ns);
        if longest_ns >= GAP_WARNING_NS {
            self.late.record(at);
            self.late_rids.add_rid(wait.rid);
        }
        let FrontendWait { rid, first_token_ns, last_token_ns } = *wait;
        push_bounded(
            &mut self.latest,
            FrontendResponse { rid: rid.into(), first_token_ns, last_token_ns },
            MAX_RESPONSES,
        );
    }

    /// Waits of the latest response with this id.
    pub fn find_response(&self, rid: &str) -> Option<&FrontendResponse> {
        self.latest.iter().rev().find(|response| &*response.rid == rid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, What};
    use crate::ledger::Limits;

    fn enter(ledger: &mut Ledger, rid: &str, first_token_ns: Option<u64>, last_token_ns: Option<u64>) {
        let wait = FrontendWait { rid, first_token_ns, last_token_ns };
        ledger.apply(&Event::new(MonoNs(9), What::FrontendWait(wait)));
    }

    #[test]
    fn waits_are_kept_per_response_and_an_unknown_wait_is_not_zero() {
        let mut ledger = Ledger::new(Limits::default());
        enter(&mut ledger, "a", Some(5), None);
        enter(&mut ledger, "b", None, Some(80));
        enter(&mut ledger, "c", None, None);
        for n in 0..MAX_RESPONSES - 1 {
            enter(&mut ledger, &n.to_string(), Some(1), Some(1));
        }
        let waits = ledger.frontend();
        assert_eq!((waits.responses, &*waits.worst.rid, waits.worst.ns), (1_001, "b", 80));
        assert_eq!((waits.first_token.count(), waits.last_token.count()), (1_000, 1_000));
        let b = waits.find_response("b").map(|b| (b.first_token_ns, b.last_token_ns));
        assert_eq!(b, Some((None, Some(80))));
        assert_eq!((waits.find_response("a"), waits.find_response("c")), (None, None));
    }
}
