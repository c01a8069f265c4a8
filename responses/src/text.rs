//! Comparison of the text in responses with the text that was sent, for responses whose events count no tokens.
//!
//! The ends of the sent chunks are kept as digests until a response has carried them. An event carries the chunks whose text it equals. The
//! tokens of a chunk without text, such as an incomplete character, come with the next text. Where messages carry ids only, the engine's
//! tokenizer gives their text.

mod arguments;
mod sent_text;
mod tool_calls;

use std::sync::Arc;

use trace::HopId;
use trace::event::{Chunk, Frame, Kind, ToolCalls, UnjudgedReason};

use self::sent_text::{CarriedChunks, Difference, SentText, max_tokens_of_chunk};
pub use self::sent_text::{Detokenize, TokenStream};
use self::tool_calls::ResponseCalls;
use super::digest::Digest;
use super::recent::Recent;

/// Maximum number of requests whose text is kept for comparison.
const MAX_REQUESTS: usize = 16_384;
/// Maximum number of bytes kept for all requests.
const MAX_BYTES: usize = 64 << 20;
/// Number of events after missing text during which the text may still come, out of order. A server that turns ids into text may hold it
/// back longer, for a stop string, so only the end of such a response shows which text is missing.
const MAX_HELD: usize = 8;

/// Text of one choice in one event, by the fields that carry it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChoiceText<'a> {
    /// Text of a completion, or content of a chat.
    pub content: Digest,
    /// Reasoning, which comes before the content.
    pub reasoning: Digest,
    /// Whether other fields, such as tool calls, contain anything.
    pub elsewhere: bool,
    /// JSON of the tool calls; empty without any.
    pub tool_calls: &'a str,
    /// Whether it is of a completion, to which no parser applies.
    pub completion: bool,
}

impl ChoiceText<'_> {
    /// Whether no field contains anything.
    pub(super) fn is_empty(self) -> bool {
        self.content.is_empty() && self.reasoning.is_empty() && !self.has_other_fields()
    }

    /// Whether any field other than content and reasoning contains anything.
    fn has_other_fields(self) -> bool {
        self.elsewhere || !self.tool_calls.is_empty()
    }

    /// Digests of reasoning and content, without empty ones.
    fn non_empty_pieces(self) -> impl Iterator<Item = Digest> {
        // A model reasons first, so an event with both has them in this order.
        [self.reasoning, self.content].into_iter().filter(|piece| !piece.is_empty())
    }
}

/// Texts of requests that no response has carried yet.
#[derive(Clone, Debug, Default)]
pub struct Texts {
    requests: Recent<ComparedRequest>,
    /// Number of bytes kept for all requests.
    bytes: usize,
    /// Whether chats contain exactly the text that was sent: no parser moves or removes any. Otherwise missing text is not proven lost.
    pub exact: bool,
    /// Turns ids into text, for an engine whose messages carry no text.
    pub detokenizer: Option<Arc<dyn Detokenize>>,
    /// Number of requests evicted because a limit was reached.
    pub evicted: u64,
    /// Whether the text of any request was ever known.
    has_text: bool,
    /// Responses whose text is not the text that was sent.
    pub(super) differences: Differences,
    /// Deliveries to report.
    ready: Vec<CarriedTokens>,
}

/// Numbers of responses by their first difference from the text that was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Differences {
    /// Number of each [`Difference`], in the order of its variants.
    counts: [u64; 4],
    /// The first of them that is not [`Difference::Elsewhere`].
    first: Option<FirstDifference>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FirstDifference {
    rid: String,
    /// Number of the request's tokens before the difference.
    tokens_before: u32,
}

impl Differences {
    /// Counts a difference of the response to request `rid` behind `tokens_before` tokens, and keeps the place of the first one.
    fn count_difference(&mut self, difference: Difference, rid: &str, tokens_before: u32) {
        self.counts[difference as usize] += 1;
        // Text in other fields has no place in the compared text.
        if difference != Difference::Elsewhere && self.first.is_none() {
            self.first = Some(FirstDifference { rid: rid.to_owned(), tokens_before });
        }
    }

