//! Knowledge about one server, from which its events become deliveries.

use adapter::decode::ReadResponseId;
use trace::engine::Mode;
use trace::event::{Delivery, Frame, Kind, Response, What};

use super::content::ContentMatcher;
use super::event::{Completion, EventSink, ResponseForm};
use super::frontend::Frontends;
use super::names::{AnnouncedStream, MAX_WAITING, ResponseIds};
use super::recent::Recent;
use super::text::Texts;
use super::{Unreadable, add_to_count_of_reason};

/// Index of the first choice of a response.
const FIRST_CHOICE: u32 = 0;

/// Knowledge about one server and counters over all its connections.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// Output mode of the tokenizer, if known in advance.
    pub mode: Option<Mode>,
    /// Output mode that the last conclusive response showed.
    observed_mode: Option<Mode>,
    /// Number of deliveries reported.
    pub deliveries: u64,
    /// Number of answers whose tokens were counted.
    pub counted: u64,
    /// Number of answers with text only, whose tokens cannot be counted.
    pub text_only: u64,
    /// Number of unreadable connections and bodies by reason; each reason has one entry.
    pub unreadable: Vec<(Unreadable, u64)>,
    /// Number of gRPC messages that were not read.
    pub(super) grpc_messages: u64,
    /// Set if the plain bytes of TLS connections are observed as well, so that their encrypted writes hide nothing.
    pub tls: Option<Tls>,
    /// Number of response streams whose engine request id is known.
    pub named: u64,
    /// Number of response streams whose engine request id is unknown.
    pub unnamed: u64,
    /// Requests of streams that were announced and have not begun, by the names of the streams.
    pub(super) streams: Recent<AnnouncedStream>,
    /// The engine's request ids by the frontends' ids, from the worker's log.
    pub(super) logged_rids: Recent<String>,
    /// Matching of response streams to requests by their tokens.
    pub content: ContentMatcher,
    /// Requests of responses that show another id than the hops.
    pub(super) response_ids: ResponseIds,
    /// Waits in frontends, for response streams.
    pub frontends: Frontends,
    /// Comparison of text, for responses whose events count no tokens.
    pub texts: Texts,
}

/// Numbers of TLS connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Connections whose plain bytes were observed.
    pub plain: u64,
    /// Connections whose encrypted bytes were observed.
    encrypted: u64,
}

impl Tls {
    /// Number of connections that hide their responses, because another library encrypts them.
    fn hidden_connections(self) -> u64 {
        // Where plain bytes are seen, the same connections are also seen encrypted, at their sockets.
        if self.plain == 0 { self.encrypted } else { 0 }
    }
}

impl Server {
    /// Creates a server whose output mode is known in advance, if given.
    pub fn new(mode: Option<Mode>) -> Self {
        Self { mode, ..Self::default() }
    }

    /// Records a frame before its tokens are delivered. `read_response_id`: for an engine whose responses show other ids than its frames.
    pub fn record_frame(&mut self, frame: &Frame<'_>, read_response_id: Option<ReadResponseId>) {
        // Response streams that are matched by their tokens list ids, so no text is compared.
        if !self.content.is_enabled() {
            self.texts.record_frame(frame);
        }
        // The ids of responses and the tokens to match are read only from frames with token ids.
        if frame.kind != Kind::TokenIds {
            return;
        }
        if let Some(read_response_id) = read_response_id {
            self.response_ids.record_requests(read_response_id, frame.chunks);
        }
        if self.content.is_enabled() {
            frame.chunks.iter().for_each(|chunk| self.content.record_chunk(chunk));
        }
    }

    /// Counts an unreadable connection or body. TLS connections are counted apart if plain bytes of such connections are observed as well.
    pub fn count_unreadable(&mut self, why: Unreadable) {
        if let (Unreadable::Tls, Some(tls)) = (why, &mut self.tls) {
            tls.encrypted += 1;
            return;
        }
        add_to_count_of_reason(&mut self.unreadable, why, 1);
    }

    /// Records a request that a frontend has announced to a worker. `subject`: name of the stream that will answer it. `context`: the
    /// frontend's id of the request. `rid`: the engine's id, if known.
    pub fn record_announced_stream(&mut self, subject: &str, context: &str, rid: Option<&str>) {
        let announced =
            AnnouncedStream { subject: subject.to_owned(), context: context.to_owned(), rid: rid.map(str::to_owned) };
        self.streams.insert(subject, announced, MAX_WAITING);
    }

    /// Records the engine's id of the request `context`, from the worker's log. Call this before the request's first token.
    pub fn record_logged_rid(&mut self, context: &str, rid: &str) {
        self.logged_rids.insert(context, rid.to_owned(), MAX_WAITING);
    }

