//! Text of one request: the part that was sent, and how far its response has carried it.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

use trace::HopId;
use trace::event::{Chunk, Finish, ToolCalls, UnjudgedReason};

use super::ChoiceText;
use super::tool_calls::{ChunkEnd, ResponseCalls, SearchedText};
use crate::digest::Digest;

/// Maximum number of chunks kept for one request.
const MAX_CHUNKS: usize = 65_536;
/// Maximum number of bytes of text kept for one request, apart from its last chunk.
const MAX_BYTES: usize = 1 << 20;

/// A tokenizer that turns ids into text, step by step.
pub trait Detokenize: fmt::Debug + Send + Sync {
    /// State of a request whose prompt contains text.
    fn begin(&self) -> TokenStream;

    /// Appends to `text` what the next token adds to the output; nothing for a special token, and while a character is incomplete. Returns
    /// false if that is unknown.
    fn step(&self, stream: &mut TokenStream, id: u32, text: &mut String) -> bool;
}

/// Tokens of one request that the text of the next one depends on.
#[derive(Clone, Debug, Default)]
pub struct TokenStream {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Text of those before `next`.
    pub prefix: String,
    /// Number of them whose text is complete.
    pub next: usize,
}

/// Text of one request.
#[derive(Clone, Debug, Default)]
pub(super) struct SentText {
    /// Hop of the text. A router forwards it on another one.
    pub(super) hop: HopId,
    /// Ends of the chunks that no response has carried yet.
    pub(super) pending: VecDeque<OutputPosition>,
    text: VecDeque<u8>,
    /// End of the last chunk that was sent.
    sent_end: OutputPosition,
    /// End of the text that the response has carried.
    pub(super) carried_end: OutputPosition,
    /// Text of the last event.
    last_event: Digest,
    /// Why the last chunk has ended the request.
    finish: Option<Finish>,
    /// Whether the first chunk is known to be the request's first.
    pub(super) has_first_chunk: bool,
    /// Whether its chunks state the number of tokens so far, which shows missed ones.
    pub(super) states_counts: bool,
    /// State of the text of its ids.
    tokens: Option<TokenStream>,
}

/// A position in the output of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OutputPosition {
    text: Digest,
    pub(super) tokens: u32,
}

/// First difference of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// Text is missing before an event or at the end, or comes later.
    Missing,
    /// The text of an event is repeated.
    Repeated,
    /// An event has other text.
    Changed,
    /// A field such as tool calls contains text in another form.
    Elsewhere,
}

/// Chunks that one event carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CarriedChunks {
    pub(super) tokens: u32,
    /// Number of chunks without text of their own.
    pub(super) without_text: u32,
}

impl CarriedChunks {
    /// Adds further chunks of the same event.
    fn add_chunks(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.without_text += other.without_text;
    }
}

/// Pending chunks with the text of an event.
struct PendingMatch {
    /// Number of chunks before them.
    skipped: usize,
    /// Position before the first of them.
    start: OutputPosition,
    /// Index of the last of them.
    last: usize,
}

impl SentText {
    /// Text of a request that begins with this chunk.
    pub(super) fn new(hop: HopId, first: &Chunk<'_>) -> Self {
        let states_counts = first.completion_tokens.is_some();
        // With counts, the caller has checked that this chunk is the first. Without counts, only the first states the prompt's length.
        let has_first_chunk = states_counts || first.prompt_tokens.is_some();
        Self { hop, has_first_chunk, states_counts, ..Self::default() }
    }

    /// Memory of the text and its positions in bytes.
    pub(super) fn kept_bytes(&self) -> usize {
        self.pending.len() * size_of::<OutputPosition>() + self.text.len()
    }

    /// Adds the next chunk that the engine has sent. Returns false if a chunk before it was missed, its text is unknown, or a limit is
    /// reached.
    pub(super) fn add_chunk(&mut self, chunk: &Chunk<'_>, detokenizer: Option<&dyn Detokenize>) -> bool {
        let Some(tokens_so_far) = self.tokens_up_to(chunk) else { return false };
        if !self.is_next_chunk(chunk, tokens_so_far) || self.is_full() {
            return false;
        }
        let Some(text) = self.text_of_chunk(chunk, detokenizer) else { return false };
        let text_so_far = self.sent_end.text.followed_by(Digest::of_text(&text));
        self.sent_end = OutputPosition { text: text_so_far, tokens: tokens_so_far };
        self.text.extend(text.as_bytes());
        self.finish = chunk.finish;
        // Pending until an event carries the text up to this position.
        self.pending.push_back(self.sent_end);
        true
    }

