//! One response: its events as deliveries, and an answer for each of its requests when it ends.

mod counting;

use std::borrow::Cow;

use trace::event::{
    Answer, AnswerContent, AnswerEnd, Arrival, ArrivalTimes, Delivery, Rejection, ToolCalls, TraceParent, Traced,
    UnjudgedReason, UnknownArrival, What,
};

use super::content::StreamTokens;
use super::event::{Completion, EventSink, ResponseElement, ResponseForm};
use super::frontend::Writes;
use super::names::{AnnouncedStream, ResponseIds};
use super::observed_calls::ObservedCalls;
use super::server::{delivery_of_text, delivery_of_tokens};
use super::{Limits, Server};

/// HTTP status of a stream. It is written before the engine accepts the request, so a refusal is an event.
const STATUS_OF_STREAM: u16 = 200;

/// A response in progress.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about the response")]
pub(super) struct OpenResponse {
    parts: Vec<RequestPart>,
    pub(super) has_begun: bool,
    /// Whether all of it has been observed so far.
    pub(super) is_fully_observed: bool,
    /// When its request reached the server; `None` where that is not observed.
    pub(super) arrival: Option<Result<ArrivalTimes, UnknownArrival>>,
    /// Span of the caller of its request, if the request names one.
    pub(super) trace_parent: Option<TraceParent>,
    short_writes: u32,
    /// The request of a stream, if a request plane announced it.
    announced: Option<AnnouncedStream>,
    /// Whether this is a worker's stream to a frontend.
    is_worker_stream: bool,
    /// Its writes, for the wait in a frontend.
    writes: Writes,
    /// Whether an event says that the response ends: a finish reason or `[DONE]`.
    says_end: bool,
    /// Whether `[DONE]` was written.
    is_done: bool,
    /// It is one body.
    is_body: bool,
    /// Its HTTP status is an error.
    is_rejected: bool,
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
    stated_tokens: Option<u32>,
    /// Number of its tokens up to the last event; `None` if an earlier event was missed.
    tokens_so_far: Option<u32>,
    /// Id that the response shows, if it differs from `rid`.
    shown_id: String,
    /// Tokens of a stream that can only be matched by content.
    stream_tokens: StreamTokens,
    calls: ObservedCalls,
    content: Option<AnswerContent>,
}

impl OpenResponse {
    /// The frontend's id of a stream's request, while the engine's id of it is unknown. `None` from the first event on: later events
    /// keep the id of the first.
    pub(super) fn context_without_rid(&self) -> Option<&str> {
        let announced = self.announced.as_ref().filter(|announced| announced.rid.is_none())?;
        self.parts.is_empty().then_some(&announced.context)
    }

    /// Records that the client has cancelled, unless the response has ended in another way before.
    pub(super) fn record_cancel(&mut self) {
        self.end.get_or_insert(AnswerEnd::ClientLeft);
    }

    /// Records that the socket accepted none or only a part of a write.
    pub(super) fn record_short_write(&mut self) {
        self.short_writes = self.short_writes.saturating_add(1);
    }

    /// Records that events before this point were missed.
    pub(super) fn mark_incomplete(&mut self) {
        self.is_fully_observed = false;
        self.writes.are_all_observed = false;
        self.parts.iter_mut().for_each(|part| part.tokens_so_far = None);
    }

    /// Applies the next element of the response.
    pub(super) fn apply_element(
        &mut self,
        element: ResponseElement<'_>,
        limits: &Limits,
        server: &mut Server,
        sink: &mut EventSink<'_>,
    ) {
        match element {
            ResponseElement::Began => {
                // Short writes before the begin of a connection's first response may be those of its head.
                if self.has_begun {
                    self.short_writes = 0;
                }
                self.has_begun = true;
                self.is_fully_observed = true;
                self.says_end = false;
                self.is_done = false;
                self.is_body = false;
                self.is_rejected = false;
                self.parts.clear();
            }
            ResponseElement::StreamNamed(name) => {
                self.has_begun = true;
                self.is_fully_observed = true;
                self.is_worker_stream = true;
                self.parts.clear();
                self.announced = server.streams.remove(name);
                self.writes = Writes::observed_from_start();
            }
            ResponseElement::Completion(completion) => self.record_completion(completion, limits, server, sink),
            ResponseElement::Rejected(status) => {
                self.is_rejected = true;
                sink.emit(What::Rejected(Rejection { status }));
            }
            ResponseElement::Failed => self.end = Some(AnswerEnd::Failed),
            // An error that was written before says more.
            ResponseElement::CutShort => {
                self.end.get_or_insert(AnswerEnd::ServerLeft);
            }
            ResponseElement::Undecoded => {
                self.mark_incomplete();
                sink.report_missed_event();
            }
            ResponseElement::Done => {
                self.says_end = true;
                self.is_done = true;
            }
            ResponseElement::Unread(count) => server.grpc_messages += count,
            ResponseElement::Unreadable(why) => {
                self.is_fully_observed = false;
                server.count_unreadable(why);
            }
            // Its owner calls [`Self::end_response`].
            ResponseElement::Ended => {}
        }
    }

