//! Finished responses: losses proven by a response's own sums if its chunks are not tracked, and early disconnects.

use super::Ledger;
use crate::clock::MonoNs;
use crate::event::{Answer, AnswerEnd, Finish};

impl Ledger {
    pub(super) fn answered(&mut self, at: MonoNs, answer: &Answer<'_>) {
        if answer.rid.is_empty() || self.engine.is_health_check(answer.rid) {
            return;
        }
        // A request with observed deliveries is judged chunk by chunk.
        let request = self.table.find(answer.rid).and_then(|ticket| self.table.get(ticket));
        let has_tokens = answer.tokens > Some(0);
        let judged = match request {
            Some(r) => {
                !(has_tokens
                    && r.tokens_delivered == 0
                    && r.tracker.as_ref().is_none_or(|tracker| tracker.delivered_to() == 0))
            }
            // If deliveries match requests at all, an unknown request was judged and then closed before its response ended.
            None => self.totals.chunks.fates.delivered > 0,
        };
        // A counted delivery may carry no token: an empty finishing chunk.
        let delivered = request.is_some_and(|request| {
            request.tokens_delivered > 0 || request.tracker.as_ref().is_some_and(|t| t.fates.delivered > 0)
        });
        self.summed_up(at, answer.rid, answer.completion_tokens);
        if self.engine.facts().ends_silently() {
            self.end_by_response(at, answer);
        }
        if answer.tokens.is_none() && !delivered {
            self.carries_text(answer.rid);
        }
        if let Some(calls) = answer.tool_calls {
            self.tool_calls.enter(answer.rid, at, calls);
            if calls.outcome.is_damaged() {
                self.mark_damaged_call(answer.rid);
            }
        }
        let answers = &mut self.totals.answers;
        answers.seen += 1;
        match answer.end {
            AnswerEnd::Whole | AnswerEnd::Unknown => {}
            AnswerEnd::ClientLeft => answers.client_left += 1,
            AnswerEnd::ServerLeft => answers.server_left += 1,
        }
        answers.short_writes += u64::from(answer.short_writes > 0);
        answers.uncounted += u64::from(answer.tokens.is_none());
        // A client that disconnected early did not wait for the rest.
        let (Some(tokens), Some(claimed), AnswerEnd::Whole, false) =
            (answer.tokens, answer.completion_tokens, answer.end, judged)
        else {
            return;
        };
        answers.judged_alone += 1;
        answers.judged_alone_tokens += u64::from(tokens);
        let lost = u64::from(claimed.saturating_sub(tokens));
        if lost > 0 {
            answers.judged_alone_tokens_lost += lost;
            answers.judged_alone_lost.enter(at, answer.rid, lost, true);
        }
    }
}

impl Ledger {
    /// Marks the request with a damaged tool call, which may have closed before its response ended.
    fn mark_damaged_call(&mut self, rid: &str) {
        if let Some(request) = self.table.find(rid).and_then(|ticket| self.table.get_mut(ticket)) {
            request.damaged_call |= !request.is_shared();
        } else if !self.shared_rids.contains(rid)
            && let Some(summary) = self.finished.newest_mut(rid)
        {
            summary.numbers.damaged_call = true;
        }
    }

