//! Wait of responses in a frontend on the same machine: the worker's response stream and the frontend's HTTP response of one request,
//! joined by the id that both have.
//!
//! A wait is reported only if nothing else explains it. A client that reads slowly, text that the frontend holds back, and tokens of
//! another worker leave it unknown, and are counted.

use std::collections::{HashMap, VecDeque};

use trace::MonoNs;
use trace::event::{FrontendWait, What};

use super::event::{Completion, EventSink, ResponseElement, ResponseForm};
use super::{Unreadable, add_to_count_of_reason};

/// Maximum number of half-joined responses: one side has ended, the other has not.
const MAX_WAITING: usize = 16_384;
/// Longest id that is kept, in bytes. Frontends use UUIDs.
const LONGEST_ID: usize = 128;

/// Reason why a wait is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownWait {
    /// The worker's stream does not show the frontend's id of its request.
    #[error("the worker's stream does not show the frontend's request id")]
    Unnamed,
    /// No observed frontend has written a response with the id of the stream.
    #[error("no observed frontend wrote a response with this id")]
    NoResponse,
    /// A part of the response was not observed.
    #[error("a part of the response was not observed")]
    Partial,
    /// The response has several choices.
    #[error("the response has several choices")]
    SeveralChoices,
    /// The response has tokens of another worker.
    #[error("another worker wrote a part of the response")]
    OtherWorker,
    /// The response has fewer events than the stream has chunks, so the frontend may have held text back. Concerns the first token.
    #[error("the frontend may have held back text before the first event")]
    HeldBack,
    /// The client read more slowly than the frontend wrote.
    #[error("the client read more slowly than the frontend wrote")]
    SlowClient,
    /// The response ended before its last token.
    #[error("the response ended before its last token")]
    EndedEarly,
    /// Responses share an HTTP/2 connection, so a slow client is not visible.
    #[error("the frontend's connection is HTTP/2")]
    Http2,
    /// A connection of the frontend cannot be read.
    #[error("the frontend's connection: {0}")]
    Unreadable(Unreadable),
}

/// Nanoseconds between two times; `None` if one of them is unknown.
fn ns_between(from: Option<MonoNs>, to: Option<MonoNs>) -> Option<u64> {
    let from = from?;
    let to = to?;
    Some(to.since(from))
}

/// Nanoseconds for which the frontend held the first token back. `None` if that is not the only explanation of the difference.
fn first_token_wait(worker: &Writes, frontend: &Writes) -> Option<u64> {
    // With another number of parts, the first parts of both sides may hold different tokens.
    let has_same_parts = frontend.parts == worker.parts;
    // After a short write, the client held the token back.
    if !has_same_parts || frontend.has_short_write_before_first {
        return None;
    }
    ns_between(worker.first_part_at, frontend.first_part_at)
}

/// Nanoseconds for which the frontend held the last token back. `None` if the client may have held it back, or one side has not finished.
fn last_token_wait(worker: &Writes, frontend: &Writes) -> Option<u64> {
    if frontend.has_short_write {
        return None;
    }
    ns_between(worker.finished_at, frontend.finished_at)
}

/// Writes of one response by one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about the response")]
pub(super) struct Writes {
    /// Time of the first write with a part of the output.
    first_part_at: Option<MonoNs>,
    /// Time of the write with the finish reason.
    finished_at: Option<MonoNs>,
    /// Number of chunks or events with a part of the output.
    parts: u32,
    /// Whether any part may have tokens. A prefill server writes an empty list.
    may_have_tokens: bool,
    /// Whether all of it was observed.
    pub(super) are_all_observed: bool,
    has_several_choices: bool,
    /// Whether the socket did not accept a write in full at any time.
    has_short_write: bool,
    /// Whether that happened before the first part.
    has_short_write_before_first: bool,
}

impl Writes {
    /// No write yet, of a response whose beginning is observed.
    pub(super) fn observed_from_start() -> Self {
        Self { are_all_observed: true, ..Self::default() }
    }

    /// Records the write of a chunk or an event at the time `at`.
    pub(super) fn record_event(&mut self, at: MonoNs, completion: &Completion<'_>) {
        // The usage alone is not a part of the output.
        if completion.tokens == Some(0) && !completion.finished {
            return;
        }
        self.first_part_at.get_or_insert(at);
        if completion.finished {
            self.finished_at = Some(at);
        }
        self.parts = self.parts.saturating_add(1);
        self.may_have_tokens |= completion.tokens != Some(0);
        // The id of a choice other than the first ends with `#` and its index.
        let is_other_choice = completion.form == ResponseForm::WorkerStream && completion.rid.contains('#');
        // An event with several choices counts as one with text elsewhere.
        self.has_several_choices |= completion.choice > 0 || completion.text.elsewhere || is_other_choice;
    }

    /// Records that the socket did not accept a write in full.
    pub(super) fn record_short_write(&mut self) {
        self.has_short_write = true;
        self.has_short_write_before_first |= self.first_part_at.is_none();
    }
}