    /// Describes the responses whose text differs, with counts.
    pub(super) fn degraded_lines(&self) -> Vec<String> {
        let [missing, repeated, changed, elsewhere] = self.counts;
        let mut degraded = Vec::new();
        if let Some(FirstDifference { rid, tokens_before }) = &self.first {
            degraded.push(format!(
                "egress: the text of {} responses is not the text that was sent: missing in {missing}, repeated in {repeated}, changed in {changed}; their later tokens are not judged; first: request {rid} after token {tokens_before}",
                missing + repeated + changed
            ));
        }
        if elsewhere > 0 {
            degraded.push(format!(
                "egress: {elsewhere} responses carried text in tool calls or other fields; their later tokens are not judged"
            ));
        }
        degraded
    }
}

#[derive(Clone, Debug)]
struct ComparedRequest {
    /// `None` once a part of it is unknown, such as a missed chunk.
    sent: Option<SentText>,
    /// Deliveries after missing text, until it is clear that the text does not come later.
    held: Vec<CarriedTokens>,
    /// Whether the response had other text.
    differs: bool,
    /// The response since the first difference, after which it is not compared event by event.
    unmatched: Option<Box<Unmatched>>,
}

/// A response since its first difference from the text that was sent.
#[derive(Clone, Debug, Default)]
struct Unmatched {
    calls: ResponseCalls,
    /// Bytes of content and reasoning.
    carried_bytes: u64,
}

/// Tokens whose text an event carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CarriedTokens {
    pub(super) tokens: u32,
    /// Number of tokens up to the last of them.
    pub(super) completion_tokens: u32,
    /// Number of its chunks without text of their own.
    pub(super) without_text: u32,
}

/// Comparison of a response that has ended.
pub(super) struct ComparisonResult {
    /// Whether the response had other text.
    pub(super) differs: bool,
    /// Its tool calls, or why they are unjudged.
    pub(super) tool_calls: Result<Option<ToolCalls>, UnjudgedReason>,
}

impl ComparedRequest {
    /// Number of bytes that count towards the limit.
    fn kept_bytes(&self) -> usize {
        let sent_bytes = self.sent.as_ref().map_or(0, SentText::kept_bytes);
        let call_bytes = self.unmatched.as_ref().map_or(0, |unmatched| unmatched.calls.bytes);
        sent_bytes + call_bytes
    }

    /// Adds a delivery, the tokens of one event, to those that are `ready` to be reported. Behind skipped text, holds it until it is clear
    /// that this text does not come later, and so is lost.
    #[inline]
    fn add_delivery(
        &mut self,
        carried: CarriedTokens,
        has_skipped_text: bool,
        finished: bool,
        ready: &mut Vec<CarriedTokens>,
    ) {
        let follows_missing_text = has_skipped_text || !self.held.is_empty();
        if follows_missing_text {
            self.held.push(carried);
        } else {
            ready.push(carried);
        }
        // Without counts, the server turns ids into text, and may hold text back for longer.
        let states_counts = self.sent.as_ref().is_some_and(|sent| sent.states_counts);
        let is_text_overdue = states_counts && self.held.len() > MAX_HELD;
        if finished || is_text_overdue {
            ready.append(&mut self.held);
        }
    }

    /// Frees the memory of the comparison.
    fn stop_comparison(&mut self) {
        self.held.clear();
        self.sent = None;
        self.unmatched = None;
    }

    /// Text that is compared event by event; `None` after the first difference.
    fn text_compared_by_event(&self) -> Option<&SentText> {
        if self.unmatched.is_some() {
            return None;
        }
        self.sent.as_ref()
    }
}

impl Texts {
    /// Records the text of a frame.
    pub(super) fn record_frame(&mut self, frame: &Frame<'_>) {
        let detokenizes = frame.kind == Kind::TokenIds && self.detokenizer.is_some();
        for chunk in frame.chunks {
            // Text without a count does not show its number of tokens.
            let has_counted_text = frame.kind == Kind::Text && chunk.completion_tokens.is_some();
            if detokenizes || has_counted_text {
                self.record_chunk(frame.id.hop, chunk);
            }
        }
    }

