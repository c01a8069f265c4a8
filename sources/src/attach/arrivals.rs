//! Arrivals of requests, and the spans of their callers, in the records of the kernel side.

use probe_user::egress::{CallerSpan, MAX_HEAD, RequestTimes, UnknownSpan};
use trace::MonoNs;
use trace::event::{ArrivalTimes, ConnectionTimes, TraceParent};

/// Flag of a trace that its caller samples (`sampled` in W3C Trace Context).
const SAMPLED_FLAG: u32 = 1;

/// Requests that may name their callers' spans, which are unknown.
#[derive(Debug, Default)]
pub(super) struct UnknownSpans {
    malformed: u64,
    incomplete: u64,
}

impl UnknownSpans {
    /// Reads the trace span of a request's caller from `payload`, the kernel side's record of the request. The kernel side has parsed the
    /// header `traceparent` for it. `None` if the request has no such header. `None` also if the header cannot be read, which is counted
    /// for the report.
    pub(super) fn parse_caller_and_count_unknown(&mut self, payload: &[u8]) -> Option<TraceParent> {
        // The record begins with the times of the request, and the span follows.
        let span_bytes = payload.get(size_of::<RequestTimes>()..)?;
        let caller = CallerSpan::parse(span_bytes)?;
        match caller.unknown() {
            Some(UnknownSpan::Malformed) => self.malformed += 1,
            Some(UnknownSpan::Incomplete) => self.incomplete += 1,
            None => {}
        }
        let CallerSpan { trace_id: [trace_id_high, trace_id_low], span_id: parent_id, flags, .. } = caller;
        // Id 0 stands for no span, or for one that cannot be read.
        (parent_id != 0).then_some(TraceParent {
            trace_id_high,
            trace_id_low,
            parent_id,
            is_sampled: flags & SAMPLED_FLAG != 0,
        })
    }

    /// Lines for the report about headers that were not read.
    pub(super) fn degraded_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.malformed > 0 {
            lines.push(format!("egress: {} malformed traceparent headers were ignored", self.malformed));
        }
        if self.incomplete > 0 {
            let count = self.incomplete;
            lines.push(format!(
                "egress: {count} request heads were not in one read or exceed {MAX_HEAD} bytes: their trace is unknown"
            ));
        }
        lines
    }
}

/// The times in the kernel side's record of a request. `None` if the record does not tell when the request arrived or was read. When its
/// connection was opened may be unknown.
pub(super) fn parse_arrival_times(request_record: &[u8]) -> Option<ArrivalTimes> {
    let times = RequestTimes::parse(request_record)?;
    let arrived = known_time(times.arrived_ns)?;
    let read = known_time(times.read_ns)?;
    let mut connection = None;
    if let Some(opened) = known_time(times.opened_ns) {
        connection = Some(ConnectionTimes { opened, accepted: known_time(times.accepted_ns) });
    }
    Some(ArrivalTimes { arrived, read, connection })
}

/// A stamp of the kernel side, which is 0 if it was not observed.
fn known_time(ns: u64) -> Option<MonoNs> {
    (ns > 0).then_some(MonoNs(ns))
}