/// Responses that a frontend writes on one connection, one after the other.
#[derive(Debug, Default)]
pub(super) struct TimedResponse {
    /// The request's id without the endpoint's prefix; empty until an event shows it.
    id: String,
    pub(super) writes: Writes,
    /// Whether the head of the response was written.
    has_begun: bool,
    /// Whether the connection carries several responses at once.
    is_multiplexed: bool,
}

impl TimedResponse {
    /// Records the time of the connection's next element, such as an event of a response, on this HTTP/2 stream (0 for other protocols). At
    /// the end of the response, passes its times to `waits`.
    pub(super) fn record_element_time(
        &mut self,
        stream: u32,
        element: &ResponseElement<'_>,
        waits: &mut Frontends,
        sink: &mut EventSink<'_>,
    ) {
        // Already counted as unknown.
        if self.is_multiplexed {
            return;
        }
        // Only HTTP/2 has streams. Its waits are unknown, which is counted once for the connection.
        if stream > 0 {
            self.is_multiplexed = true;
            return waits.count_unknown(UnknownWait::Http2);
        }
        match element {
            ResponseElement::Began => self.begin_response(),
            ResponseElement::Completion(completion) if completion.form == ResponseForm::OpenAi => {
                self.keep_id(&completion.rid);
                self.writes.record_event(sink.at, completion);
            }
            ResponseElement::Undecoded => self.writes.are_all_observed = false,
            ResponseElement::Ended => self.end_response(waits, sink),
            ResponseElement::Unreadable(why) if why.hides_responses() => {
                waits.count_unknown(UnknownWait::Unreadable(*why));
            }
            _ => {}
        }
    }

    /// Begins a response. A short write between responses, one that the socket did not accept in full, may be the beginning of this one,
    /// and so counts for it.
    fn begin_response(&mut self) {
        // The writes so far belong to the previous response if it has begun and not ended.
        let writes_before = if self.has_begun { Writes::default() } else { self.writes };
        self.id.clear();
        self.has_begun = true;
        self.writes = Writes {
            has_short_write: writes_before.has_short_write,
            has_short_write_before_first: writes_before.has_short_write_before_first,
            ..Writes::observed_from_start()
        };
    }

    /// Keeps the id that the first event of the response shows. All of its events have the same one.
    #[inline]
    fn keep_id(&mut self, shown_id: &str) {
        let id = strip_endpoint_prefix(shown_id);
        if self.id.is_empty() && id.len() <= LONGEST_ID {
            self.id.push_str(id);
        }
    }

    /// Ends the response, if one is in progress, and passes its times to `waits` if its id is known.
    pub(super) fn end_response(&mut self, waits: &mut Frontends, sink: &mut EventSink<'_>) {
        if !self.id.is_empty() {
            waits.record_frontend_end(&self.id, self.writes, sink);
        }
        self.id.clear();
        self.writes = Writes::default();
        self.has_begun = false;
    }
}

/// The frontend's id of a request: a response's id without the prefix of its endpoint.
fn strip_endpoint_prefix(id: &str) -> &str {
    let stripped = id.strip_prefix("chatcmpl-").or_else(|| id.strip_prefix("cmpl-"));
    stripped.unwrap_or(id)
}

/// Time after which the missing end of a response is reported.
const OVERDUE_NS: u64 = 10_000_000_000;

/// Half-joined responses by the frontend's id, and counters.
#[derive(Clone, Debug, Default)]
pub struct Frontends {
    /// Whether responses of any frontend are observed.
    pub observed: bool,
    waiting: HashMap<String, EndedSide>,
    /// The latest ids, oldest first.
    order: VecDeque<String>,
    /// Number of response streams that ended.
    pub streams: u64,
    /// Time of the latest end of a stream.
    last_stream_end: MonoNs,
    /// Number of unknown waits by reason; each reason has one entry.
    unknown: Vec<(UnknownWait, u64)>,
}

/// The side of a response that ended first.
#[derive(Clone, Debug)]
struct EndedSide {
    ended_at: MonoNs,
    side: ResponseSide,
}

#[derive(Clone, Debug)]
enum ResponseSide {
    Worker {
        rid: String,
        writes: Writes,
    },
    Frontend(Writes),
    /// Two streams of workers.
    Workers,
}

impl Frontends {
    /// Records the end of a worker's stream of tokens to a frontend. Joins it with the frontend's response to the client if that has ended
    /// before, or else keeps it. `frontend_id` is the frontend's id of the request, `rid` the engine's.
    pub(super) fn record_worker_end(
        &mut self,
        frontend_id: Option<&str>,
        rid: &str,
        writes: Writes,
        sink: &mut EventSink<'_>,
    ) {
        self.streams += 1;
        self.last_stream_end = self.last_stream_end.max(sink.at);
        // Without an observed frontend, there are no responses to join the streams with.
        if !self.observed {
            return;
        }
        let Some(id) = frontend_id.filter(|id| id.len() <= LONGEST_ID) else {
            return self.count_unknown(UnknownWait::Unnamed);
        };
        match self.waiting.remove(id).map(|ended| ended.side) {
            Some(ResponseSide::Frontend(frontend)) => self.join_sides(rid, &writes, &frontend, sink),
            // With two streams of one id, it is unknown whose tokens the response has.
            Some(ResponseSide::Worker { .. } | ResponseSide::Workers) => {
                self.keep_ended_side(sink.at, id, ResponseSide::Workers);
            }
            None => {
                let rid = rid.to_owned();
                self.keep_ended_side(sink.at, id, ResponseSide::Worker { rid, writes });
            }
        }
    }

