//! Finished responses: losses proven by a response's own sums if its chunks are not tracked, and early disconnects.

use super::Ledger;
use crate::clock::MonoNs;
use crate::event::{Answer, AnswerEnd, AnswerFinish, AnswerForm, Finish};

/// How the response of a request ended, and how many tokens it had by its own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseEnd {
    /// Which side ended it, and how.
    pub end: AnswerEnd,
    /// Whether a stream was written to its end with neither a finish reason nor `[DONE]`; `None` if its events were not read.
    pub lacks_end: Option<bool>,
    /// Its own finish reason; `None` if it has none, or was observed in part.
    pub finish: Option<AnswerFinish>,
    /// Whether `[DONE]` was written; `None` for a body, and for a response that was observed in part.
    pub done: Option<bool>,
    /// Tokens in it; `None` if it carries text only, or was observed in part.
    pub carried_tokens: Option<u32>,
    /// Tokens that its last event claims; `None` if it claims none.
    pub claimed_tokens: Option<u32>,
}

impl ResponseEnd {
    /// How this response ended, and the tokens that it carried and claims. Its content is unknown if its events were not read.
    fn new(answer: &Answer<'_>) -> Self {
        Self {
            end: answer.end,
            lacks_end: answer.content.map(|content| content.lacks_end),
            finish: answer.content.and_then(|content| content.finish),
            done: answer.content.and_then(|content| content.done),
            carried_tokens: answer.tokens,
            claimed_tokens: answer.completion_tokens,
        }
    }

    /// Whether it is a whole stream that ended with `[DONE]`, but without a finish reason.
    pub fn is_done_without_finish(&self) -> bool {
        self.end == AnswerEnd::Whole && self.done == Some(true) && self.finish.is_none()
    }
}

impl Ledger {
    /// Records the end of a response. If its chunks cannot be judged, compares the number of tokens in a whole response with the number
    /// that it claims.
    pub(super) fn record_answer(&mut self, at: MonoNs, answer: &Answer<'_>) {
        // Without an id, its request is unknown. Health checks of the server are never judged.
        if answer.rid.is_empty() || self.engine.is_health_check(answer.rid) {
            return;
        }
        // Both must be known before the response changes the request.
        let is_judged_by_chunks = self.is_judged_by_chunks(answer);
        let had_deliveries = self.has_counted_delivery(answer.rid);
        // Some processes wrongly add up cumulative counts. If the claimed count shows such a sum, this call counts it.
        self.record_claim_of_rid_if_sum(at, answer.rid, answer.completion_tokens);
        // Must come before `end_request_with_response`, which may set a finish reason that no frame had.
        self.count_contradicted_finish(at, answer);
        // An engine that `ends_silently` may send no finish reason, so the end of the response ends the request.
        if self.engine.facts().ends_silently() {
            self.end_request_with_response(at, answer);
        }
        if answer.tokens.is_none() && !had_deliveries {
            // Its tokens cannot be counted, so nothing waits for their deliveries.
            self.mark_text_only_and_unjudge_chunks(at, answer.rid);
        }
        self.record_tool_calls(at, answer);
        self.record_whether_client_left(at, answer);
        self.keep_response_end(answer);
        self.record_response_end_for_retries(at, answer.rid);
        self.add_answer_to_totals(at, answer);
        if !is_judged_by_chunks {
            self.compare_carried_with_claimed_tokens(at, answer);
        }
    }

    /// Whether a delivery of the request has been counted. It may have carried no token, only an empty finishing chunk.
    fn has_counted_delivery(&self, rid: &str) -> bool {
        let Some(request) = self.request(rid) else { return false };
        let has_delivered_chunk = request.tracker.as_ref().is_some_and(|tracker| tracker.outcomes.delivered > 0);
        request.tokens_delivered > 0 || has_delivered_chunk
    }

    /// Counts the response's tool calls, if it has some, and marks its request if they are damaged.
    fn record_tool_calls(&mut self, at: MonoNs, answer: &Answer<'_>) {
        let Some(calls) = answer.tool_calls else { return };
        self.tool_calls.count_and_keep_response(answer.rid, at, calls);
        if calls.outcome.is_damaged() {
            self.mark_request_with_damaged_call(answer.rid);
        }
    }

