//! The engine ended, failed, or makes no more tokens for a request.

use super::thresholds::STALLED_NS;
use super::{DetectContext, Severity, Verdicts};
use crate::clock::MonoNs;
use crate::ledger::{CountedRids, EngineFailure, Request};
use crate::words::{duration, plural};

/// Reports that the engine ended during the run.
pub(super) fn detect_engine_end(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let totals = context.ledger.totals();
    let summary = match totals.engine_ends {
        0 => return,
        1 => "the engine ended; queued frames were never received".to_owned(),
        times => format!("the engine ended {times} times; queued frames were never received"),
    };
    verdicts
        .add_verdict(Severity::Warning, summary)
        .times(totals.engine_end_times)
        .occurrences(totals.engine_ends)
        .with_weight("times", totals.engine_ends)
        .advice("read the engine's log for the reason; --follow watches the next engine");
}

/// Reports that the engine sent a message about its own failure.
pub(super) fn detect_engine_failure(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let Some(EngineFailure { at, live_requests: live }) = context.ledger.totals().engine_failed else {
        return;
    };
    let source = context.facts().source();
    let summary = format!("the {source} reported that it failed, with {}", plural(live, "live request"));
    let verdict = verdicts.add_verdict(Severity::Critical, summary);
    verdict
        .since(Some(at))
        .with_weight("live_requests", live)
        .advice("read the engine's log for the error and restart the engine: it makes no more tokens");
    let has_sent_frames_since = context.ledger.output_groups().any(|(_, group)| group.last_frame_at > Some(at));
    if has_sent_frames_since {
        // The failure is over. A finding with a number of occurrences ends after the last one. Without a number it lasts, as a state.
        verdict.occurrences(1).last_at(Some(at));
    }
}

/// Reports requests that began and then stopped producing tokens.
pub(super) fn detect_stalled_requests(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    // Without a hop for output, such as in the import of a log, no tokens are observed, so no request can be judged.
    if context.ledger.output_groups().next().is_none() {
        return;
    }
    let mut stalled = StalledRequests::default();
    for request in context.ledger.requests() {
        if context.ledger.is_stalled(request, context.now, STALLED_NS) {
            stalled.add_request(request, context.now.since(request.last_at));
        }
    }
    if stalled.count == 0 {
        return;
    }
    let summary = format!(
        "{} unfinished and without a new token, the longest for {}",
        plural(stalled.count, "request"),
        duration(stalled.longest_ns),
    );
    verdicts
        .add_verdict(Severity::Warning, summary)
        .rid(stalled.longest_rid)
        .since(stalled.longest_since)
        .requests(&stalled.rids)
        .with_weight("requests", stalled.count)
        .with("retracted_before", stalled.retracted)
        .with("longest_ns", stalled.longest_ns)
        .advice(format!("the {} retracted them, or they ended without a frame on this hop", context.facts().source()));
}

/// Requests that stopped producing tokens.
#[derive(Default)]
struct StalledRequests<'a> {
    count: u64,
    rids: CountedRids,
    /// Number of those that were retracted before.
    retracted: u64,
    /// Time since the last token of the request that is silent for longest.
    longest_ns: u64,
    longest_rid: &'a str,
    /// Start of its stall.
    longest_since: Option<MonoNs>,
}

impl<'a> StalledRequests<'a> {
    /// Adds a request without a new token for `silent_ns`.
    fn add_request(&mut self, request: &'a Request, silent_ns: u64) {
        self.count += 1;
        self.rids.add_rid(&request.rid);
        self.retracted += u64::from(request.retractions > 0);
        if silent_ns > self.longest_ns {
            self.longest_ns = silent_ns;
            self.longest_rid = &request.rid;
            // A request counts as stalled only after it has been silent for `STALLED_NS`.
            self.longest_since = Some(MonoNs(request.last_at.0.saturating_add(STALLED_NS)));
        }
    }
}
