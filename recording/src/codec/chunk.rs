//! Prediction of a chunk from the previous chunk of its request.

use trace::event::{Chunk, Finish};

use super::bytes::{Fields, Malformed};
use super::columns::Columns;

/// Maximum number of chunks in a frame; a larger frame is not recorded.
pub(super) const CHUNKS: usize = 1 << 18;

/// Codes in `whose` after a run: a new request, a request new in this lane, or the distance of a known one.
pub(super) const NEW: u64 = 0;
pub(super) const NEW_HERE: u64 = 1;
pub(super) const KNOWN: u64 = 2;

/// Flags of a chunk's mispredicted fields.
const COMPLETION: u8 = 1;
const LISTED: u8 = 1 << 1;
const PROMPT: u8 = 1 << 2;
const CACHED: u8 = 1 << 3;
const RETRACTIONS: u8 = 1 << 4;
/// The chunk has a finish, which is never predicted.
const FINISH: u8 = 1 << 5;
const WORKER: u8 = 1 << 6;
pub(super) const IDS: u8 = 1 << 7;

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
    prompt: Option<u32>,
    cached: Option<u32>,
    retractions: Option<u32>,
    /// Index of the worker among the block's texts, plus one; 0 without a worker.
    pub(super) worker: u32,
}

impl Predictor {
    /// Prediction for a new request: the same start as `first`, the previous new request of the lane.
    pub(super) fn after(first: &Self) -> Self {
        Self { begun: false, listing: Listing::New, completion: Some(0), step: 1, listed: None, ..*first }
    }

    fn completion(&self) -> Option<u32> {
        self.completion.map(|n| n.wrapping_add(self.step))
    }

    /// Predicted number of listed ids for a token count.
    fn listed(&self, completion: Option<u32>) -> Option<u32> {
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

    /// Flags of the fields that differ from their prediction.
    pub(super) fn differences(&self, chunk: &Chunk<'_>, worker: u32, ids: bool) -> u8 {
        let completion = chunk.completion_tokens;
        let mark = |differs: bool, field: u8| if differs { field } else { 0 };
        mark(completion != self.completion(), COMPLETION)
            | mark(chunk.listed != self.listed(completion), LISTED)
            | mark(chunk.prompt_tokens != self.prompt, PROMPT)
            | mark(chunk.cached_tokens != self.cached, CACHED)
            | mark(chunk.retractions != self.retractions, RETRACTIONS)
            | mark(chunk.finish.is_some(), FINISH)
            | mark(worker != self.worker, WORKER)
            | mark(ids != self.ids, IDS)
    }

    /// Writes or reads the fields of a chunk, except its rid and ids. Those without a flag are as predicted.
    #[inline]
    pub(super) fn fields<C: Fields>(
        &self,
        flags: u8,
        columns: &mut Columns<C>,
        chunk: &mut Chunk<'_>,
        worker: &mut u32,
    ) -> Result<(), Malformed> {
        let differs = |field: u8| flags & field != 0;
        columns.completion.near(differs(COMPLETION), &mut chunk.completion_tokens, self.completion())?;
        let listed = self.listed(chunk.completion_tokens);
        columns.listed.near(differs(LISTED), &mut chunk.listed, listed)?;
        columns.prompt.near(differs(PROMPT), &mut chunk.prompt_tokens, self.prompt)?;
        columns.cached.near(differs(CACHED), &mut chunk.cached_tokens, self.cached)?;
        columns.retractions.near(differs(RETRACTIONS), &mut chunk.retractions, self.retractions)?;
        if differs(FINISH) {
            columns.finish.code(true, chunk.finish.get_or_insert(Finish::Other), Finish::Other)?;
        }
        columns.worker.index(differs(WORKER), worker, self.worker)
    }
}
