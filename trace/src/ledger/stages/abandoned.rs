//! Requests that the scheduler continues although the receiver deleted them: their client left, or they were aborted.

use crate::clock::MonoNs;
use crate::ledger::{OccurrenceTimes, RequestAbort};

/// Outputs for so long after the first discarded one show that no abort arrived. An abort in progress takes a step or two; SGLang sends it
/// two seconds after the client left.
pub(crate) const ABANDONED_NS: u64 = 5_000_000_000;
/// Maximum number of abandoned requests kept with their numbers: those discarded for longest.
const MAX_LONGEST: usize = 16;

/// Discarded outputs of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DiscardedOutputs {
    outputs: u64,
    since: Option<MonoNs>,
    is_abandoned: bool,
}

impl DiscardedOutputs {
    /// Whether its outputs were discarded for longer than an abort takes.
    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }
}

/// Requests whose outputs were discarded for longer than an abort takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AbandonedRequests {
    /// Number of requests.
    pub requests: u64,
    /// Number of their discarded outputs.
    pub outputs: u64,
    /// Number of tokens in them; `None` if a log is the source, which does not show it.
    pub tokens: Option<u64>,
    /// First and last discarded output.
    pub times: OccurrenceTimes,
    longest: Vec<AbandonedRequest>,
}

/// An abandoned request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbandonedRequest {
    /// The engine's request id, as logged.
    pub rid: Box<str>,
    /// First discarded output.
    pub since: MonoNs,
    /// Latest discarded output.
    pub last: MonoNs,
    /// Number of discarded outputs.
    pub outputs: u64,
    /// Number of tokens in them; `None` if a log is the source, which does not show it.
    pub tokens: Option<u64>,
    /// Its client left; otherwise it is only known that it was aborted. In a log either is possible.
    pub has_client_left: bool,
    /// The abort that the scheduler was sent; `None` if none was observed.
    pub abort: Option<RequestAbort>,
}

impl AbandonedRequest {
    /// Whether it continued after the scheduler received its abort.
    pub fn has_ignored_abort(&self) -> bool {
        self.abort.and_then(|abort| abort.received).is_some_and(|received| self.last.since(received) >= ABANDONED_NS)
    }

    /// Time from the first to the latest discarded output.
    pub fn length_ns(&self) -> u64 {
        self.last.since(self.since)
    }
}

impl AbandonedRequests {
    /// The requests discarded for longest, longest first.
    pub fn longest(&self) -> &[AbandonedRequest] {
        &self.longest
    }

    /// Whether the engine's log shows them, which does not count tokens.
    pub fn is_logged(&self) -> bool {
        self.tokens.is_none()
    }

    /// What shows them.
    pub fn source_name(&self) -> &'static str {
        if self.is_logged() { "the engine's log" } else { "responses and frames" }
    }

    /// Adds an output that the engine discarded, because its request has no client. `discarded`: such outputs of the request so far. Once
    /// they span [`ABANDONED_NS`], which is longer than an abort takes, the request counts as abandoned.
    pub(super) fn add_discarded_output(&mut self, rid: &str, at: MonoNs, discarded: &mut DiscardedOutputs) {
        discarded.outputs += 1;
        let since = discarded.since.map_or(at, |since| since.min(at));
        discarded.since = Some(since);
        let was_abandoned = discarded.is_abandoned;
        discarded.is_abandoned |= at.since(since) >= ABANDONED_NS;
        if !discarded.is_abandoned {
            // An abort may still be on its way.
            return;
        }
        if was_abandoned {
            self.outputs += 1;
        } else {
            self.requests += 1;
            // Also adds the earlier ones, which were not counted until the request was known to be abandoned.
            self.outputs += discarded.outputs;
        }
        self.times.record_span(since, at);
        self.keep_longest(AbandonedRequest {
            rid: rid.into(),
            since,
            last: at,
            outputs: discarded.outputs,
            tokens: None,
            has_client_left: false,
            abort: None,
        });
    }

    /// Adds an abandoned request with all its outputs.
    pub(in crate::ledger) fn add_abandoned_request(&mut self, request: AbandonedRequest) {
        self.requests += 1;
        self.outputs += request.outputs;
        if let Some(tokens) = request.tokens {
            *self.tokens.get_or_insert_default() += tokens;
        }
        self.times.record_span(request.since, request.last);
        self.keep_longest(request);
    }

    /// Lists the request, or updates it in the list, if it is one of the [`MAX_LONGEST`] that were abandoned longest.
    fn keep_longest(&mut self, request: AbandonedRequest) {
        if let Some(known) = self.longest.iter_mut().find(|known| known.rid == request.rid) {
            *known = AbandonedRequest { last: known.last.max(request.last), ..request };
        } else if self.longest.len() < MAX_LONGEST {
            self.longest.push(request);
        } else if let Some(shortest) = self.longest.last_mut().filter(|last| last.length_ns() < request.length_ns()) {
            // The list is sorted, so the last one is the shortest.
            *shortest = request;
        } else {
            return;
        }
        self.longest.sort_by_key(|request| std::cmp::Reverse(request.length_ns()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn discard(all: &mut AbandonedRequests, rid: &str, seconds: &[u64]) {
        let mut discarded = DiscardedOutputs::default();
        for second in seconds {
            all.add_discarded_output(rid, MonoNs(second * SECOND), &mut discarded);
        }
    }

    #[test]
    fn outputs_during_an_abort_are_no_abandoned_request() {
        let mut all = AbandonedRequests::default();
        discard(&mut all, "aborted", &[10, 10, 11, 12, 14]);
        assert_eq!(all, AbandonedRequests::default());
        discard(&mut all, "abandoned", &[10, 10, 15, 16]);
        let mut times = OccurrenceTimes::default();
        times.record_span(MonoNs(10 * SECOND), MonoNs(16 * SECOND));
        assert_eq!((all.requests, all.outputs, all.times), (1, 4, times));
        let kept = &all.longest()[0];
        assert_eq!((&*kept.rid, kept.length_ns(), kept.outputs), ("abandoned", 6 * SECOND, 4));
    }

    #[test]
    fn the_longest_of_many_are_kept_and_all_are_counted() {
        let mut all = AbandonedRequests::default();
        for n in 0..1_000_u64 {
            discard(&mut all, &format!("r{n}"), &[n, n + 5 + n % 100]);
        }
        assert_eq!((all.requests, all.outputs, all.longest().len()), (1_000, 2_000, MAX_LONGEST));
        assert!(all.longest().iter().all(|kept| kept.length_ns() >= 103 * SECOND));
    }
}
