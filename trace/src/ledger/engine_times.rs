//! The engine's own times of requests, which its messages carry.

use super::Ledger;
use crate::engine::{AbsentEngineTimes, SentTime};
use crate::event::{EngineTimes, RequestTimes};

/// The engine's own times in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineTimesCounts {
    /// Requests with any.
    pub requests: u64,
    /// Times that cannot be true.
    pub impossible: u64,
}

impl Ledger {
    /// Keeps the times of a request that a message of the engine reports. Of several messages with times, the first counts.
    pub(super) fn record_request_times(&mut self, reported: &RequestTimes<'_>) {
        // Health checks of the server are never judged.
        if self.engine.is_health_check(reported.rid) {
            return;
        }
        self.totals.engine_times.impossible += u64::from(reported.impossible);
        let ticket = self.table.ticket_of(reported.rid);
        let Some(request) = ticket.and_then(|ticket| self.table.get_mut(ticket)) else { return };
        if request.engine_times().is_some() {
            return;
        }
        if reported.times != EngineTimes::default() {
            request.details.get_or_insert_default().engine_times = Some(reported.times);
            self.totals.engine_times.requests += 1;
        }
        // Also for a request without times, because its prefill may have slowed others.
        self.record_prefill(reported.rid);
    }

    /// Why the engine's times are absent from requests without them.
    pub fn reasons_for_absent_engine_times(&self) -> AbsentEngineTimes {
        let sent = self.engine.facts().sent_times(self.engine.version.as_deref());
        AbsentEngineTimes {
            entries: self.reason_for_absent_time(sent.entries),
            prefill_end: self.reason_for_absent_time(sent.prefill_end),
        }
    }

    /// Why a time of a request is absent. `sent_time`: whether the engine sends this time.
    fn reason_for_absent_time(&self, sent_time: SentTime) -> &'static str {
        // A time of any request shows that the condition is met.
        let has_times = self.totals.engine_times.requests > 0;
        match sent_time {
            SentTime::Never(reason) => reason,
            SentTime::OnlyIf(reason) if !has_times => reason,
            SentTime::OnlyIf(_) | SentTime::Always => {
                "the message with the request's first tokens was not observed at its sender, or has none"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::clock::MonoNs;
    use crate::event::{
        Capabilities, Chunk, Dispatch, DispatchKind, DispatchedRequest, Event, Finish, Hop, IdColumn, What,
    };
    use crate::id::{FrameId, HopId};
    use crate::ledger::Request;
    use crate::ledger::test_path::Path;

    const REQUESTS: HopId = HopId(7);

    fn path() -> Path {
        let mut path = Path { step_ns: 5, ..Path::new(Config::default()) };
        path.announce(0, "scheduler->tokenizer", [true, true], Capabilities::SENT | Capabilities::RECEIVED);
        let hop = Hop::with_requests(REQUESTS, "tokenizer->scheduler", Capabilities::SENT | Capabilities::RECEIVED);
        path.apply(What::Hop(hop));
        path
    }

    fn dispatch(rid: &str) -> What<'_> {
        let request = Some(DispatchedRequest::new(rid));
        let id = FrameId::new(REQUESTS, 0, 0);
        What::Dispatched(Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request })
    }

    fn times(rid: &str, queued: u64, impossible: u8) -> What<'_> {
        let times = EngineTimes { queued: Some(MonoNs(queued)), ..EngineTimes::default() };
        What::RequestTimes(RequestTimes { rid, times, impossible })
    }

    #[test]
    fn a_request_keeps_the_first_times_of_its_engine_live_and_finished() {
        let mut path = path();
        path.analysis.apply(&Event::new(MonoNs(1_000), dispatch("a")));
        path.now = 2_000;
        let only = Chunk { finish: Some(Finish::Length), ..Chunk::counted("a", 1, 1) };
        path.send(0, IdColumn::Delta, &[only, Chunk::counted("b", 1, 1)]);
        for what in [times("a", 1_200, 0), times("a", 1_300, 1), times("b", 1_400, 0), times("unknown", 1_500, 0)] {
            path.apply(what);
        }
        let none = RequestTimes { rid: "b", times: EngineTimes::default(), impossible: 2 };
        path.apply(What::RequestTimes(none));
        let queued = |path: &Path, rid| path.ledger().request(rid).and_then(Request::engine_times)?.queued;
        assert_eq!([queued(&path, "a"), queued(&path, "b")], [Some(MonoNs(1_200)), Some(MonoNs(1_400))]);
        assert!(path.ledger().request("a").and_then(Request::dispatch).is_some(), "both are kept");
        assert_eq!(path.ledger().totals().engine_times, EngineTimesCounts { requests: 2, impossible: 3 });
        path.wait(300);
        let finished = path.ledger().finished().find(|summary| &*summary.rid == "a").expect("finished");
        assert_eq!(finished.engine_times.and_then(|times| times.queued), Some(MonoNs(1_200)));
    }

    #[test]
    fn the_reason_for_absent_times_is_the_engine_until_a_request_has_some() {
        let mut path = path();
        let AbsentEngineTimes { entries, prefill_end } = path.ledger().reasons_for_absent_engine_times();
        assert_eq!(entries, prefill_end);
        path.now = 2_000;
        path.send(0, IdColumn::Delta, &[Chunk::counted("a", 1, 1)]);
        path.apply(times("a", 1_000, 0));
        assert_ne!(path.ledger().reasons_for_absent_engine_times().entries, entries);
    }
}