    /// Ends a request that no frame has ended.
    fn end_by_response(&mut self, at: MonoNs, answer: &Answer<'_>) {
        let Some(ticket) = self.table.find(answer.rid) else {
            return;
        };
        let Some(request) = self.table.get_mut(ticket).filter(|request| request.finish.is_none()) else {
            return;
        };
        if answer.end == AnswerEnd::Whole {
            request.finish_seen = true;
            self.totals.requests.finished += 1;
            self.finish(ticket, at, Finish::Stop);
        } else {
            self.totals.requests.aborted += 1;
            self.finish(ticket, at, Finish::Abort);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Capabilities, Chunk, Delivery, Event, Finish, Frame, Hop, ToolCallOutcome, ToolCalls, What};
    use crate::id::{FrameId, HopId};
    use crate::ledger::{Answers, Limits};

    fn answer(tokens: Option<u32>, claimed: Option<u32>, end: AnswerEnd) -> Answers {
        let mut ledger = Ledger::new(Limits::default());
        let answer = Answer { end, ..Answer::new("5b920f43", tokens, claimed) };
        ledger.apply(&Event::new(MonoNs(5), What::Answered(answer)));
        ledger.totals().answers.clone()
    }

    #[test]
    fn a_response_with_fewer_tokens_than_claimed_proves_a_loss() {
        let answers = answer(Some(100), Some(200), AnswerEnd::Whole);
        assert_eq!(answers.judged_alone_tokens_lost, 100);
        assert_eq!(answers.judged_alone_lost.rids, 1);
        assert_eq!(&*answers.judged_alone_lost.worst, "5b920f43");
    }

    #[test]
    fn a_response_that_ends_after_its_request_is_evicted_is_judged_once() {
        let mut ledger = Ledger::new(Limits::default());
        let mut now = 0;
        let mut apply = |what: What<'_>| {
            now += 10_000_000_000;
            ledger.apply(&Event { at: MonoNs(now), what });
            ledger.tick(MonoNs(now));
            ledger.totals().answers.judged_alone_tokens_lost
        };
        let capabilities = Capabilities::SENT | Capabilities::DELIVERED;
        apply(What::Hop(Hop::only(HopId(0), "scheduler->tokenizer", capabilities)));
        for count in 1..=3 {
            let chunk = Chunk { finish: (count == 3).then_some(Finish::Length), ..Chunk::counted("a", 1, count) };
            apply(What::Sent(Frame::token_ids(FrameId::new(HopId(0), 0, u64::from(count) - 1), 1, &[chunk])));
        }
        for count in [2, 3] {
            apply(What::Delivered(Delivery { finished: count == 3, ..Delivery::new("a", 1, Some(count)) }));
        }
        let ended = apply(What::Answered(Answer::new("a", Some(2), Some(3))));
        assert_eq!(ended, 0);
    }

    #[test]
    fn a_damaged_tool_call_marks_only_its_own_request() {
        let mut ledger = Ledger::new(Limits::default());
        let mut now = 0;
        // Whether the finished requests and the live one are marked.
        let mut apply = |what: What<'_>| -> Vec<bool> {
            now += 10_000_000_000;
            ledger.apply(&Event { at: MonoNs(now), what });
            ledger.tick(MonoNs(now));
            let finished = ledger.finished().map(|summary| summary.damaged_call);
            finished.chain(ledger.request("a").map(|request| request.damaged_call)).collect()
        };
        let damaged = || {
            let calls = ToolCalls {
                calls: 1,
                absent: 0,
                call: 1,
                outcome: ToolCallOutcome::Missing,
                reason: None,
                finish: None,
                events: 2,
                part: None,
            };
            What::Answered(Answer { tool_calls: Some(calls), ..Answer::new("a", None, None) })
        };
        let chunk = |completion_tokens, finish| Chunk {
            listed: Some(1),
            completion_tokens: Some(completion_tokens),
            finish,
            ..Chunk::new("a")
        };
        let id = |seq| FrameId::new(HopId(0), 0, seq);
        apply(What::Hop(Hop::only(HopId(0), "scheduler->tokenizer", Capabilities::SENT)));
        let ended = [chunk(1, Some(Finish::Stop))];
        assert_eq!(apply(What::Sent(Frame::token_ids(id(0), 1, &ended))), [false]);
        assert_eq!(apply(damaged()), [true]);
        let (first, last) = ([chunk(1, None)], [chunk(2, Some(Finish::Stop))]);
        assert_eq!(apply(What::Sent(Frame::token_ids(id(1), 1, &first))), [true, false]);
        assert_eq!(apply(damaged()), [true, true]);
        assert_eq!(apply(What::Sent(Frame::token_ids(id(2), 1, &last))), [true, true]);
    }

    #[test]
    fn disconnected_or_uncounted_responses_prove_no_loss() {
        for (tokens, claimed, end) in [
            (Some(100), Some(200), AnswerEnd::ClientLeft),
            (Some(100), None, AnswerEnd::Whole),
            (None, Some(200), AnswerEnd::Whole),
            (Some(6), Some(1), AnswerEnd::Whole),
        ] {
            assert_eq!(answer(tokens, claimed, end).judged_alone_tokens_lost, 0);
        }
    }
}
