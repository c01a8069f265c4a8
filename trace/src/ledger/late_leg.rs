//! Legs of the time to first token on which requests spent long.

use super::engine_silence::EngineSilences;
use super::limits::CountedLimits;
use super::prefill::{PrefillComparison, PrefillSpan, Prefills, SlowPrefill};
use super::request::Request;
use super::ttft_path::{LEG_NAMES, TimedLeg, TtftMoment, TtftPath};
use super::{GAP_WARNING_NS, OccurrenceTimes, WorstGap};
use crate::clock::MonoNs;

/// Requests that spent a second or more on a leg between neighbouring moments; on the prefill, only those that are slow beside others.
#[derive(Clone, Debug, Default)]
pub struct LateLeg {
    /// Number of such requests.
    pub requests: u64,
    /// Their time on the leg.
    pub ns: u128,
    /// Their whole time to first token.
    pub whole_ns: u128,
    /// The longest; `None` without any.
    pub(crate) worst: Option<WorstGap>,
    /// Begin of the first leg and end of the last one.
    pub(crate) times: OccurrenceTimes,
}

impl LateLeg {
    /// Adds a request, whose leg ended at `end`.
    fn record(&mut self, rid: &str, ns: u64, end: MonoNs, ttft_ns: u64) {
        self.requests += 1;
        self.ns += u128::from(ns);
        self.whole_ns += u128::from(ttft_ns);
        self.worst.get_or_insert_default().keep_longest(end, rid, ns);
        self.times.record_span(MonoNs(end.0.saturating_sub(ns)), end);
    }

    /// Share of the leg in the time to first token of these requests, from 0 to 1.
    pub fn share(&self) -> f64 {
        if self.whole_ns == 0 { 0.0 } else { self.ns as f64 / self.whole_ns as f64 }
    }
}

/// End of a prefill. On the servers of a pair, the transfer of the cache lies between it and the first token, so there it is known only from
/// the engine.
fn prefill_end(request: &Request, leg: TimedLeg) -> Option<MonoNs> {
    let finished = request.engine_times().and_then(|times| times.prefill_finished);
    // Only the dispatch tells which requests are those of a pair.
    let may_be_of_pair = request.dispatch().is_none_or(|dispatch| dispatch.room.is_some());
    match finished.filter(|at| (leg.at..=leg.end()).contains(at)) {
        None if may_be_of_pair => None,
        finished => Some(finished.unwrap_or(leg.end())),
    }
}

/// Late legs of all requests.
#[derive(Debug, Default)]
pub(super) struct LateLegs {
    /// By the moment at which the leg begins.
    by_moment: [LateLeg; LEG_NAMES.len()],
    pub(super) prefills: Prefills,
    slowest_prefill: Option<PrefillComparison>,
}

impl LateLegs {
    /// Records the legs on which a request spent long. A prefill is judged later, beside others.
    pub(super) fn record_legs(
        &mut self,
        request: &Request,
        path: &TtftPath,
        silences: &EngineSilences,
        limits: &mut CountedLimits,
    ) {
        let Some(ttft_ns) = path.ttft_ns() else { return };
        for timed in path.legs().filter(|timed| timed.leg.parts().len() == 1) {
            if timed.leg.from == TtftMoment::BatchEntered {
                let Some(end) = prefill_end(request, timed) else { continue };
                let span = PrefillSpan { from: timed.at, to: end };
                if self.prefills.add_unjudged(request, span, ttft_ns, limits.prefills) {
                    limits.count_reached("prefills");
                }
                continue;
            }
            // While the engine is silent, no request goes on: that is another finding.
            let waits_for_engine = matches!(timed.leg.from, TtftMoment::Dispatched | TtftMoment::Queued);
            if timed.ns >= GAP_WARNING_NS && !(waits_for_engine && silences.explains(timed.at, timed.end())) {
                self.by_moment[timed.leg.from.index()].record(&request.rid, timed.ns, timed.end(), ttft_ns);
            }
        }
    }

    /// Records a prefill that is slow beside others.
    pub(super) fn record_slow_prefill(&mut self, slow: &SlowPrefill) {
        let late = &mut self.by_moment[TtftMoment::BatchEntered.index()];
        let ns = slow.span.to.since(slow.span.from);
        if late.worst.as_ref().is_none_or(|worst| worst.ns <= ns) {
            self.slowest_prefill = Some(slow.comparison);
        }
        late.record(&slow.rid, ns, slow.span.to, slow.ttft_ns);
    }

    /// Comparison of the slowest prefill that is slow beside others; `None` without any.
    pub(super) fn slowest_prefill(&self) -> Option<PrefillComparison> {
        self.slowest_prefill
    }

    /// Requests that spent long on the leg that begins at this moment.
    pub(super) fn late_leg(&self, from: TtftMoment) -> Option<&LateLeg> {
        self.by_moment.get(from.index())
    }
}
