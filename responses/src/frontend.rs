//! Wait of responses in a frontend on the same machine: the worker's response stream and the frontend's HTTP response of one request, joined
//! by the id that both have.
//!
//! A wait is reported only if nothing else explains it. A client that reads slowly, text that the frontend holds back, and tokens of another
//! worker leave it unknown, and are counted.

use std::collections::{HashMap, VecDeque};

use trace::MonoNs;
use trace::event::{FrontendWait, What};

use super::event::{Completion, EventSink, ResponseElement, ResponseForm};
use super::{Unreadable, add_to_count};

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
    Some(to?.since(from?))
}

/// Writes of one response by one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about the response")]
pub(super) struct Writes {
    /// Time of the first write with a part of the output.
    first: Option<MonoNs>,
    /// Time of the write with the finish reason.
    last: Option<MonoNs>,
    /// Number of chunks or events with a part of the output.
    parts: u32,
    /// Whether any part may have tokens. A prefill server writes an empty list.
    tokens: bool,
    /// Whether all of it was observed.
    pub(super) are_all_observed: bool,
    several_choices: bool,
    /// Whether the socket did not accept a write in full at any time.
    short_write: bool,
    /// Whether it did not before the first part.
    short_write_before_first: bool,
}

impl Writes {
    pub(super) fn observed_from_start() -> Self {
        Self { are_all_observed: true, ..Self::default() }
    }

    /// Records a chunk or an event.
    pub(super) fn record_event(&mut self, at: MonoNs, completion: &Completion<'_>) {
        // The usage alone is not a part of the output.
        if completion.tokens == Some(0) && !completion.finished {
            return;
        }
        self.first.get_or_insert(at);
        if completion.finished {
            self.last = Some(at);
        }
        self.parts = self.parts.saturating_add(1);
        self.tokens |= completion.tokens != Some(0);
        let is_other_choice = completion.form == ResponseForm::WorkerStream && completion.rid.contains('#');
        self.several_choices |= completion.choice > 0 || completion.text.elsewhere || is_other_choice;
    }

    /// Records that the socket did not accept a write in full.
    pub(super) fn record_short_write(&mut self) {
        self.short_write = true;
        self.short_write_before_first |= self.first.is_none();
    }
}

/// Responses that a frontend writes on one connection, one after the other.
#[derive(Debug, Default)]
pub(super) struct TimedResponse {
    /// The request's id without the endpoint's prefix; empty until an event shows it.
    id: String,
    pub(super) writes: Writes,
    begun: bool,
    /// Whether the connection carries several responses at once.
    multiplexed: bool,
}