    /// Records the end of a frontend's response. Joins it with the worker's stream of the same request if that has ended before, or else
    /// keeps it. `frontend_id` is the frontend's id of the request.
    fn record_frontend_end(&mut self, frontend_id: &str, writes: Writes, sink: &mut EventSink<'_>) {
        match self.waiting.remove(frontend_id).map(|ended| ended.side) {
            Some(ResponseSide::Worker { rid, writes: worker }) => self.join_sides(&rid, &worker, &writes, sink),
            Some(ResponseSide::Workers) => self.count_unknown(UnknownWait::OtherWorker),
            // The latest of several responses with one id is kept.
            Some(ResponseSide::Frontend(_)) | None => {
                self.keep_ended_side(sink.at, frontend_id, ResponseSide::Frontend(writes));
            }
        }
    }

    /// Keeps the side that ended first until the other one has ended. Beyond the limit, the oldest one is forgotten.
    fn keep_ended_side(&mut self, ended_at: MonoNs, id: &str, side: ResponseSide) {
        if self.order.len() == MAX_WAITING {
            self.forget_oldest();
        }
        self.waiting.insert(id.to_owned(), EndedSide { ended_at, side });
        self.order.push_back(id.to_owned());
    }

    /// Forgets the oldest side. Counts the wait of a worker's stream as unknown.
    fn forget_oldest(&mut self) {
        let Some(oldest) = self.order.pop_front() else { return };
        // `None` if both sides have ended, and so were joined.
        let side = self.waiting.remove(&oldest).map(|ended| ended.side);
        // A frontend also writes responses of workers that are not observed, so a missing stream is nothing unknown.
        if let Some(ResponseSide::Worker { .. } | ResponseSide::Workers) = side {
            self.count_unknown(UnknownWait::NoResponse);
        }
    }

    /// Reports how long a frontend held the first and the last token of a request back, between the writes of the `worker` and those of the
    /// `frontend`. Counts the reason if that is not known.
    fn join_sides(&mut self, rid: &str, worker: &Writes, frontend: &Writes, sink: &mut EventSink<'_>) {
        if let Some(why) = why_not_comparable(worker, frontend) {
            return self.count_unknown(why);
        }
        let first_token_ns = first_token_wait(worker, frontend);
        let last_token_ns = last_token_wait(worker, frontend);
        // A wait that is missing is counted with one reason, the most certain one.
        if frontend.has_short_write {
            self.count_unknown(UnknownWait::SlowClient);
        } else if last_token_ns.is_none() {
            self.count_unknown(UnknownWait::EndedEarly);
        } else if frontend.parts != worker.parts {
            self.count_unknown(UnknownWait::HeldBack);
        }
        if first_token_ns.or(last_token_ns).is_some() {
            sink.emit(What::FrontendWait(FrontendWait { rid, first_token_ns, last_token_ns }));
        }
    }

    /// Counts a response whose wait is unknown.
    fn count_unknown(&mut self, why: UnknownWait) {
        add_to_count_of_reason(&mut self.unknown, why, 1);
    }

    /// Number of streams whose response by a frontend is overdue. A younger one may still be written.
    fn count_overdue_responses(&self) -> u64 {
        let mut overdue = 0;
        for EndedSide { ended_at, side } in self.waiting.values() {
            let lacks_response = !matches!(side, ResponseSide::Frontend(_));
            if lacks_response && self.last_stream_end.since(*ended_at) >= OVERDUE_NS {
                overdue += 1;
            }
        }
        overdue
    }

    /// Describes the waits that are not known, with counts.
    pub fn degraded_lines(&self) -> Vec<String> {
        let mut unknown = self.unknown.clone();
        let overdue = self.count_overdue_responses();
        if overdue > 0 {
            add_to_count_of_reason(&mut unknown, UnknownWait::NoResponse, overdue);
        }
        unknown
            .into_iter()
            .map(|(why, times)| format!("frontend: the wait of {times} responses is not known: {why}"))
            .collect()
    }
}

/// Why the times of the two sides cannot be compared; `None` if they can.
fn why_not_comparable(worker: &Writes, frontend: &Writes) -> Option<UnknownWait> {
    if !(worker.are_all_observed && frontend.are_all_observed) {
        Some(UnknownWait::Partial)
    } else if worker.has_several_choices || frontend.has_several_choices {
        Some(UnknownWait::SeveralChoices)
    // The tokens are another worker's if this one has sent none, or fewer chunks than the frontend has written events.
    } else if !worker.may_have_tokens || frontend.parts > worker.parts {
        Some(UnknownWait::OtherWorker)
    } else {
        None
    }
}