    /// Records whether the client left before the end of the response. If so, the request is watched for what is still generated for it.
    fn record_whether_client_left(&mut self, at: MonoNs, answer: &Answer<'_>) {
        if answer.end == AnswerEnd::ClientLeft {
            // Nobody reads its tokens any more: what the engine still generates for it is wasted.
            self.watch_clientless(answer.rid, at);
        } else {
            // A client waited for this response, even if another client of the request has left.
            self.unwatch_clientless(answer.rid);
            self.retries.record_response_of_retry(at, answer.rid);
        }
    }

    /// Keeps how the response of a request ended: in its record or, if that is closed, in its summary. Nothing is kept for a rid that
    /// several requests use.
    fn keep_response_end(&mut self, answer: &Answer<'_>) {
        if let Some(request) = self.table.ticket_of(answer.rid).and_then(|ticket| self.table.get_mut(ticket)) {
            if !request.is_shared() {
                request.details.get_or_insert_default().response_end = Some(ResponseEnd::new(answer));
            }
            return;
        }
        // A summary does not show that its rid was shared.
        if self.shared_rids.contains(answer.rid) {
            return;
        }
        if let Some(summary) = self.finished.newest_summary_mut(answer.rid) {
            summary.numbers.response_end = Some(ResponseEnd::new(answer));
        }
    }

    /// Counts a whole response whose finish reason contradicts that of the engine's frames. Without both reasons, nothing is compared.
    fn count_contradicted_finish(&mut self, at: MonoNs, answer: &Answer<'_>) {
        if answer.end != AnswerEnd::Whole {
            return;
        }
        let Some(finish) = answer.content.and_then(|content| content.finish) else { return };
        let Some(engine_finish) = self.unambiguous_finish_of_frames(answer.rid) else { return };
        // The server of an engine that `ends_silently` looks for stop strings itself. It may report a stop where the engine reports a cut.
        let may_stop_later = self.engine.facts().ends_silently();
        if finish.contradicts(engine_finish, may_stop_later) {
            // The worst occurrence is the one with the largest amount. Here all are equal.
            let amount = 1;
            self.totals.answers.finish_contradicted.record_occurrence(at, answer.rid, amount);
        }
    }

    /// Finish reason in the frames of a request. `None` if another response of the request has ended before, or if several requests have
    /// the rid.
    fn unambiguous_finish_of_frames(&mut self, rid: &str) -> Option<Finish> {
        if let Some(request) = self.request(rid) {
            let has_earlier_response = request.details.as_ref().is_some_and(|details| details.response_end.is_some());
            // The frames may then be those of the earlier response, or of another request.
            let is_ambiguous = has_earlier_response || request.is_shared();
            return if is_ambiguous { None } else { request.finish };
        }
        // The record is closed. Its summary does not show that the rid was shared.
        if self.shared_rids.contains(rid) {
            return None;
        }
        let summary = self.finished.newest_summary_mut(rid)?;
        let has_earlier_response = summary.numbers.response_end.is_some();
        if has_earlier_response { None } else { summary.numbers.finish }
    }

    /// Whether the response's losses are found chunk by chunk, because the deliveries of its request are observed. Also true if its own
    /// tokens cannot be summed: only its chunks can judge it then.
    fn is_judged_by_chunks(&self, answer: &Answer<'_>) -> bool {
        let Some(request) = self.request(answer.rid) else {
            // If any delivery was matched in this run, those of this request were, too, and its record was closed before its response
            // ended.
            return self.totals.chunks.outcomes.delivered > 0;
        };
        let has_no_counted_token = answer.tokens.unwrap_or(0) == 0;
        if has_no_counted_token {
            return true;
        }
        // A delivery that only repeats known tokens ends at a count above 0, although it has no new token.
        let has_delivered_count = request.tracker.as_ref().is_some_and(|tracker| tracker.delivered_to() > 0);
        request.tokens_delivered > 0 || has_delivered_count
    }