    /// Records an event of one request, and reports the tokens that it delivers.
    fn record_completion(
        &mut self,
        completion: Completion<'_>,
        limits: &Limits,
        server: &mut Server,
        sink: &mut EventSink<'_>,
    ) {
        self.has_begun = true;
        // A response that is one body needs no finish reason or marker: its length shows its end.
        self.says_end |= completion.finished || completion.is_whole_body;
        self.is_body |= completion.is_whole_body;
        if self.is_worker_stream {
            // The frontend's writes of the same tokens are compared with these times.
            self.writes.record_event(sink.at, &completion);
        }
        self.resolve_announced_rid(server);
        // The event borrows the id of its request from one of these while `self` and `server` change. So both are moved out for this call.
        let announced = self.announced.take();
        let ids = std::mem::take(&mut server.response_ids);
        self.report_deliveries(completion, announced.as_ref(), &ids, limits, server, sink);
        server.response_ids = ids;
        self.announced = announced;
    }

    /// Looks up the engine's id of an announced request before its first event. Events reported earlier under another id keep that id.
    #[inline]
    fn resolve_announced_rid(&mut self, server: &mut Server) {
        let is_first_event = self.parts.is_empty();
        if let Some(announced) = &mut self.announced
            && announced.rid.is_none()
            && is_first_event
        {
            announced.rid = server.resolve_rid(&announced.context);
        }
    }

