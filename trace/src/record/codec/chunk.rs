//! Prediction of a chunk from the previous chunk of its request.

use crate::event::Chunk;

/// Relation of the number of listed ids to the token count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Listing {
    /// Equal to the number of new tokens.
    #[default]
    New,
    /// Equal to the total number of tokens.
    All,
    /// Equal to the previous chunk's number.
    Same,
}

/// Values of the last chunk of one request in one lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Predictor {
    pub(super) begun: bool,
    listing: Listing,
    /// Its chunks carry ids.
    pub(super) ids: bool,
    completion: Option<u32>,
    step: u32,
    listed: Option<u32>,
    pub(super) prompt: Option<u32>,
    pub(super) cached: Option<u32>,
    pub(super) retractions: Option<u32>,
    /// Index of the worker among the block's texts, plus one; 0 without a worker.
    pub(super) worker: u32,
}

impl Predictor {
    /// Prediction for a new request: the same start as `first`, the previous new request of the lane.
    pub(super) fn after(first: &Self) -> Self {
        Self { begun: false, listing: Listing::New, completion: Some(0), step: 1, listed: None, ..*first }
    }

    pub(super) fn completion(&self) -> Option<u32> {
        self.completion.map(|n| n.wrapping_add(self.step))
    }

    /// Predicted number of listed ids for a token count.
    pub(super) fn listed(&self, completion: Option<u32>) -> Option<u32> {
        match self.listing {
            _ if !self.begun => Some(1),
            Listing::New => completion.zip(self.completion).map(|(n, before)| n.wrapping_sub(before)),
            Listing::All => completion,
            Listing::Same => self.listed,
        }
    }

    /// Updates the state from a chunk.
    #[inline]
    pub(super) fn update(&mut self, chunk: &Chunk<'_>, worker: u32, ids: bool) {
        let (listed, completion) = (chunk.listed, chunk.completion_tokens);
        if self.begun {
            let step = completion.zip(self.completion).map(|(n, before)| n.wrapping_sub(before));
            self.step = step.unwrap_or(1);
            self.listing = if listed == step {
                Listing::New
            } else if listed == completion {
                Listing::All
            } else {
                Listing::Same
            };
        } else {
            self.begun = true;
            self.listing = match listed {
                None => Listing::Same,
                Some(n) if n > 1 && listed == completion => Listing::All,
                Some(_) => Listing::New,
            };
        }
        self.completion = completion;
        self.listed = listed;
        self.ids = ids;
        self.prompt = chunk.prompt_tokens;
        self.cached = chunk.cached_tokens;
        self.retractions = chunk.retractions;
        self.worker = worker;
    }
}

/// Flags of a chunk's mispredicted fields.
pub(super) mod flags {
    pub(in crate::record::codec) const COMPLETION: u8 = 1;
    pub(in crate::record::codec) const LISTED: u8 = 1 << 1;
    pub(in crate::record::codec) const PROMPT: u8 = 1 << 2;
    pub(in crate::record::codec) const CACHED: u8 = 1 << 3;
    pub(in crate::record::codec) const RETRACTIONS: u8 = 1 << 4;
    /// The chunk has a finish, which is never predicted.
    pub(in crate::record::codec) const FINISH: u8 = 1 << 5;
    pub(in crate::record::codec) const WORKER: u8 = 1 << 6;
    pub(in crate::record::codec) const IDS: u8 = 1 << 7;
}