impl TimedResponse {
    /// Times the next element of the connection.
    pub(super) fn time_element(
        &mut self,
        stream: u32,
        element: &ResponseElement<'_>,
        waits: &mut Frontends,
        sink: &mut EventSink<'_>,
    ) {
        if self.multiplexed {
            return;
        }
        // Counted once for the connection.
        if stream > 0 {
            self.multiplexed = true;
            return waits.count_unknown(UnknownWait::Http2);
        }
        match element {
            ResponseElement::Began => self.begin_response(),
            ResponseElement::Completion(completion) if completion.form == ResponseForm::OpenAi => {
                let id = without_prefix(&completion.rid);
                // All events of a response have the same id.
                if self.id.is_empty() && id.len() <= LONGEST_ID {
                    self.id.push_str(id);
                }
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

    /// Begins a response. A short write between responses may be the beginning of this one, and so counts for it.
    fn begin_response(&mut self) {
        let writes_before = if self.begun { Writes::default() } else { self.writes };
        self.id.clear();
        self.begun = true;
        self.writes = Writes {
            short_write: writes_before.short_write,
            short_write_before_first: writes_before.short_write_before_first,
            ..Writes::observed_from_start()
        };
    }

    /// Ends the response, if one is in progress.
    pub(super) fn end_response(&mut self, waits: &mut Frontends, sink: &mut EventSink<'_>) {
        if !self.id.is_empty() {
            waits.frontend_ended(&self.id, self.writes, sink);
        }
        self.id.clear();
        self.writes = Writes::default();
        self.begun = false;
    }
}

/// The frontend's id of a request: a response's id without the prefix of its endpoint.
fn without_prefix(id: &str) -> &str {
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
    waiting: HashMap<String, (MonoNs, Ended)>,
    /// The latest ids, oldest first.
    order: VecDeque<String>,
    /// Number of response streams that ended.
    pub streams: u64,
    /// Time of the latest end of a stream.
    latest: MonoNs,
    /// Number of unknown waits by reason; each reason has one entry.
    unknown: Vec<(UnknownWait, u64)>,
}

/// The side that has ended.
#[derive(Clone, Debug)]
enum Ended {
    Worker {
        rid: String,
        writes: Writes,
    },
    Frontend(Writes),
    /// Two streams of workers.
    Workers,
}

impl Frontends {
    /// Records the end of a worker's stream. `id` is the frontend's id of the request, `rid` the engine's.
    pub(super) fn worker_ended(&mut self, id: Option<&str>, rid: &str, writes: Writes, sink: &mut EventSink<'_>) {
        self.streams += 1;
        self.latest = self.latest.max(sink.at);
        if !self.observed {
            return;
        }
        let Some(id) = id.filter(|id| id.len() <= LONGEST_ID) else {
            return self.count_unknown(UnknownWait::Unnamed);
        };
        match self.waiting.remove(id).map(|(_, ended)| ended) {
            Some(Ended::Frontend(frontend)) => self.join_sides(rid, &writes, &frontend, sink),
            // With two streams of one id, it is unknown whose tokens the response has.
            Some(Ended::Worker { .. } | Ended::Workers) => self.keep_ended(sink.at, id, Ended::Workers),
            None => {
                let rid = rid.to_owned();
                self.keep_ended(sink.at, id, Ended::Worker { rid, writes });
            }
        }
    }

    /// Records that a response of the frontend has ended, and joins it with that of the worker if it ended before.
    fn frontend_ended(&mut self, id: &str, writes: Writes, sink: &mut EventSink<'_>) {
        match self.waiting.remove(id).map(|(_, ended)| ended) {
            Some(Ended::Worker { rid, writes: worker }) => self.join_sides(&rid, &worker, &writes, sink),
            Some(Ended::Workers) => self.count_unknown(UnknownWait::OtherWorker),
            Some(Ended::Frontend(_)) | None => self.keep_ended(sink.at, id, Ended::Frontend(writes)),
        }
    }

    /// Keeps the side that ended first until the other one has ended. Beyond the limit, the oldest one is forgotten.
    fn keep_ended(&mut self, at: MonoNs, id: &str, ended: Ended) {
        if self.order.len() == MAX_WAITING
            && let Some(oldest) = self.order.pop_front()
            // The responses of other workers are not expected here.
            && let Some((_, Ended::Worker { .. } | Ended::Workers)) = self.waiting.remove(&oldest)
        {
            self.count_unknown(UnknownWait::NoResponse);
        }
        self.waiting.insert(id.to_owned(), (at, ended));
        self.order.push_back(id.to_owned());
    }

    /// Reports how long the frontend held the first and the last token back. Responses that are not comparable are counted with the reason.
    fn join_sides(&mut self, rid: &str, worker: &Writes, frontend: &Writes, sink: &mut EventSink<'_>) {
        if let Some(why) = why_unusable(worker, frontend) {
            return self.count_unknown(why);
        }
        let has_same_parts = frontend.parts == worker.parts;
        // With other parts, the first ones of both sides may hold different tokens. After a short write, the client held the token back.
        let mut first_token_ns = None;
        if has_same_parts && !frontend.short_write_before_first {
            first_token_ns = ns_between(worker.first, frontend.first);
        }
        let mut last_token_ns = None;
        if !frontend.short_write {
            last_token_ns = ns_between(worker.last, frontend.last);
        }
        // One reason for each response, the most certain one.
        if frontend.short_write {
            self.count_unknown(UnknownWait::SlowClient);
        } else if last_token_ns.is_none() {
            self.count_unknown(UnknownWait::EndedEarly);
        } else if !has_same_parts {
            self.count_unknown(UnknownWait::HeldBack);
        }
        if first_token_ns.or(last_token_ns).is_some() {
            sink.emit(What::FrontendWait(FrontendWait { rid, first_token_ns, last_token_ns }));
        }
    }

    fn count_unknown(&mut self, why: UnknownWait) {
        add_to_count(&mut self.unknown, why, 1);
    }

    /// Describes the waits that are not known, with counts.
    pub fn degraded(&self) -> Vec<String> {
        let mut unknown = self.unknown.clone();
        let mut overdue = 0;
        for (ended_at, ended_side) in self.waiting.values() {
            let lacks_response = !matches!(ended_side, Ended::Frontend(_));
            // A younger response may still be written.
            if lacks_response && self.latest.since(*ended_at) >= OVERDUE_NS {
                overdue += 1;
            }
        }
        if overdue > 0 {
            add_to_count(&mut unknown, UnknownWait::NoResponse, overdue);
        }
        unknown
            .into_iter()
            .map(|(why, times)| format!("frontend: the wait of {times} responses is not known: {why}"))
            .collect()
    }
}

/// Reason why the two sides do not belong together.
fn why_unusable(worker: &Writes, frontend: &Writes) -> Option<UnknownWait> {
    if !(worker.are_all_observed && frontend.are_all_observed) {
        Some(UnknownWait::Partial)
    } else if worker.several_choices || frontend.several_choices {
        Some(UnknownWait::SeveralChoices)
    } else if !worker.tokens || frontend.parts > worker.parts {
        Some(UnknownWait::OtherWorker)
    } else {
        None
    }
}
