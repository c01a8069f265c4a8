//! One response: its events as deliveries, and an answer for each of its requests when it ends.

use std::borrow::Cow;

use trace::event::{
    Answer, AnswerContent, AnswerEnd, AnswerForm, Arrival, ArrivalTimes, Rejection, ToolCalls, TraceParent, Traced,
    UnjudgedReason, UnknownArrival, What,
};

use super::content::StreamTokens;
use super::event::{Completion, EventSink, ResponseElement, ResponseForm};
use super::frontend::Writes;
use super::names::{Named, ResponseIds};
use super::observed_calls::ObservedCalls;
use super::server::{delivery_of_text, delivery_of_tokens};
use super::{Limits, Server};

/// A response in progress.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about the response")]
pub(super) struct OpenResponse {
    parts: Vec<RequestPart>,
    pub(super) begun: bool,
    /// Whether all of it has been observed so far.
    pub(super) whole: bool,
    /// When its request reached the server; `None` where that is not observed.
    pub(super) arrival: Option<Result<ArrivalTimes, UnknownArrival>>,
    /// Span of the caller of its request, if the request names one.
    pub(super) trace_parent: Option<TraceParent>,
    short_writes: u32,
    /// The request of a stream, if a request plane announced it.
    name: Option<Named>,
    /// Whether this is a worker's stream to a frontend.
    is_worker_stream: bool,
    /// Its writes, for the wait in a frontend.
    writes: Writes,
    /// Whether an event says that the response ends: a finish reason or `[DONE]`.
    says_end: bool,
    /// How the response ended, if that is known before its connection ends.
    end: Option<AnswerEnd>,
}

#[derive(Clone, Debug, Default)]
struct RequestPart {
    rid: String,
    /// Number of its tokens in the events so far.
    tokens: u32,
    /// Whether each event so far shows its number of tokens.
    is_counted: bool,
    /// Whether some tokens may be in no event: those of a chat's text that a parser removed have no log probabilities.
    may_lack_tokens: bool,
    /// Number of its tokens that the response itself states.
    claimed: Option<u32>,
    /// Number of its tokens up to the last event; `None` if an earlier event was missed.
    so_far: Option<u32>,
    /// Id that the response shows, if it differs from `rid`.
    shown: String,
    /// Tokens of a stream that can only be matched by content.
    received: StreamTokens,
    calls: ObservedCalls,
    content: Option<AnswerContent>,
}

impl RequestPart {
    /// Counts an event of an HTTP response. `before`: number of its tokens up to the previous event.
    fn count_event(&mut self, completion: &Completion<'_>, before: Option<u32>) {
        let form = match completion.form {
            ResponseForm::OpenAi => AnswerForm::OpenAi,
            ResponseForm::Generate => AnswerForm::Generate,
            ResponseForm::WorkerStream | ResponseForm::GrpcText => return,
        };
        let first = AnswerContent { form, events: 0, event_tokens_max: None, lacks_end: false };
        let content = self.content.get_or_insert(first);
        let grown = completion.so_far.zip(before).and_then(|(so_far, before)| so_far.checked_sub(before));
        // All tokens so far are listed in the events of a cumulative response.
        let listed = completion.tokens.filter(|_| form == AnswerForm::OpenAi);
        let tokens = grown.or(listed);
        // The text of the engine's own endpoint is not read.
        let has_content = tokens > Some(0) || !completion.text.is_empty() || form == AnswerForm::Generate;
        content.events = content.events.saturating_add(u32::from(has_content));
        content.event_tokens_max = content.event_tokens_max.max(tokens.filter(|tokens| *tokens > 0));
    }
}

impl OpenResponse {
    /// Records that the client has cancelled.
    pub(super) fn record_cancel(&mut self) {
        self.end.get_or_insert(AnswerEnd::ClientLeft);
    }

    /// Records that the socket accepted none or only a part of a write.
    pub(super) fn record_short_write(&mut self) {
        self.short_writes = self.short_writes.saturating_add(1);
    }

    /// Records that events before this point were missed.
    pub(super) fn mark_incomplete(&mut self) {
        self.whole = false;
        self.writes.whole = false;
        self.parts.iter_mut().for_each(|part| part.so_far = None);
    }