    /// Records that frames were missed. Requests whose chunks have no counts may lack some from here on.
    pub fn record_missed_frames(&mut self) {
        for request in self.requests.values.values_mut() {
            if request.sent.as_ref().is_some_and(|sent| !sent.states_counts) {
                self.bytes -= request.kept_bytes();
                request.stop_comparison();
            }
        }
    }

    /// Records the text of a chunk that the engine has sent on a connection, `hop`. At the limit of memory, the oldest requests are
    /// forgotten.
    fn record_chunk(&mut self, hop: HopId, chunk: &Chunk<'_>) {
        let rid = chunk.rid;
        let detokenizer = self.detokenizer.as_deref();
        // The first chunk of a request states only its own tokens.
        let may_be_first = chunk.completion_tokens.is_none_or(|count| count <= max_tokens_of_chunk(chunk));
        if let Some(request) = self.requests.values.get_mut(rid) {
            // Without its earlier text, the request is not compared.
            let Some(sent) = &mut request.sent else { return };
            // A router forwards the same text on another hop.
            if sent.hop != hop {
                return;
            }
            let bytes_before = sent.kept_bytes();
            let is_added = sent.add_chunk(chunk, detokenizer);
            if is_added {
                self.bytes += sent.kept_bytes() - bytes_before;
            } else {
                // A part of its text is unknown from here on.
                self.stop_comparison(rid);
            }
        } else if may_be_first {
            self.begin_request(SentText::new(hop, chunk), chunk);
        }
        self.evict_above_limit();
    }

    /// Forgets the oldest requests while more bytes are kept than permitted. The newest request is kept in any case.
    #[inline]
    fn evict_above_limit(&mut self) {
        while self.bytes > MAX_BYTES && self.requests.values.len() > 1 {
            let evicted = self.requests.remove_oldest();
            self.count_evicted(evicted);
        }
    }

    /// Begins a request with its first chunk.
    fn begin_request(&mut self, mut sent: SentText, chunk: &Chunk<'_>) {
        let is_text_known = sent.add_chunk(chunk, self.detokenizer.as_deref());
        // Without its first text, the request is kept but not compared.
        let sent = is_text_known.then_some(sent);
        self.has_text |= is_text_known;
        let request = ComparedRequest { sent, held: Vec::new(), differs: false, unmatched: None };
        self.bytes += request.kept_bytes();
        let evicted = self.requests.insert(chunk.rid, request, MAX_REQUESTS);
        self.count_evicted(evicted);
    }

    /// Whether the text of this request is compared.
    pub(super) fn is_compared(&self, rid: &str) -> bool {
        self.requests.values.get(rid).is_some_and(|request| request.text_compared_by_event().is_some())
    }

    /// Compares the text of an event of a response with the text that the engine sent. Returns its number of tokens, or `None` if it is
    /// unknown. Text that is missing before an event is lost only if `all_observed`: no earlier event of the response was missed.
    /// [`Texts::take_ready_deliveries`] has the deliveries to report.
    pub(super) fn compare_event(
        &mut self,
        rid: &str,
        text: &ChoiceText<'_>,
        finished: bool,
        all_observed: bool,
    ) -> Option<u32> {
        let request = self.requests.values.get_mut(rid)?;
        // After a difference, events are not compared any more.
        if request.unmatched.is_some() {
            return None;
        }
        let sent = request.sent.as_mut()?;
        if !all_observed && !sent.has_first_chunk {
            // Neither its first chunk nor the first event is known.
            self.stop_comparison(rid);
            return None;
        }
        // The parser of a chat may remove text, which is then not lost.
        let may_skip = all_observed && sent.has_first_chunk && (self.exact || text.completion);
        let bytes_before = sent.kept_bytes();
        let tokens_before = sent.carried_end.tokens;
        let compared = sent.compare_event(text, finished, may_skip);
        // Text that the event carries is not kept any longer.
        self.bytes -= bytes_before - sent.kept_bytes();
        // Number of the request's tokens up to the end of the event.
        let completion_tokens = sent.carried_end.tokens;
        let CarriedChunks { tokens, without_text } = match compared {
            Ok(carried) => carried,
            Err(difference) => {
                request.differs = true;
                self.differences.count_difference(difference, rid, completion_tokens);
                self.defer_comparison_to_end(rid, text);
                return None;
            }
        };
        if tokens > 0 || finished {
            let has_skipped_text = tokens_before + tokens < completion_tokens;
            let carried = CarriedTokens { tokens, completion_tokens, without_text };
            request.add_delivery(carried, has_skipped_text, finished, &mut self.ready);
        }
        Some(tokens)
    }

