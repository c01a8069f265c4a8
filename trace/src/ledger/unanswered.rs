//! Requests that the scheduler does not answer although it answers later ones.
//!
//! A request in a long queue is none: it must have been overtaken, and then wait far longer than those that are answered meanwhile. The time
//! counts only while the engine sends output, and not after a missed observation of its output.

use super::Ledger;
use super::dispatched::{RequestDispatch, UNJUDGED};
use super::engine_silence::MIN_TIMES_USUAL;
use crate::clock::MonoNs;
use crate::stats::Spread;

/// Minimum time without an answer after a later request was answered.
pub(crate) const UNANSWERED_NS: u64 = 30_000_000_000;
/// Time allowed for the prefill of each token of the prompt: short prompts may overtake a long one.
const PREFILL_NS_PER_TOKEN: u64 = 1_000_000;
/// Interval between judgements.
const JUDGE_EVERY_NS: u64 = 1_000_000_000;

/// A request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnansweredRequest<'a> {
    /// The engine's request id.
    pub rid: &'a str,
    /// Its dispatch.
    pub dispatch: RequestDispatch,
    /// Number of requests answered since a later one was.
    pub answered_since: u64,
}

impl Ledger {
    /// Requests that the scheduler does not answer although it answers later ones, oldest first.
    pub fn unanswered_requests(&self) -> impl Iterator<Item = UnansweredRequest<'_>> {
        let unanswered =
            self.dispatched.waiting.values().filter(|waiting| waiting.is_unanswered && !waiting.is_aborted);
        unanswered.map(|waiting| UnansweredRequest {
            rid: &waiting.rid,
            dispatch: waiting.times,
            answered_since: waiting.overtaken.map_or(0, |then| self.dispatched.progress.answered - then.answered),
        })
    }

    /// Longest usual time from a request's dispatch to its first chunk in the last ten seconds; `None` without an answered request.
    pub fn usual_first_chunk_wait_ns(&self, now: MonoNs) -> Option<u64> {
        Some(Spread::recent(&self.dispatched.first_chunk_waits, now)?.p99)
    }

    /// Finds requests that have waited for too long.
    pub(super) fn judge_unanswered_requests(&mut self, now: MonoNs) {
        let dispatched = &self.dispatched;
        let is_due = dispatched.judged_at.is_none_or(|at| now.since(at) >= JUDGE_EVERY_NS);
        let oldest = dispatched.waiting.values().next();
        if !is_due || oldest.is_none_or(|oldest| now.since(oldest.times.sent) < UNANSWERED_NS) {
            return;
        }
        self.dispatched.judged_at = Some(now);
        let Some(usual_ns) = self.usual_first_chunk_wait_ns(now) else { return };
        let shortest_ns = UNANSWERED_NS.max(usual_ns.saturating_mul(MIN_TIMES_USUAL));
        let missed = self.hops.missed_output();
        let busy_ns = self.dispatched.progress.busy_ns;
        for waiting in self.dispatched.waiting.values_mut() {
            let times = waiting.times;
            if now.since(times.sent) < UNANSWERED_NS {
                break;
            }
            let Some(overtaken) = waiting.overtaken.filter(|_| waiting.missed_before == missed) else { continue };
            let prefill_ns = u64::from(times.prompt_tokens.unwrap_or(0)).saturating_mul(PREFILL_NS_PER_TOKEN);
            if busy_ns - overtaken.busy_ns < shortest_ns.saturating_add(prefill_ns) {
                continue;
            }
            if self.table.ticket_of(&waiting.rid).is_some() {
                waiting.missed_before = UNJUDGED;
                continue;
            }
            let is_new = !std::mem::replace(&mut waiting.is_unanswered, true);
            self.totals.dispatched.unanswered += u64::from(is_new && !waiting.is_aborted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::event::{
        Capabilities, Chunk, Dispatch, DispatchKind, DispatchedRequest, Event, Hop, IdColumn, Missed, MissedCause, What,
    };
    use crate::id::{FrameId, HopId};
    use crate::ledger::test_path::Path;

    const REQUESTS: HopId = HopId(7);
    const MS: u64 = 1_000_000;

    /// An engine, and the number of the next message to it.
    struct Engine {
        path: Path,
        next: u64,
        /// Number of chunks of the stream that runs all the time.
        chunks: u32,
    }

    impl Engine {
        fn new() -> Self {
            let mut path = Path { step_ns: MS, ..Path::new(Config::default()) };
            path.announce(0, "scheduler->tokenizer", [true, true], Capabilities::SENT | Capabilities::RECEIVED);
            path.apply(What::Hop(Hop::with_requests(REQUESTS, "tokenizer->scheduler", Capabilities::SENT)));
            Self { path, next: 0, chunks: 0 }
        }

        fn send(&mut self, kind: DispatchKind, rid: Option<&str>) {
            let request = rid.map(|rid| DispatchedRequest { prompt_tokens: Some(50), ..DispatchedRequest::new(rid) });
            let id = FrameId::new(REQUESTS, 0, self.next);
            self.next += 1;
            let dispatch = Dispatch { id, bytes: 900, kind, index: 0, request };
            self.path.analysis.apply(&Event::new(MonoNs(self.path.now), What::Dispatched(dispatch)));
        }

        fn dispatch(&mut self, rid: &str) {
            self.send(DispatchKind::Requests, Some(rid));
        }

        fn answer(&mut self, rid: &str) {
            self.path.send(0, IdColumn::Delta, &[Chunk::counted(rid, 1, 1)]);
        }

        /// A request each second, answered after this time, while a stream gets a token each 100 ms.
        fn serve(&mut self, seconds: u64, wait_ms: u64) {
            for _ in 0..seconds {
                let rid = format!("served {}", self.next);
                self.dispatch(&rid);
                for step in 0..10 {
                    self.path.now += 98 * MS;
                    self.chunks += 1;
                    self.path.send(0, IdColumn::Delta, &[Chunk::counted("stream", 1, self.chunks)]);
                    if step == wait_ms / 100 {
                        self.answer(&rid);
                    }
                    self.path.analysis.tick(MonoNs(self.path.now));
                }
            }
        }

        fn unanswered(&self) -> Vec<&str> {
            self.path.ledger().unanswered_requests().map(|request| request.rid).collect()
        }
    }

    #[test]
    fn a_request_is_unanswered_after_later_ones_were_answered_for_half_a_minute() {
        let mut engine = Engine::new();
        engine.serve(5, 0);
        engine.dispatch("lost");
        engine.serve(29, 0);
        assert!(engine.unanswered().is_empty());
        engine.serve(3, 0);
        assert_eq!(engine.unanswered(), ["lost"]);
        let ledger = engine.path.ledger();
        let lost = ledger.unanswered_requests().next().expect("one");
        assert_eq!((lost.answered_since, lost.dispatch.prompt_tokens, lost.dispatch.received), (32, Some(50), None));
        assert_eq!(ledger.totals().dispatched.unanswered, 1);
        engine.answer("lost");
        assert!(engine.unanswered().is_empty());
        assert_eq!(engine.path.ledger().totals().dispatched.unanswered, 1, "it was");
    }

    #[test]
    fn a_request_in_a_queue_is_not_unanswered() {
        let mut engine = Engine::new();
        engine.serve(5, 0);
        // Nobody overtakes it, and then those that do wait for so long that its own wait is usual.
        engine.dispatch("first");
        for _ in 0..400 {
            engine.path.now += 100 * MS;
            engine.chunks += 1;
            engine.path.send(0, IdColumn::Delta, &[Chunk::counted("stream", 1, engine.chunks)]);
            engine.path.analysis.tick(MonoNs(engine.path.now));
        }
        assert!(engine.unanswered().is_empty(), "no other was answered");
        let mut engine = Engine::new();
        engine.dispatch("queued");
        for n in 0..60 {
            engine.dispatch(&format!("later {n}"));
            engine.serve(1, 0);
            if n >= 10 {
                engine.answer(&format!("later {}", n - 10));
            }
        }
        assert!(engine.unanswered().is_empty(), "others wait for ten seconds, it for sixty");
    }

    #[test]
    fn an_abort_ends_the_wait() {
        for abort in [Some("lost"), Some("lo"), None] {
            let mut engine = Engine::new();
            engine.dispatch("lost");
            engine.serve(40, 0);
            assert_eq!(engine.unanswered(), ["lost"]);
            engine.send(DispatchKind::Aborts, abort);
            engine.serve(40, 0);
            assert!(engine.unanswered().is_empty(), "{abort:?}");
            assert_eq!(engine.path.ledger().dispatched_count(), 0);
        }
    }

    #[test]
    fn the_time_of_a_silent_engine_and_of_missed_observations_does_not_count() {
        let mut engine = Engine::new();
        engine.dispatch("waits");
        engine.serve(2, 0);
        engine.path.wait(60);
        engine.serve(20, 0);
        assert!(engine.unanswered().is_empty());
        engine.path.apply(What::Missed(Missed { hop: None, count: 1, cause: MissedCause::QueueFull }));
        engine.serve(60, 0);
        assert!(engine.unanswered().is_empty(), "its first chunk may be among them");
        engine.dispatch("lost");
        engine.serve(40, 0);
        assert_eq!(engine.unanswered(), ["lost"]);
    }

    #[test]
    fn a_rid_in_use_twice_is_not_unanswered() {
        let mut engine = Engine::new();
        engine.serve(1, 0);
        engine.dispatch("stream");
        engine.serve(60, 0);
        assert!(engine.unanswered().is_empty());
    }
}