    /// Reports the tokens that an event delivers, under the id that its request has on the hops: the engine's connections before the
    /// response. `announced`: the response as a stream between processes, if the message that requested it was observed. `ids`: ids on the
    /// hops by those that responses show.
    fn report_deliveries<'c>(
        &mut self,
        mut completion: Completion<'c>,
        announced: Option<&'c AnnouncedStream>,
        ids: &'c ResponseIds,
        limits: &Limits,
        server: &mut Server,
        sink: &mut EventSink<'_>,
    ) {
        let shown_id = replace_shown_id(&mut completion, announced, ids);
        // A stream between processes lists the ids of its tokens.
        if announced.is_none()
            && let Some(shown_id) = &shown_id
        {
            completion.tokens = self.count_under_hop_id(&completion, shown_id, limits, server, sink);
        }
        let is_joined_by_name = announced.is_some_and(|announced| announced.rid.is_some());
        let tokens_by_text = self.count_tokens_by_text(&completion, server);
        completion.tokens = tokens_by_text.or(completion.tokens);
        let part = self.find_part(&completion.rid);
        let is_counted_by_text = tokens_by_text.is_some();
        let delivery = count_delivery_of_event(&completion, part, is_counted_by_text, is_joined_by_name, server);
        let is_new_request = part.is_none() && self.parts.len() < limits.requests;
        if is_new_request {
            self.report_arrival(&completion.rid, sink);
        }
        if let Some(delivery) = delivery {
            sink.emit(What::Delivered(delivery));
        }
        server.report_deliveries_by_text(&completion.rid, completion.finished, completion.is_whole_body, sink);
        if let Some(part) = self.add_event_to_part(&completion, shown_id.as_deref(), limits)
            && completion.form == ResponseForm::WorkerStream
            && !is_joined_by_name
        {
            server.content.add_stream_chunk(&mut part.stream_tokens, completion.ids);
        }
    }

    /// Number of tokens in an event that has got the id of its request on the hops, in place of the `shown_id` of the response. `None` if
    /// an earlier event or this one shows no count.
    #[inline]
    fn count_under_hop_id(
        &mut self,
        completion: &Completion<'_>,
        shown_id: &str,
        limits: &Limits,
        server: &Server,
        sink: &mut EventSink<'_>,
    ) -> Option<u32> {
        // Events before the engine's first frame were reported under the shown id, so they are missing in the count of this one.
        let has_events_under_shown_id = self.find_part(&completion.rid).is_none() && self.find_part(shown_id).is_some();
        if has_events_under_shown_id {
            self.mark_incomplete();
        }
        let is_compared = server.texts.is_compared(&completion.rid);
        self.count_tokens(completion, limits, is_compared, sink)
    }

    /// Reports the arrival of a new request and the span of its caller, as far as they are known.
    #[inline]
    fn report_arrival(&self, rid: &str, sink: &mut EventSink<'_>) {
        let Some(times) = self.arrival else { return };
        sink.emit(What::Arrived(Arrival { rid, times }));
        if let Some(parent) = self.trace_parent {
            sink.emit(What::Traced(Traced { rid, parent }));
        }
    }

    /// The part of the response that belongs to this request. `None` before its first event.
    fn find_part(&self, rid: &str) -> Option<&RequestPart> {
        self.parts.iter().find(|part| part.rid == rid)
    }

    /// Index of the part of the response that belongs to the event's request. Adds the part if this is the request's first event. `None` if
    /// the response has too many requests. `shown_id`: id that the response shows, if the engine's frames have another one.
    fn find_or_add_part(
        &mut self,
        completion: &Completion<'_>,
        shown_id: Option<&str>,
        limits: &Limits,
    ) -> Option<usize> {
        let known_part = self.parts.iter().position(|part| part.rid == completion.rid);
        if known_part.is_some() {
            return known_part;
        }
        if self.parts.len() == limits.requests {
            return None;
        }
        self.parts.push(RequestPart {
            rid: completion.rid.to_string(),
            // Empty if the response shows the same id.
            shown_id: shown_id.filter(|id| completion.rid != **id).unwrap_or_default().to_owned(),
            is_counted: true,
            // Unknown if an earlier event was missed, which may have had tokens of this request.
            tokens_so_far: self.is_fully_observed.then_some(0),
            ..RequestPart::default()
        });
        Some(self.parts.len() - 1)
    }

    /// Adds an event to the part of the response that belongs to its request, and returns that part. `None` if the response has too many
    /// requests. `shown_id`: id that the response shows, if the engine's frames have another one.
    fn add_event_to_part(
        &mut self,
        completion: &Completion<'_>,
        shown_id: Option<&str>,
        limits: &Limits,
    ) -> Option<&mut RequestPart> {
        let index = self.find_or_add_part(completion, shown_id, limits)?;
        let part_count = self.parts.len();
        let part = &mut self.parts[index];
        if !completion.text.tool_calls.is_empty() {
            part.calls.count_calls(completion.text.tool_calls);
        }
        part.add_tokens(completion);
        if states_count_of_part(completion, part_count) {
            part.stated_tokens = completion.stated_tokens.or(part.stated_tokens);
        }
        Some(part)
    }

    /// How the response ended. `end` is how its connection or its body ended. An event of the response, or a cancel by the client, may have
    /// said more before. `unacknowledged_bytes`: number of bytes that the client has not acknowledged, if known.
    fn settle_end(&self, end: AnswerEnd, unacknowledged_bytes: Option<u64>) -> AnswerEnd {
        if let Some(earlier) = self.end {
            // The client cancelled a response that was complete.
            let was_cancelled_late = earlier == AnswerEnd::ClientLeft && end == AnswerEnd::Whole;
            // Otherwise the earlier sign counts: a failed generator may still send its final marker.
            return if was_cancelled_late { end } else { earlier };
        }
        let has_reached_client = unacknowledged_bytes.unwrap_or(0) == 0;
        // Routers close at the final marker, before the end of the body.
        let has_left_at_marker = end == AnswerEnd::ClientLeft && self.is_done && has_reached_client;
        if has_left_at_marker { AnswerEnd::Whole } else { end }
    }

    /// Why tool calls are not judged. An incomplete response explains more than `reason`, which their comparison has given.
    fn why_calls_unjudged(&self, end: AnswerEnd, reason: UnjudgedReason) -> UnjudgedReason {
        match end {
            AnswerEnd::ClientLeft | AnswerEnd::ServerLeft | AnswerEnd::Failed => UnjudgedReason::EndedEarly,
            _ if !self.is_fully_observed || end == AnswerEnd::Unknown => UnjudgedReason::Missed,
            _ => reason,
        }
    }

    /// Ends the response with its last byte or with its connection, and reports an answer for each of its requests. `unacknowledged_bytes`:
    /// number of bytes that the client has not acknowledged, if its connection has ended.
    pub(super) fn end_response(
        self,
        end: AnswerEnd,
        unacknowledged_bytes: Option<u64>,
        server: &mut Server,
        sink: &mut EventSink<'_>,
    ) {
        let end = self.settle_end(end, unacknowledged_bytes);
        if end == AnswerEnd::Failed && self.is_refused_stream() {
            sink.emit(What::Rejected(Rejection { status: STATUS_OF_STREAM }));
        }
        // Recorded once for the whole response.
        let mut writes = self.is_worker_stream.then_some(self.writes);
        for part in &self.parts {
            // Another part has the rest of the same request, and reports the answer.
            if self.is_under_shown_id(part) {
                // Only frees the text kept under this id, so nothing is compared.
                let is_whole = false;
                _ = server.texts.forget_request_and_compare_calls(&part.rid, is_whole);
                continue;
            }
            let matched_rid = self.find_rid_by_tokens(part, server);
            if !part.shown_id.is_empty() {
                server.response_ids.forget_response(&part.shown_id);
            }
            let ended = self.end_part(part, end, server, sink);
            if let Some(rid) = &matched_rid {
                // A matched stream is still remembered under its own name, so that both ids are reported together.
                server.content.remember_matched_ids(&part.rid, rid);
            } else if self.has_announced_rid() {
                // Its id is known, so no stream needs to be matched to this request by its tokens.
                server.content.forget_request(&part.rid);
            }
            let rid = matched_rid.as_deref().unwrap_or(&part.rid);
            sink.emit(What::Answered(Answer {
                rid,
                tokens: ended.tokens,
                completion_tokens: part.stated_tokens,
                end,
                short_writes: self.short_writes,
                unacknowledged: unacknowledged_bytes,
                content: self.content_of_answer(part, end),
                tool_calls: ended.tool_calls,
            }));
            if let Some(writes) = writes.take() {
                let context = self.announced.as_ref().map(|announced| &*announced.context);
                server.frontends.record_worker_end(context, rid, writes, sink);
            }
        }
    }

    /// Whether the part has only the events before the engine's first frame of the request. They named it by the id that the response
    /// shows, because the engine's id was not known yet.
    fn is_under_shown_id(&self, part: &RequestPart) -> bool {
        !part.rid.is_empty() && self.parts.iter().any(|other| other.shown_id == part.rid)
    }

    /// Description of the content that a request got, with what only the end of the response shows.
    fn content_of_answer(&self, part: &RequestPart, end: AnswerEnd) -> Option<AnswerContent> {
        let content = part.content?;
        let has_done_marker = self.is_done;
        Some(AnswerContent {
            lacks_end: self.is_fully_observed && end == AnswerEnd::Whole && !self.says_end,
            // Other choices may have another reason.
            finish: content.finish.filter(|_| self.is_fully_observed),
            // Only streams have the marker.
            done: (self.is_fully_observed && !self.is_body).then_some(has_done_marker),
            ..content
        })
    }

    /// Whether no event of the response names a request, and its status does not say that it has an error.
    fn is_refused_stream(&self) -> bool {
        self.parts.is_empty() && self.is_fully_observed && !self.is_rejected
    }

    /// Whether a request plane announced its request with the engine's id.
    fn has_announced_rid(&self) -> bool {
        self.announced.as_ref().is_some_and(|announced| announced.rid.is_some())
    }

    /// Id of the engine's request whose tokens a worker's stream to a frontend carried, found by comparing tokens. `None` for other
    /// responses, if the stream's request is known by its id, and if no single request has these tokens. Counts whether the request is
    /// known.
    fn find_rid_by_tokens(&self, part: &RequestPart, server: &mut Server) -> Option<String> {
        if !self.is_worker_stream {
            return None;
        }
        if self.has_announced_rid() {
            server.named += 1;
            return None;
        }
        let mut matched_rid = None;
        // With missed events or without a count, the tokens of the stream are not known well enough.
        if self.is_fully_observed
            && let Some(token_count) = part.stated_tokens
        {
            matched_rid = server.content.match_stream_to_request(&part.stream_tokens, token_count);
        }
        match matched_rid {
            Some(_) => server.named += 1,
            None => server.unnamed += 1,
        }
        matched_rid
    }

    /// Ends the comparison of the response's text for a request with the text that the engine sent. Reports deliveries that only the end of
    /// the response confirms. Counts the request by whether its tokens are known. Returns its tokens and tool calls.
    fn end_part(&self, part: &RequestPart, end: AnswerEnd, server: &mut Server, sink: &mut EventSink<'_>) -> EndedPart {
        let is_complete = end == AnswerEnd::Whole;
        let last_tokens = if is_complete { count_last_tokens(part, server) } else { 0 };
        let finished = true;
        let is_whole_body = false;
        server.report_deliveries_by_text(&part.rid, finished, is_whole_body, sink);
        let is_whole = self.is_fully_observed && is_complete;
        let compared = server.texts.forget_request_and_compare_calls(&part.rid, is_whole);
        let tool_calls = match compared.tool_calls {
            Ok(calls) => calls,
            Err(reason) => part.calls.as_unjudged(self.why_calls_unjudged(end, reason)),
        };
        // The text differs from the sent text, so this delivery stands for an unknown number of tokens.
        if part.is_counted && compared.differs {
            sink.emit(What::Delivered(delivery_of_text(&part.rid)));
        }
        let is_counted = part.is_counted && !compared.differs && !part.lacks_tokens();
        if is_counted {
            server.counted += 1;
        } else if !compared.differs {
            server.text_only += 1;
        }
        // The total is unknown if any event was missed or not counted.
        let tokens = if is_counted && self.is_fully_observed { Some(part.tokens + last_tokens) } else { None };
        EndedPart { tokens, tool_calls }
    }
}