    /// Processes the next element of the response.
    pub(super) fn record_element(
        &mut self,
        element: ResponseElement<'_>,
        limits: &Limits,
        server: &mut Server,
        sink: &mut EventSink<'_>,
    ) {
        match element {
            ResponseElement::Began => {
                // Earlier short writes may be those of the head.
                self.short_writes = if self.begun { 0 } else { self.short_writes };
                self.begun = true;
                self.whole = true;
                self.says_end = false;
                self.parts.clear();
            }
            ResponseElement::StreamNamed(name) => {
                self.begun = true;
                self.whole = true;
                self.is_worker_stream = true;
                self.parts.clear();
                self.name = server.streams.remove(name);
                self.writes = Writes::observed_from_start();
            }
            ResponseElement::Completion(completion) => self.record_completion(completion, limits, server, sink),
            ResponseElement::Rejected(status) => sink.emit(What::Rejected(Rejection { status })),
            ResponseElement::Failed => self.end = Some(AnswerEnd::Failed),
            // An error that was written before says more.
            ResponseElement::CutShort => _ = self.end.get_or_insert(AnswerEnd::ServerLeft),
            ResponseElement::Undecoded => {
                self.mark_incomplete();
                sink.report_missed_event();
            }
            ResponseElement::Done => self.says_end = true,
            ResponseElement::Unread(count) => server.grpc_messages += count,
            ResponseElement::Unreadable(why) => {
                self.whole = false;
                server.count_unreadable(why);
            }
            // Its owner calls [`Self::end_response`].
            ResponseElement::Ended => {}
        }
    }

    /// Records an event of one request.
    fn record_completion(
        &mut self,
        completion: Completion<'_>,
        limits: &Limits,
        server: &mut Server,
        sink: &mut EventSink<'_>,
    ) {
        self.begun = true;
        // A body is complete by its length.
        self.says_end |= completion.finished || completion.whole;
        if self.is_worker_stream {
            self.writes.record_event(sink.at, &completion);
        }
        let mut name = self.name.take();
        // Events reported earlier under another id keep that id.
        if let Some(name) = name.as_mut().filter(|name| self.parts.is_empty() && name.rid.is_none()) {
            name.rid = server.resolve_rid(&name.context);
        }
        // Both leave their owners meanwhile, because the event borrows its request's id from one of them.
        let ids = std::mem::take(&mut server.response_ids);
        self.report_deliveries(completion, name.as_ref(), &ids, limits, server, sink);
        server.response_ids = ids;
        self.name = name;
    }

