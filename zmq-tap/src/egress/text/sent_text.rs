//! Text of one request: the part that was sent, and how far its response has carried it.

use std::collections::VecDeque;

use trace::HopId;
use trace::event::{Chunk, Finish};

use super::ChoiceText;
use super::differences::Difference;
use crate::egress::digest::Digest;

/// Maximum number of chunks kept for one request.
const MAX_CHUNKS: usize = 65_536;

/// Text of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SentText {
    /// Hop of the text. A router forwards it on another one.
    pub(super) hop: HopId,
    /// Ends of the chunks that no response has carried yet.
    pending: VecDeque<End>,
    /// End of the last chunk.
    last: End,
    /// End of the text that the response has carried.
    carried: End,
    /// Text of the last event.
    event: Digest,
    /// Whether the last chunk has ended the request regularly.
    finished: bool,
}

/// A position in the output of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct End {
    text: Digest,
    tokens: u32,
}

impl SentText {
    pub(super) fn new(hop: HopId) -> Self {
        Self {
            hop,
            pending: VecDeque::new(),
            last: End::default(),
            carried: End::default(),
            event: Digest::default(),
            finished: false,
        }
    }

    /// Number of chunks kept.
    pub(super) fn chunks(&self) -> usize {
        self.pending.len()
    }

    /// Number of tokens up to the end of the text that the response has carried.
    pub(super) fn tokens_carried(&self) -> u32 {
        self.carried.tokens
    }

    /// Adds a chunk after which the request has `count` tokens. Returns false if a chunk before it was missed, or a limit is reached.
    pub(super) fn add(&mut self, chunk: &Chunk<'_>, count: u32) -> bool {
        let new = count.checked_sub(self.last.tokens);
        let continues = new.is_some_and(|new| new <= most_tokens(chunk)) && self.pending.len() < MAX_CHUNKS;
        let Some(text) = chunk.text.filter(|_| continues) else {
            return false;
        };
        self.last = End {
            text: self.last.text.then(Digest::of(text)),
            tokens: count,
        };
        self.finished = matches!(chunk.finish, Some(Finish::Length | Finish::Stop));
        self.pending.push_back(self.last);
        true
    }

    /// Compares an event. Returns its number of tokens. With `may_skip`, text that is missing before it is lost.
    pub(super) fn compare(&mut self, text: &ChoiceText, finished: bool, may_skip: bool) -> Result<u32, Difference> {
        let mut tokens = 0;
        for piece in text.pieces() {
            tokens += self.carry(piece, may_skip).ok_or_else(|| self.difference(piece))?;
        }
        if text.elsewhere {
            return Err(Difference::Elsewhere);
        }
        if finished {
            tokens += self.carry_rest(may_skip).ok_or(Difference::Missing)?;
        }
        Ok(tokens)
    }

    /// Finds the chunks with this text, the earliest ones if several have it, and returns their number of tokens. Skips earlier chunks only
    /// if `may_skip`.
    fn carry(&mut self, text: Digest, may_skip: bool) -> Option<u32> {
        let starts = std::iter::once(self.carried).chain(self.pending.iter().copied());
        let candidates = if may_skip { usize::MAX } else { 1 };
        let (start, place) = starts.take(candidates).find_map(|start| {
            let len = start.text.len() + text.len();
            let place = self.pending.partition_point(|end| end.text.len() < len);
            let end = self.pending.get(place)?;
            (end.text.len() == len && end.text == start.text.then(text)).then_some((start, place))
        })?;
        self.carried = self.pending.drain(..=place).next_back()?;
        self.event = text;
        Some(self.carried.tokens - start.tokens)
    }

    /// How an event differs that `carry` has not found.
    fn difference(&self, text: Digest) -> Difference {
        if text == self.event {
            Difference::Repeated
        } else if self.clone().carry(text, true).is_some() {
            Difference::Missing
        } else {
            Difference::Changed
        }
    }

    /// Number of tokens without text at the end of a response. `None` if the response ends before the text. With `may_skip`, the text that is
    /// missing at the end of a finished request is lost.
    fn carry_rest(&mut self, may_skip: bool) -> Option<u32> {
        let begin = if self.last.text == self.carried.text {
            self.carried
        } else {
            let at_end = |end: &&End| end.text == self.last.text;
            *self.pending.iter().find(at_end).filter(|_| may_skip && self.finished)?
        };
        self.carried = self.last;
        self.pending.clear();
        Some(self.last.tokens - begin.tokens)
    }
}

/// Maximum number of tokens that a chunk can carry. Without ids, several new tokens may also be a missed chunk.
pub(super) fn most_tokens(chunk: &Chunk<'_>) -> u32 {
    chunk.listed.unwrap_or(1)
}