    /// Whether [`Self::resolve_rid`] would find the engine's id of the request `context`.
    pub(super) fn knows_rid(&self, context: &str) -> bool {
        self.logged_rids.values.contains_key(context) || self.response_ids.find_request(context, FIRST_CHOICE).is_some()
    }

    /// Finds the engine's id of the request `context` in the worker's log, or in frames whose ids contain the context. Forgets an id of the
    /// log. `None` if the id is unknown.
    pub(super) fn resolve_rid(&mut self, context: &str) -> Option<String> {
        let logged = self.logged_rids.remove(context);
        logged.or_else(|| self.response_ids.find_request(context, FIRST_CHOICE).map(str::to_owned))
    }

    /// Makes a delivery of an event with token ids: the number of tokens that it delivers to the client. Counts it. `stated_before`: token
    /// count in the previous event of the response. `is_joined_by_name`: the name of a worker's stream leads to its request. `None` if the
    /// event has no token ids or no count, or if its request is not known.
    pub(super) fn count_delivery_of_ids<'a>(
        &mut self,
        completion: &'a Completion<'_>,
        stated_before: Option<u32>,
        is_joined_by_name: bool,
    ) -> Option<Delivery<'a>> {
        let stated = completion.stated_tokens;
        match completion.form {
            ResponseForm::WorkerStream if is_joined_by_name => {
                self.deliveries += 1;
                let tokens = completion.tokens?;
                Some(Delivery { completion_tokens: stated, ..delivery_of_tokens(completion, tokens) })
            }
            ResponseForm::Generate => {
                let event = GenerateEvent::new(completion, stated_before)?;
                // Whether the event has only new tokens, or all so far.
                let mode = self.mode_of_delivery(event.shown_mode);
                // An event that repeats the count of the last one has no new tokens, so it shows no mode for later events.
                if stated != stated_before {
                    self.observed_mode = event.shown_mode.or(self.observed_mode);
                }
                self.deliveries += 1;
                let tokens = event.tokens_when_made(mode, stated);
                Some(Delivery { mode, completion_tokens: stated, ..delivery_of_tokens(completion, tokens) })
            }
            _ => None,
        }
    }

    /// Output mode of a delivery whose event shows `mode_of_event`.
    fn mode_of_delivery(&self, mode_of_event: Option<Mode>) -> Mode {
        // An engine known to be cumulative stays cumulative, even if one event has too few ids.
        if self.mode == Some(Mode::Cumulative) {
            return Mode::Cumulative;
        }
        // Otherwise the event decides. If it shows no mode, the mode that is known in advance or from earlier responses is taken.
        mode_of_event.or(self.mode).or(self.observed_mode).unwrap_or(Mode::Cumulative)
    }

    /// Reports the deliveries of a request that [`Texts`] has counted by their text. `finished`: the last of them finishes the request.
    /// `is_whole_body`: the response does not stream.
    pub(super) fn report_deliveries_by_text(
        &mut self,
        rid: &str,
        finished: bool,
        is_whole_body: bool,
        sink: &mut EventSink<'_>,
    ) {
        let mut ready = self.texts.take_ready_deliveries();
        while let Some(carried) = ready.next() {
            let is_last = ready.as_slice().is_empty();
            let delivery = Delivery {
                finished: finished && is_last,
                response: if is_whole_body { Response::Whole } else { Response::Text },
                without_text: carried.without_text,
                ..Delivery::new(rid, carried.tokens, Some(carried.completion_tokens))
            };
            sink.emit(What::Delivered(delivery));
        }
    }

    /// Whether deliveries are observable. They are not if all traffic is encrypted or carries text only.
    pub fn shows_deliveries(&self) -> bool {
        let has_hidden_connections = self.tls.is_some_and(|tls| tls.hidden_connections() > 0);
        let has_hidden_responses = self.text_only > 0
            || has_hidden_connections
            || self.unreadable.iter().any(|(why, _)| why.hides_responses());
        self.deliveries > 0 || !has_hidden_responses
    }

    /// Describes the traffic that was not observable, with counts: one line for each cause.
    pub fn degraded_lines(&self) -> Vec<String> {
        let mut degraded = Vec::new();
        for (why, times) in self.unreadable.iter().filter(|(why, _)| why.hides_responses()) {
            let hint = match why {
                Unreadable::Tls => "; run with --tls".to_owned(),
                Unreadable::Grpc => format!(" ({} messages)", self.grpc_messages),
                _ => String::new(),
            };
            degraded
                .push(format!("egress: cannot read the deliveries of {times} connections or responses: {why}{hint}"));
        }
        if let Some(hidden) = self.tls.map(Tls::hidden_connections).filter(|hidden| *hidden > 0) {
            degraded.push(format!(
                "egress: cannot read the deliveries of {hidden} connections: another library than OpenSSL encrypts them"
            ));
        }
        if self.text_only > 0 {
            degraded.push(format!(
                "egress: {} responses carried text without token ids; their number of delivered tokens is not observable",
                self.text_only
            ));
        }
        degraded.extend(self.texts.differences.degraded_lines());
        if self.texts.evicted > 0 {
            degraded.push(format!(
                "egress: the text of {} requests was evicted to free memory; their responses are not judged",
                self.texts.evicted
            ));
        }
        let content = &self.content;
        if content.ambiguous + content.unknown > 0 {
            degraded.push(format!(
                "egress: by content, {} response streams to a frontend match several requests of the engine and {} match none; {} requests were evicted to free memory",
                content.ambiguous, content.unknown, content.evicted
            ));
        }
        if self.unnamed > 0 {
            degraded.push(format!(
                "egress: {} response streams to a frontend do not identify their request of the engine: each is judged only by its own sums",
                self.unnamed
            ));
        }
        degraded
    }
}