    /// Adds a response to the totals of the run: how it ended, how many tokens it claims, and what its events show.
    fn add_answer_to_totals(&mut self, at: MonoNs, answer: &Answer<'_>) {
        let answers = &mut self.totals.answers;
        answers.seen += 1;
        match answer.end {
            AnswerEnd::Whole | AnswerEnd::Unknown => {}
            AnswerEnd::ClientLeft => answers.client_left += 1,
            AnswerEnd::ServerLeft => answers.server_left += 1,
            AnswerEnd::Failed => answers.failed += 1,
        }
        answers.short_writes += u64::from(answer.short_writes > 0);
        answers.uncounted += u64::from(answer.tokens.is_none());
        answers.claiming += u64::from(answer.completion_tokens.is_some());
        answers.tokens_claimed += answer.completion_tokens.map_or(0, u64::from);
        self.add_answer_events_to_totals(at, answer);
    }

    /// Adds what the events of a response show to the totals of the run. Only a response that is read event by event over HTTP has this
    /// content.
    fn add_answer_events_to_totals(&mut self, at: MonoNs, answer: &Answer<'_>) {
        let Some(content) = &answer.content else { return };
        let answers = &mut self.totals.answers;
        *answers.events.get_or_insert_default() += u64::from(content.events);
        answers.event_tokens_max = answers.event_tokens_max.max(content.event_tokens_max);
        // `[DONE]` is the line that ends the events.
        answers.done += u64::from(content.done == Some(true));
        let is_whole = answer.end == AnswerEnd::Whole;
        answers.done_without_finish += u64::from(is_whole && content.is_done_without_finish());
        if content.lacks_end {
            answers.lacking_end.record_occurrence(at, answer.rid, content.events.into());
        }
    }

    /// Judges a whole response without its chunks: compares the tokens that it carried with the count that its last event claims. Too few
    /// count as lost, too many as repeated. Nothing is judged without both numbers.
    fn compare_carried_with_claimed_tokens(&mut self, at: MonoNs, answer: &Answer<'_>) {
        let (Some(carried), Some(claimed)) = (answer.tokens, answer.completion_tokens) else { return };
        // A client that disconnected early did not wait for the rest.
        if answer.end != AnswerEnd::Whole {
            return;
        }
        let answers = &mut self.totals.answers;
        let is_openai = answer.content.is_some_and(|content| content.form == AnswerForm::OpenAi);
        answers.judged_alone += 1;
        answers.judged_alone_tokens += u64::from(carried);
        let lost = u64::from(claimed.saturating_sub(carried));
        if lost > 0 {
            answers.judged_alone_tokens_lost += lost;
            answers.judged_alone_lost.record_occurrence(at, answer.rid, lost);
            if is_openai {
                answers.openai_tokens_lost += lost;
            }
        }
        // Other endpoints may list the end of the prompt before the first token, which would look like repeated tokens.
        let repeated = if is_openai { u64::from(carried.saturating_sub(claimed)) } else { 0 };
        if repeated > 0 {
            answers.judged_alone_tokens_repeated += repeated;
            answers.judged_alone_repeated.record_occurrence(at, answer.rid, repeated);
        }
    }

    /// Marks the request with a damaged tool call: in its record or, if that is closed, in its summary. A rid that several requests use is
    /// not marked.
    fn mark_request_with_damaged_call(&mut self, rid: &str) {
        if let Some(request) = self.table.ticket_of(rid).and_then(|ticket| self.table.get_mut(ticket)) {
            if !request.is_shared() {
                request.damaged_call = true;
            }
            return;
        }
        // A summary does not show that its rid was shared.
        if self.shared_rids.contains(rid) {
            return;
        }
        if let Some(summary) = self.finished.newest_summary_mut(rid) {
            summary.numbers.damaged_call = true;
        }
    }