/// Number of tokens at the end of a complete response that only its end confirms. A part may lack a finishing event: with several choices,
/// all of these events may name the last one.
fn count_last_tokens(part: &RequestPart, server: &mut Server) -> u32 {
    if !part.is_counted {
        return 0;
    }
    let all_observed = part.tokens_so_far.is_some();
    server.texts.compare_end(&part.rid, all_observed).unwrap_or(0)
}

/// Gives an event the id that its request has on the hops, and returns the id that the response shows. `None`, and no change, if the
/// request has the same id there or is not known.
#[inline]
fn replace_shown_id<'c>(
    completion: &mut Completion<'c>,
    announced: Option<&'c AnnouncedStream>,
    ids: &'c ResponseIds,
) -> Option<Cow<'c, str>> {
    let rid = if let Some(announced) = announced {
        announced.request_id_of(&completion.rid)?
    } else if completion.form == ResponseForm::OpenAi {
        Cow::Borrowed(ids.find_request(&completion.rid, completion.choice)?)
    } else {
        return None;
    };
    Some(std::mem::replace(&mut completion.rid, rid))
}

/// Makes the delivery of an event, and counts it in `server`. `None` if the event has no tokens, or if its deliveries are counted by their
/// text: these are reported apart. `part` has the earlier events of the request.
#[inline]
fn count_delivery_of_event<'c>(
    completion: &'c Completion<'_>,
    part: Option<&RequestPart>,
    is_counted_by_text: bool,
    is_joined_by_name: bool,
    server: &mut Server,
) -> Option<Delivery<'c>> {
    if matches!(completion.form, ResponseForm::Generate | ResponseForm::WorkerStream) {
        let stated_before = part.and_then(|part| part.stated_tokens);
        return server.count_delivery_of_ids(completion, stated_before, is_joined_by_name);
    }
    let Some(tokens) = completion.tokens else {
        // Tokens that no event counts are reported once, by the first such event.
        let is_first_uncounted = part.is_none_or(|part| part.is_counted);
        return if is_first_uncounted { Some(delivery_of_text(&completion.rid)) } else { None };
    };
    // A role, or the usage alone.
    if tokens == 0 && !completion.finished {
        return None;
    }
    server.deliveries += 1;
    if is_counted_by_text { None } else { Some(delivery_of_tokens(completion, tokens)) }
}

/// Whether the count that the event states is that of its request. The final usage of several choices is their sum, and so not that of one
/// part.
#[inline]
fn states_count_of_part(completion: &Completion<'_>, part_count: usize) -> bool {
    let has_continuous_usage = completion.tokens_so_far.is_some();
    completion.form != ResponseForm::OpenAi || part_count == 1 || has_continuous_usage
}

/// What is known of a request's part of a response once the response has ended.
struct EndedPart {
    /// Number of delivered tokens; `None` if unknown.
    tokens: Option<u32>,
    tool_calls: Option<ToolCalls>,
}