    /// Removes and returns the deliveries that can be reported.
    pub(super) fn take_ready_deliveries(&mut self) -> std::vec::Drain<'_, CarriedTokens> {
        self.ready.drain(..)
    }

    /// Ends the comparison of a response that ended without an event that finishes it. Returns the number of its last tokens, if it has any
    /// whose text no event carried.
    pub(super) fn compare_end(&mut self, rid: &str, all_observed: bool) -> Option<u32> {
        let request = self.requests.values.get(rid)?;
        let has_carried_all = request.text_compared_by_event()?.pending.is_empty();
        let is_all_compared = has_carried_all && request.held.is_empty();
        if is_all_compared {
            return None;
        }
        // As if an event without text had finished it.
        let no_text = ChoiceText::default();
        let finished = true;
        self.compare_event(rid, &no_text, finished, all_observed)
    }

    /// Stops comparing the response for a request event by event. From this event on, its tool calls are collected, and compared with the
    /// rest of the sent text when the response ends.
    pub(super) fn defer_comparison_to_end(&mut self, rid: &str, text: &ChoiceText<'_>) {
        let Some(request) = self.requests.values.get_mut(rid) else { return };
        // Held deliveries follow missing text. It remains unknown whether that was lost, so they are never reported.
        request.held.clear();
        // Without the sent text, the response's text and calls are of no use.
        if request.sent.is_none() {
            return;
        }
        let unmatched = request.unmatched.get_or_insert_default();
        // Bytes of content and reasoning in the event.
        unmatched.carried_bytes += text.non_empty_pieces().map(Digest::len).sum::<u64>();
        if !text.tool_calls.is_empty() {
            // The event adds to the kept calls, or discards all of them.
            self.bytes -= unmatched.calls.bytes;
            unmatched.calls.add_event(text.tool_calls);
            self.bytes += unmatched.calls.bytes;
        }
    }

    /// Stops the comparison for a request of which a part is unknown, and frees its text.
    pub(super) fn stop_comparison(&mut self, rid: &str) {
        if let Some(request) = self.requests.values.get_mut(rid) {
            self.bytes -= request.kept_bytes();
            request.stop_comparison();
        }
    }

    /// Forgets a request whose response has ended, and compares the tool calls of the response with the text that the engine sent.
    /// `is_whole`: each event of the response was observed.
    pub(super) fn forget_request_and_compare_calls(&mut self, rid: &str, is_whole: bool) -> ComparisonResult {
        let why_unknown = if self.has_text { UnjudgedReason::Missed } else { UnjudgedReason::NoText };
        let Some(request) = self.requests.remove(rid) else {
            return ComparisonResult { differs: false, tool_calls: Err(why_unknown) };
        };
        self.bytes -= request.kept_bytes();
        let mut tool_calls = Err(why_unknown);
        // Only a request and a response that were observed from start to end can be compared. `unmatched`: the response's tool calls, and
        // its other text since the first difference.
        if let Some(mut sent) = request.sent
            && let Some(unmatched) = request.unmatched
            && is_whole
            && sent.has_first_chunk
        {
            tool_calls = sent.compare_calls(&unmatched.calls, unmatched.carried_bytes);
        }
        ComparisonResult { differs: request.differs, tool_calls }
    }

    /// Subtracts the bytes of a request that was forgotten because of a limit, if there was one. Counts it if its text was kept.
    fn count_evicted(&mut self, evicted: Option<ComparedRequest>) {
        if let Some(request) = evicted {
            self.bytes -= request.kept_bytes();
            if request.sent.is_some() {
                self.evicted += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