/// Tokens of an event of the engine's own endpoint.
struct GenerateEvent {
    /// Number of tokens that the event lists, or that its text has.
    tokens: u32,
    /// Output mode that the event shows, if it shows one.
    shown_mode: Option<Mode>,
}

impl GenerateEvent {
    /// Tokens of this event. `stated_before`: token count in the previous event of the response. `None` if the event has neither ids nor a
    /// count.
    #[inline]
    fn new(completion: &Completion<'_>, stated_before: Option<u32>) -> Option<Self> {
        let stated = completion.stated_tokens;
        let Some(tokens) = completion.tokens else {
            // Up to 0.4.10 an event without ids has the whole text so far, which includes that of earlier tokens.
            return Some(Self { tokens: stated?, shown_mode: Some(Mode::Cumulative) });
        };
        let shown_mode = stated.and_then(|count| mode_shown_by(tokens, count, stated_before));
        Some(Self { tokens, shown_mode })
    }

    /// Number of tokens that the event had when the engine made it: no more than it states. From 0.5.11 on a cumulative event refers to the
    /// engine's own list, which may grow before the event is written.
    #[inline]
    fn tokens_when_made(&self, mode: Mode, stated: Option<u32>) -> u32 {
        match stated {
            Some(count) if mode == Mode::Cumulative => self.tokens.min(count),
            _ => self.tokens,
        }
    }
}

/// Delivery of an event that lists the ids of its new tokens.
pub(super) fn delivery_of_tokens<'a>(completion: &'a Completion<'_>, tokens: u32) -> Delivery<'a> {
    let response = if completion.is_whole_body { Response::Whole } else { Response::Streamed };
    Delivery { finished: completion.finished, response, ..Delivery::new(&completion.rid, tokens, None) }
}

/// Delivery for the first event of a text-only response. It stands for tokens whose number is unknown.
pub(super) fn delivery_of_text(rid: &str) -> Delivery<'_> {
    Delivery { mode: Mode::Cumulative, response: Response::Text, ..Delivery::new(rid, 0, None) }
}

/// Whether the events of a response list all tokens so far (cumulative) or only the new ones (incremental), as shown by an event with
/// `tokens` ids that states `count` tokens so far. `count_before`: count that the previous event stated. `None` if both are possible: no
/// ids, or all tokens in one event.
fn mode_shown_by(tokens: u32, count: u32, count_before: Option<u32>) -> Option<Mode> {
    if tokens == 0 {
        return None;
    }
    // More ids than new tokens.
    let lists_earlier_tokens = count_before.is_some_and(|before| tokens > count.saturating_sub(before));
    // A cumulative list may lack tokens from before the request was known, but not most of them.
    if lists_earlier_tokens && tokens > count / 2 {
        Some(Mode::Cumulative)
    } else if tokens < count {
        Some(Mode::Incremental)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_inferred_from_token_counts_where_possible() {
        let (new, all) = (Some(Mode::Incremental), Some(Mode::Cumulative));
        // First events: everything at once, or the last of several queued chunks.
        assert_eq!(
            (mode_shown_by(1, 1, None), mode_shown_by(3, 3, None), mode_shown_by(1, 4, None)),
            (None, None, new)
        );
        // Later events: one more token, several merged chunks, the last of several chunks.
        assert_eq!(
            (mode_shown_by(1, 2, Some(1)), mode_shown_by(3, 9, Some(6)), mode_shown_by(1, 9, Some(6))),
            (new, new, new)
        );
        // All tokens so far; all except those before the request was known; a list that grew before it was written.
        assert_eq!(
            (mode_shown_by(9, 9, Some(6)), mode_shown_by(6, 9, Some(8)), mode_shown_by(12, 9, Some(8))),
            (all, all, all)
        );
        // The repeated id in a synthetic last chunk, and an empty chunk.
        assert_eq!((mode_shown_by(1, 9, Some(9)), mode_shown_by(0, 9, Some(9))), (new, None));
    }
}