    /// Reports the deliveries of an event, under the id that its request has on the hops.
    fn report_deliveries<'c>(
        &mut self,
        mut completion: Completion<'c>,
        name: Option<&'c Named>,
        ids: &'c ResponseIds,
        limits: &Limits,
        server: &mut Server,
        sink: &mut EventSink<'_>,
    ) {
        let rid = match name {
            Some(name) => name.request_id(&completion.rid),
            None if completion.form == ResponseForm::OpenAi => {
                ids.find_request(&completion.rid, completion.choice).map(Cow::Borrowed)
            }
            None => None,
        };
        let shown = rid.map(|rid| std::mem::replace(&mut completion.rid, rid));
        if let (None, Some(shown)) = (name, &shown) {
            // Events before the first frame were reported under the id that the response shows.
            if self.find_part(&completion.rid).is_none() && self.find_part(shown).is_some() {
                self.mark_incomplete();
            }
            let is_compared = server.texts.is_compared(&completion.rid);
            completion.tokens = self.count_tokens(&completion, limits, is_compared, sink);
        }
        let joined = name.is_some_and(|name| name.rid.is_some());
        let by_text = self.count_by_text(&completion, server);
        completion.tokens = by_text.or(completion.tokens);
        let part = self.find_part(&completion.rid);
        let delivery = match (completion.form, completion.tokens) {
            (ResponseForm::Generate | ResponseForm::WorkerStream, _) => {
                server.delivery_of_ids(&completion, part.and_then(|part| part.claimed), joined)
            }
            (_, None) => part.is_none_or(|part| part.is_counted).then(|| delivery_of_text(&completion.rid)),
            // A role, or the usage alone.
            (_, Some(0)) if !completion.finished => None,
            (_, Some(tokens)) => {
                server.deliveries += 1;
                by_text.is_none().then(|| delivery_of_tokens(&completion, tokens))
            }
        };
        if let (None, Some(times)) = (part, self.arrival.filter(|_| self.parts.len() < limits.requests)) {
            sink.emit(What::Arrived(Arrival { rid: &completion.rid, times }));
            if let Some(parent) = self.trace_parent {
                sink.emit(What::Traced(Traced { rid: &completion.rid, parent }));
            }
        }
        if let Some(delivery) = delivery {
            sink.emit(What::Delivered(delivery));
        }
        server.report_by_text(&completion.rid, completion.finished, completion.whole, sink);
        if let Some(part) = self.add_event(&completion, shown.as_deref(), limits)
            && completion.form == ResponseForm::WorkerStream
            && !joined
        {
            server.content.record_received(&mut part.received, completion.ids);
        }
    }

    /// Number of tokens in an event, for engines that count each event's tokens. Prefers continuous usage to ids, and ids to log
    /// probabilities. `None` if the event has text and no count, or no count while its text is compared.
    fn count_tokens(
        &self,
        completion: &Completion<'_>,
        limits: &Limits,
        is_compared: bool,
        sink: &mut EventSink<'_>,
    ) -> Option<u32> {
        let part = self.find_part(&completion.rid);
        if part.is_some_and(|part| !part.is_counted) {
            return None;
        }
        let before = match part {
            Some(part) => part.so_far,
            None => (self.whole && self.parts.len() < limits.requests).then_some(0),
        };
        let listed = completion.tokens.or(completion.logprobs);
        match (completion.so_far, before) {
            (Some(so_far), Some(before)) => so_far.checked_sub(before),
            // The count includes missed events.
            (Some(_), None) if listed.is_none() => {
                sink.report_missed_event();
                Some(0)
            }
            // The role at the start of a chat. At the end it may be a token without text, unless earlier events were counted.
            (None, _)
                if !is_compared
                    && completion.text.is_empty()
                    && (!completion.finished || part.is_some_and(|part| part.tokens > 0)) =>
            {
                Some(listed.unwrap_or(0))
            }
            _ => listed,
        }
    }

    /// Tokens of an event that counts none, by its text. `None` if they are unknown.
    fn count_by_text(&self, completion: &Completion<'_>, server: &mut Server) -> Option<u32> {
        let rid = &*completion.rid;
        let part = self.find_part(rid);
        let counted = part.is_none_or(|part| part.is_counted);
        match completion.form {
            ResponseForm::OpenAi if completion.tokens.is_none() && counted => {}
            ResponseForm::OpenAi if completion.tokens == Some(0) && completion.text.is_empty() => return None,
            ResponseForm::OpenAi if !completion.text.completion => {
                server.texts.collect_unmatched(rid, &completion.text);
                return None;
            }
            ResponseForm::WorkerStream => return None,
            ResponseForm::OpenAi | ResponseForm::Generate | ResponseForm::GrpcText => {
                server.texts.stop_comparison(rid);
                return None;
            }
        }
        let all_observed = part.map_or(self.whole, |part| part.so_far.is_some());
        server.texts.compare_event(rid, &completion.text, completion.finished, all_observed)
    }

    fn find_part(&self, rid: &str) -> Option<&RequestPart> {
        self.parts.iter().find(|part| part.rid == rid)
    }

    /// Adds an event to its request, whose id the response shows as `shown` if it differs. Returns `None` above the limit of requests.
    fn add_event(
        &mut self,
        completion: &Completion<'_>,
        shown: Option<&str>,
        limits: &Limits,
    ) -> Option<&mut RequestPart> {
        let known = self.parts.iter().position(|part| part.rid == completion.rid);
        let only = known.map_or(self.parts.is_empty(), |_| self.parts.len() == 1);
        let part = match known {
            Some(place) => &mut self.parts[place],
            None if self.parts.len() == limits.requests => return None,
            None => self.parts.push_mut(RequestPart {
                rid: completion.rid.to_string(),
                shown: shown.filter(|shown| completion.rid != **shown).unwrap_or_default().to_owned(),
                is_counted: true,
                so_far: self.whole.then_some(0),
                ..RequestPart::default()
            }),
        };
        let new = completion.tokens.unwrap_or(0);
        part.is_counted &= completion.tokens.is_some();
        if !completion.text.tool_calls.is_empty() {
            part.calls.count_calls(completion.text.tool_calls);
        }
        // A count equal to the number of ids means that the ids are cumulative. The first event of an incremental response also matches,
        // with the same result.
        part.tokens = if completion.form != ResponseForm::OpenAi && completion.stated == completion.tokens {
            new
        } else {
            part.tokens.saturating_add(new)
        };
        part.count_event(completion, part.so_far);
        let stated = completion.so_far;
        part.may_lack_tokens |= completion.logprobs.is_some() && stated.is_none() && !completion.text.completion;
        part.so_far = stated.or_else(|| Some(part.so_far?.saturating_add(new)));
        // The final usage of several choices is their sum.
        if completion.form != ResponseForm::OpenAi || only || stated.is_some() {
            part.claimed = completion.stated.or(part.claimed);
        }
        Some(part)
    }

    /// How the response ended, which now is over with `end`. An earlier sign of its end may say more.
    fn settle_end(&self, end: AnswerEnd) -> AnswerEnd {
        match self.end {
            // The client cancelled a response that was complete.
            Some(AnswerEnd::ClientLeft) if end == AnswerEnd::Whole => end,
            // A failed generator may still send its final marker.
            Some(earlier) => earlier,
            None => end,
        }
    }

    /// Why tool calls are not judged whose comparison says `reason`: that the response is not complete explains more.
    fn why_calls_unjudged(&self, end: AnswerEnd, reason: UnjudgedReason) -> UnjudgedReason {
        match end {
            AnswerEnd::ClientLeft | AnswerEnd::ServerLeft | AnswerEnd::Failed => UnjudgedReason::EndedEarly,
            _ if !self.whole || end == AnswerEnd::Unknown => UnjudgedReason::Missed,
            _ => reason,
        }
    }

    /// Ends the response with its last byte or with its connection, and reports an answer for each of its requests.
    pub(super) fn end_response(
        self,
        end: AnswerEnd,
        unacknowledged: Option<u64>,
        server: &mut Server,
        sink: &mut EventSink<'_>,
    ) {
        let end = self.settle_end(end);
        let lacks_end = self.whole && end == AnswerEnd::Whole && !self.says_end;
        // Recorded once for the whole response.
        let mut writes = self.is_worker_stream.then_some(self.writes);
        for part in &self.parts {
            // The events before the first frame named the response by the id that it shows. Its answer has the request's id.
            if !part.rid.is_empty() && self.parts.iter().any(|other| other.shown == part.rid) {
                _ = server.texts.forget_request(&part.rid, false);
                continue;
            }
            let matched_rid = self.match_by_content(part, server);
            if !part.shown.is_empty() {
                server.response_ids.forget_response(&part.shown);
            }
            let ended = self.end_part(part, end, server, sink);
            if let Some(rid) = &matched_rid {
                // A matched stream is still remembered under its own name, so that both ids are reported together.
                server.content.remember_pair(&part.rid, rid);
            } else if self.is_named() {
                server.content.forget_request(&part.rid);
            }
            let rid = matched_rid.as_deref().unwrap_or(&part.rid);
            sink.emit(What::Answered(Answer {
                rid,
                tokens: ended.tokens,
                completion_tokens: part.claimed,
                end,
                short_writes: self.short_writes,
                unacknowledged,
                content: part.content.map(|content| AnswerContent { lacks_end, ..content }),
                tool_calls: ended.tool_calls,
            }));
            if let Some(writes) = writes.take() {
                let context = self.name.as_ref().map(|name| &*name.context);
                server.frontends.worker_ended(context, rid, writes, sink);
            }
        }
    }

    /// Whether a request plane announced its request with the engine's id.
    fn is_named(&self) -> bool {
        self.name.as_ref().is_some_and(|name| name.rid.is_some())
    }

    /// Finds the engine's request by the tokens of a worker's stream that no request plane named, and counts whether the request is known.
    fn match_by_content(&self, part: &RequestPart, server: &mut Server) -> Option<String> {
        if !self.is_worker_stream {
            return None;
        }
        let mut matched_rid = None;
        if !self.is_named()
            && self.whole
            && let Some(claimed) = part.claimed
        {
            matched_rid = server.content.match_stream(&part.received, claimed);
        }
        if self.is_named() || matched_rid.is_some() {
            server.named += 1;
        } else {
            server.unnamed += 1;
        }
        matched_rid
    }

    /// Ends the comparison of a request's text with its tokens, and reports deliveries that only the end of the response confirms.
    fn end_part(&self, part: &RequestPart, end: AnswerEnd, server: &mut Server, sink: &mut EventSink<'_>) -> EndedPart {
        let is_complete = end == AnswerEnd::Whole;
        let mut last_tokens = 0;
        // The events that finish several choices may all name the last one.
        if part.is_counted && is_complete {
            last_tokens = server.texts.compare_end(&part.rid, part.so_far.is_some()).unwrap_or(0);
        }
        server.report_by_text(&part.rid, true, false, sink);
        let compared = server.texts.forget_request(&part.rid, self.whole && is_complete);
        let tool_calls = match compared.tool_calls {
            Ok(calls) => calls,
            Err(reason) => part.calls.as_unjudged(self.why_calls_unjudged(end, reason)),
        };
        if part.is_counted && compared.differs {
            sink.emit(What::Delivered(delivery_of_text(&part.rid)));
        }
        let lacks_tokens = part.may_lack_tokens && part.claimed.is_some_and(|claimed| part.tokens < claimed);
        let is_counted = part.is_counted && !compared.differs && !lacks_tokens;
        if is_counted {
            server.counted += 1;
        } else if !compared.differs {
            server.text_only += 1;
        }
        EndedPart { tokens: (is_counted && self.whole).then(|| part.tokens + last_tokens), tool_calls }
    }
}

/// What is known of a request's part of a response once the response has ended.
struct EndedPart {
    /// Number of delivered tokens; `None` if unknown.
    tokens: Option<u32>,
    tool_calls: Option<ToolCalls>,
}