    /// Number of the request's tokens up to the end of this chunk. `None` if the chunk lacks its count.
    #[inline]
    fn tokens_up_to(&self, chunk: &Chunk<'_>) -> Option<u32> {
        if self.states_counts {
            return chunk.completion_tokens;
        }
        // Without counts, the ids that chunks list are summed up.
        Some(self.sent_end.tokens.saturating_add(chunk.listed.unwrap_or(0)))
    }

    /// Whether the chunk follows the last one. More new tokens than a chunk can have show that one before it was missed.
    #[inline]
    fn is_next_chunk(&self, chunk: &Chunk<'_>, tokens_so_far: u32) -> bool {
        let new_tokens = tokens_so_far.checked_sub(self.sent_end.tokens);
        new_tokens.is_some_and(|tokens| tokens <= max_tokens_of_chunk(chunk))
    }

    /// Whether no further chunk can be kept.
    #[inline]
    fn is_full(&self) -> bool {
        self.pending.len() >= MAX_CHUNKS || self.text.len() >= MAX_BYTES
    }

    /// Text of a chunk: its own, or that of its ids. `None` if neither is known.
    #[inline]
    fn text_of_chunk<'c>(&mut self, chunk: &Chunk<'c>, detokenizer: Option<&dyn Detokenize>) -> Option<Cow<'c, str>> {
        match chunk.text {
            Some(text) => Some(Cow::Borrowed(text)),
            None => self.detokenize_chunk(chunk, detokenizer?).map(Cow::Owned),
        }
    }

    /// Turns the token ids of a chunk into text, which continues that of the earlier chunks. `None` if one of the ids is not known. A token
    /// that stops the request has no text.
    fn detokenize_chunk(&mut self, chunk: &Chunk<'_>, detokenizer: &dyn Detokenize) -> Option<String> {
        // The chunk does not carry all ids that it lists.
        if chunk.listed.unwrap_or(0) as usize != chunk.ids.len() {
            return None;
        }
        let ids_with_text = match chunk.ids {
            // Clients do not get the text of the id at which a request stops.
            [ids @ .., _stop_id] if chunk.finish == Some(Finish::Stop) => ids,
            ids => ids,
        };
        let stream = self.tokens.get_or_insert_with(|| detokenizer.begin());
        let mut text = String::new();
        for id in ids_with_text {
            let id = u32::try_from(*id).ok()?;
            let is_known = detokenizer.step(stream, id, &mut text);
            if !is_known {
                return None;
            }
        }
        Some(text)
    }

    /// Compares the text of an event of the response with the text that the engine sent in chunks. Returns the chunks that the event
    /// carries, or its first difference. `finished`: the event is the last one. With `may_skip`, text that is missing before it counts as
    /// lost.
    pub(super) fn compare_event(
        &mut self,
        text: &ChoiceText<'_>,
        finished: bool,
        may_skip: bool,
    ) -> Result<CarriedChunks, Difference> {
        let mut carried = CarriedChunks::default();
        for piece in text.non_empty_pieces() {
            match self.carry_text(piece, may_skip) {
                Some(chunks) => carried.add_chunks(chunks),
                None => return Err(self.classify_difference(piece)),
            }
        }
        if text.has_other_fields() {
            return Err(Difference::Elsewhere);
        }
        if finished {
            let rest = self.carry_rest(may_skip).ok_or(Difference::Missing)?;
            carried.add_chunks(rest);
        }
        Ok(carried)
    }

    /// Finds the pending chunks with this text, which an event carries: no earlier event has carried them. Takes the earliest ones if
    /// several have it, and removes them and all before them. `None` if no chunks have it. Skips earlier chunks only if `may_skip`.
    fn carry_text(&mut self, text: Digest, may_skip: bool) -> Option<CarriedChunks> {
        let PendingMatch { skipped, start, last } = self.find_pending(text, may_skip)?;
        let without_text = self.count_without_text(skipped..last, start);
        // Removes the chunks up to `last`, whose end is the position up to which events have carried the text.
        let carried_end = self.pending.drain(..=last).next_back()?;
        // The kept text serves only the search for tool calls, which are in text that no event has carried.
        let carried_bytes = (carried_end.text.len() - self.carried_end.text.len()) as usize;
        self.text.drain(..carried_bytes);
        self.carried_end = carried_end;
        self.last_event = text;
        Some(CarriedChunks { tokens: carried_end.tokens - start.tokens, without_text })
    }

    /// Finds the first pending chunks with this text, which may have several; `None` if there are none. Without `may_skip`, the text must
    /// begin where the last event ended.
    fn find_pending(&self, text: Digest, may_skip: bool) -> Option<PendingMatch> {
        // The text may begin at the end of the last event, or behind each of the pending chunks.
        let starts = std::iter::once(self.carried_end).chain(self.pending.iter().copied());
        for (skipped, start) in starts.enumerate() {
            if skipped > 0 && !may_skip {
                return None;
            }
            let end_bytes = start.text.len() + text.len();
            // Chunks only add text, so their ends are sorted.
            let last = self.pending.partition_point(|end| end.text.len() < end_bytes);
            // Later starts end even later.
            let end = self.pending.get(last)?;
            if end.text.len() == end_bytes && end.text == start.text.followed_by(text) {
                return Some(PendingMatch { skipped, start, last });
            }
        }
        None
    }

    /// Number of these pending chunks without text of their own, such as those with a part of a character. The first of them begins at
    /// `start`.
    fn count_without_text(&self, chunks: Range<usize>, start: OutputPosition) -> u32 {
        let mut count = 0;
        let mut previous = start;
        for end in self.pending.range(chunks) {
            if end.text == previous.text {
                count += 1;
            }
            previous = *end;
        }
        count
    }

    /// How an event's text differs from the sent text, in which [`Self::carry_text`] has not found it.
    fn classify_difference(&self, text: Digest) -> Difference {
        if text == self.last_event {
            return Difference::Repeated;
        }
        // Behind text that must not be skipped. Searched on a copy, because carrying removes the chunks.
        let may_skip = true;
        let is_behind_missing_text = self.clone().carry_text(text, may_skip).is_some();
        if is_behind_missing_text { Difference::Missing } else { Difference::Changed }
    }

    /// Compares the tool calls of a response with the text that no event of it has carried. `carried_bytes`: number of bytes of content and
    /// reasoning since its first difference from the sent text.
    pub(super) fn compare_calls(
        &mut self,
        calls: &ResponseCalls,
        carried_bytes: u64,
    ) -> Result<Option<ToolCalls>, UnjudgedReason> {
        let mut chunk_ends = Vec::with_capacity(self.pending.len());
        // The kept text begins behind the carried text, so its bytes are counted from there.
        for end in &self.pending {
            let bytes = (end.text.len() - self.carried_end.text.len()) as usize;
            chunk_ends.push(ChunkEnd { bytes, tokens: end.tokens });
        }
        calls.compare_with_text(&SearchedText {
            text: std::str::from_utf8(self.text.make_contiguous()).map_err(|_| UnjudgedReason::Unreadable)?,
            finish: self.finish,
            chunk_ends: &chunk_ends,
            tokens_before: self.carried_end.tokens,
            carried_bytes,
        })
    }

    /// Whether the request generated its output to the end. An aborted one may end before its text was written.
    fn has_ended_normally(&self) -> bool {
        matches!(self.finish, Some(Finish::Length | Finish::Stop))
    }

    /// Removes the chunks that no event has carried at the end of a response, and returns the last of them that have no text: those came
    /// with the end. `None` if the response ends before the text. With `may_skip`, text that is missing at the end of a finished request
    /// counts as lost.
    fn carry_rest(&mut self, may_skip: bool) -> Option<CarriedChunks> {
        let mut rest_start = self.carried_end;
        let mut skipped_chunks = 0;
        let lacks_text = self.sent_end.text != self.carried_end.text;
        if lacks_text {
            if !may_skip || !self.has_ended_normally() {
                return None;
            }
            // The first chunk with all of the text. Those behind it have none.
            let last_with_text = self.pending.iter().position(|end| end.text == self.sent_end.text)?;
            rest_start = self.pending[last_with_text];
            skipped_chunks = last_with_text + 1;
        }
        let without_text = (self.pending.len() - skipped_chunks) as u32;
        self.carried_end = self.sent_end;
        self.pending.clear();
        self.text.clear();
        Some(CarriedChunks { tokens: self.sent_end.tokens - rest_start.tokens, without_text })
    }
}

/// Maximum number of tokens that a chunk can carry. Without ids, several new tokens may also be a missed chunk.
pub(super) fn max_tokens_of_chunk(chunk: &Chunk<'_>) -> u32 {
    chunk.listed.unwrap_or(1)
}