    /// Ends the request of a response that has ended, unless a frame of the engine has ended it. A response that was cut off ends it as
    /// aborted.
    fn end_request_with_response(&mut self, at: MonoNs, answer: &Answer<'_>) {
        let Some(ticket) = self.table.ticket_of(answer.rid) else { return };
        let Some(request) = self.table.get_mut(ticket) else { return };
        if request.finish.is_some() {
            return;
        }
        if answer.end == AnswerEnd::Whole {
            // Marked and counted as for a frame with a finish reason.
            request.finish_seen = true;
            self.totals.requests.finished += 1;
            self.totals.requests.completed += 1;
            self.finish_request(ticket, at, Finish::Stop);
        } else {
            self.totals.requests.aborted += 1;
            self.finish_request(ticket, at, Finish::Abort);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::event::{
        AnswerContent, Capabilities, Chunk, Finish, IdColumn, Rejection, ToolCallOutcome, ToolCalls, What,
    };
    use crate::ledger::AnswerTotals;
    use crate::ledger::test_path::Path;

    fn answer(tokens: Option<u32>, claimed: Option<u32>, end: AnswerEnd) -> AnswerTotals {
        let mut path = Path::new(Config::default());
        path.apply(What::Answered(Answer { end, ..Answer::new("5b920f43", tokens, claimed) }));
        path.ledger().totals().answers.clone()
    }

    #[test]
    fn a_request_knows_how_its_response_ended() {
        for end in [AnswerEnd::Whole, AnswerEnd::ClientLeft, AnswerEnd::ServerLeft, AnswerEnd::Failed] {
            let mut path = Path::new(Config::default());
            path.announce(0, "scheduler->tokenizer", [true, true], Capabilities::SENT | Capabilities::DELIVERED);
            path.send(0, IdColumn::Delta, &[Chunk { finish: Some(Finish::Stop), ..Chunk::counted("a", 1, 1) }]);
            path.deliver(1, Some(1), true);
            let ledger = path.ledger();
            let before = ledger.request("a").map(|request| ledger.numbers(request).response_end);
            assert_eq!(before, Some(None));
            // Before and after its record is closed.
            if end == AnswerEnd::ServerLeft {
                path.wait(10);
            }
            let content = AnswerContent { events: 1, lacks_end: true, ..AnswerContent::new(AnswerForm::OpenAi) };
            let answer = Answer { end, content: Some(content), ..Answer::new("a", Some(1), Some(2)) };
            path.apply(What::Answered(answer));
            path.wait(10);
            let finished: Vec<_> = path.ledger().finished().map(|summary| summary.response_end).collect();
            let response_end = ResponseEnd {
                end,
                lacks_end: Some(true),
                finish: None,
                done: None,
                carried_tokens: Some(1),
                claimed_tokens: Some(2),
            };
            assert_eq!(finished, [Some(response_end)]);
        }
    }

    #[test]
    fn a_cut_text_that_is_called_complete_contradicts_its_frames() {
        for (sent, finish, expected) in [
            (Finish::Length, AnswerFinish::Stop, 1),
            (Finish::Stop, AnswerFinish::Length, 1),
            (Finish::Stop, AnswerFinish::Stop, 0),
            (Finish::Stop, AnswerFinish::ToolCalls, 0),
            (Finish::Length, AnswerFinish::Other, 0),
            (Finish::Abort, AnswerFinish::Stop, 0),
        ] {
            for is_closed in [false, true] {
                let mut path = Path::new(Config::default());
                path.announce(0, "scheduler->tokenizer", [true, true], Capabilities::SENT | Capabilities::DELIVERED);
                path.send(0, IdColumn::Delta, &[Chunk { finish: Some(sent), ..Chunk::counted("a", 1, 1) }]);
                path.deliver(1, Some(1), true);
                if is_closed {
                    path.wait(10);
                }
                let content =
                    AnswerContent { finish: Some(finish), done: Some(true), ..AnswerContent::new(AnswerForm::OpenAi) };
                // Only the first response is compared.
                for _ in 0..2 {
                    path.apply(What::Answered(Answer { content: Some(content), ..Answer::new("a", Some(1), Some(1)) }));
                }
                let answers = &path.ledger().totals().answers;
                assert_eq!((answers.finish_contradicted.rids, answers.done), (expected, 2), "{sent:?}, {finish:?}");
            }
        }
        assert!(!AnswerFinish::Stop.contradicts(Finish::Length, true), "a stop string in the last chunk");
    }

    #[test]
    fn rejections_are_counted_by_status() {
        let mut path = Path::new(Config::default());
        for status in [429, 503, 429, 100, 200, 999] {
            path.apply(What::Rejected(Rejection { status }));
        }
        let answers = &path.ledger().totals().answers;
        assert_eq!(answers.rejected.clone().into_iter().collect::<Vec<_>>(), [(429, 2), (503, 1)]);
        assert_eq!((answers.seen, answers.failed, answers.uncounted), (1, 1, 0), "the stream with only an error");
    }

    #[test]
    fn a_response_with_fewer_tokens_than_claimed_proves_a_loss() {
        let answers = answer(Some(100), Some(200), AnswerEnd::Whole);
        assert_eq!(answers.judged_alone_tokens_lost, 100);
        assert_eq!(answers.judged_alone_lost.rids, 1);
        assert_eq!(&*answers.judged_alone_lost.worst, "5b920f43");
    }

    #[test]
    fn ids_beyond_the_count_are_repeats_only_where_each_event_lists_its_own() {
        let repeated = |form| {
            let mut path = Path::new(Config::default());
            let content = AnswerContent { events: 7, event_tokens_max: Some(1), ..AnswerContent::new(form) };
            path.apply(What::Answered(Answer { content: Some(content), ..Answer::new("5b920f43", Some(7), Some(4)) }));
            let answers = &path.ledger().totals().answers;
            (answers.judged_alone_tokens_repeated, answers.judged_alone_repeated.rids)
        };
        assert_eq!((repeated(AnswerForm::OpenAi), repeated(AnswerForm::Generate)), ((3, 1), (0, 0)));
    }

    #[test]
    fn a_response_that_ends_after_its_request_is_evicted_is_judged_once() {
        let mut path = Path::new(Config::default());
        path.announce(0, "scheduler->tokenizer", [true, true], Capabilities::SENT | Capabilities::DELIVERED);
        for count in 1..=3 {
            let chunk = Chunk { finish: (count == 3).then_some(Finish::Length), ..Chunk::counted("a", 1, count) };
            path.send(0, IdColumn::Delta, &[chunk]);
        }
        path.deliver(1, Some(2), false);
        path.deliver(1, Some(3), true);
        path.wait(3);
        assert_eq!(path.ledger().record_count(), 0);
        path.apply(What::Answered(Answer::new("a", Some(2), Some(3))));
        assert_eq!(path.ledger().totals().answers.judged_alone_tokens_lost, 0);
    }

    #[test]
    fn a_damaged_tool_call_marks_only_its_own_request() {
        let mut path = Path::new(Config::default());
        path.announce(0, "scheduler->tokenizer", [true, true], Capabilities::SENT);
        let send = |path: &mut Path, count, finish| {
            path.send(0, IdColumn::Delta, &[Chunk { finish, ..Chunk::counted("a", 1, count) }]);
            path.wait(10);
        };
        let damage = |path: &mut Path| {
            let calls = ToolCalls { outcome: ToolCallOutcome::Missing, ..ToolCalls::default() };
            path.apply(What::Answered(Answer { tool_calls: Some(calls), ..Answer::new("a", None, None) }));
        };
        // Whether the finished requests and the live one are marked.
        let marked = |path: &Path| -> Vec<bool> {
            let finished = path.ledger().finished().map(|summary| summary.damaged_call);
            finished.chain(path.ledger().request("a").map(|request| request.damaged_call)).collect()
        };
        send(&mut path, 1, Some(Finish::Stop));
        assert_eq!(marked(&path), [false]);
        damage(&mut path);
        assert_eq!(marked(&path), [true]);
        send(&mut path, 1, None);
        assert_eq!(marked(&path), [true, false]);
        damage(&mut path);
        assert_eq!(marked(&path), [true, true]);
        send(&mut path, 2, Some(Finish::Stop));
        assert_eq!(marked(&path), [true, true]);
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
