//! Prediction of a chunk from the previous chunk of its request.

use trace::event::{Chunk, Finish};

use super::bytes::{FieldTransfer, MalformedBlock};
use super::columns::BlockColumns;

/// Maximum number of chunks in a frame; a larger frame is not recorded.
pub(super) const MAX_FRAME_CHUNKS: usize = 1 << 18;

/// Codes in the column `requests` after a run of predicted requests: a new request, or one that is new in this lane. From the last code on,
/// the rest of the number is the distance of a known request.
pub(super) const NEW_REQUEST: u64 = 0;
pub(super) const NEW_IN_LANE: u64 = 1;
pub(super) const KNOWN_REQUEST: u64 = 2;

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
enum ListingKind {
    /// Equal to the number of new tokens.
    #[default]
    New,
    /// Equal to the total number of tokens.
    All,
    /// Equal to the previous chunk's number.
    Same,
}

impl ListingKind {
    /// How the first chunk of a request, with `id_count` ids and the token count `token_count`, lists its ids: only the new ones, or all so
    /// far. The next chunk probably does the same.
    #[inline]
    fn of_first_chunk(id_count: Option<u32>, token_count: Option<u32>) -> Self {
        if id_count.is_none() {
            // `Same` predicts as many ids as the last chunk had, so here none.
            Self::Same
        } else if id_count > Some(1) && id_count == token_count {
            // A single id shows nothing, because it is both all ids and the new ones.
            Self::All
        } else {
            Self::New
        }
    }

    /// How a chunk after the first one lists its ids, of which there are `id_count`. `new_tokens` is the number of tokens since the chunk
    /// before it.
    #[inline]
    fn of_later_chunk(id_count: Option<u32>, token_count: Option<u32>, new_tokens: Option<u32>) -> Self {
        if id_count == new_tokens {
            Self::New
        } else if id_count == token_count {
            Self::All
        } else {
            Self::Same
        }
    }
}

/// Returns `flag` if the condition holds, else no flag.
#[inline]
pub(super) fn flag_if(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

/// Values of the last chunk of one request in one lane, from which those of its next chunk are predicted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChunkPredictor {
    pub(super) has_begun: bool,
    listing: ListingKind,
    /// Its chunks carry ids.
    pub(super) has_ids: bool,
    completion: Option<u32>,
    /// Number of new tokens in the last chunk.
    completion_step: u32,
    listed: Option<u32>,
    prompt: Option<u32>,
    cached: Option<u32>,
    retractions: Option<u32>,
    /// Index of the worker among the block's texts, plus one; 0 without a worker.
    pub(super) worker: u32,
}

impl ChunkPredictor {
    /// Prediction for the first chunk of a new request. `newest_request`: first values of the newest request of the lane (connection).
    pub(super) fn for_new_request(newest_request: &Self) -> Self {
        // The tokens are counted from 0 again. The other values, such as the prompt's length, are probably those of the newest request.
        Self {
            has_begun: false,
            listing: ListingKind::New,
            completion: Some(0),
            completion_step: 1,
            listed: None,
            ..*newest_request
        }
    }

    /// Predicted token count: that of the last chunk, plus as many new tokens as the last chunk had. `None` if the last chunk has no count.
    fn predicted_completion(&self) -> Option<u32> {
        self.completion.map(|last_completion| last_completion.wrapping_add(self.completion_step))
    }

    /// Predicted number of ids that a chunk with the token count `token_count` lists. `None` if it probably lists none.
    fn predicted_id_count(&self, token_count: Option<u32>) -> Option<u32> {
        if !self.has_begun {
            // Most first chunks have one token.
            return Some(1);
        }
        match self.listing {
            // Chunks list their new tokens, all tokens so far, or as many ids as the last chunk.
            ListingKind::New => self.new_tokens_since_last_chunk(token_count),
            ListingKind::All => token_count,
            ListingKind::Same => self.listed,
        }
    }

    /// Number of tokens from the last chunk's count to this one; `None` if a chunk has no count.
    fn new_tokens_since_last_chunk(&self, token_count: Option<u32>) -> Option<u32> {
        let last_completion = self.completion?;
        let token_count = token_count?;
        Some(token_count.wrapping_sub(last_completion))
    }

    /// Records a chunk, from which the next one is predicted. `worker_code` is the index of its tokenizer worker's text plus one, or 0
    /// without a worker.
    #[inline]
    pub(super) fn record_chunk(&mut self, chunk: &Chunk<'_>, worker_code: u32, has_ids: bool) {
        let listed = chunk.listed;
        let completion = chunk.completion_tokens;
        if self.has_begun {
            // Most requests get the same number of tokens at each step.
            let new_tokens = self.new_tokens_since_last_chunk(completion);
            self.completion_step = new_tokens.unwrap_or(1);
            self.listing = ListingKind::of_later_chunk(listed, completion, new_tokens);
        } else {
            self.has_begun = true;
            self.listing = ListingKind::of_first_chunk(listed, completion);
        }
        self.completion = completion;
        self.listed = listed;
        self.has_ids = has_ids;
        self.prompt = chunk.prompt_tokens;
        self.cached = chunk.cached_tokens;
        self.retractions = chunk.retractions;
        self.worker = worker_code;
    }

    /// Flags of the fields of a chunk that differ from their prediction, and so must be written. `worker_code` is the index of its
    /// tokenizer worker's text plus one, or 0 without a worker. A finish has its flag whenever there is one, because it is never
    /// predicted.
    pub(super) fn mispredicted_field_flags(&self, chunk: &Chunk<'_>, worker_code: u32, has_ids: bool) -> u8 {
        let completion = chunk.completion_tokens;
        flag_if(completion != self.predicted_completion(), COMPLETION)
            | flag_if(chunk.listed != self.predicted_id_count(completion), LISTED)
            | flag_if(chunk.prompt_tokens != self.prompt, PROMPT)
            | flag_if(chunk.cached_tokens != self.cached, CACHED)
            | flag_if(chunk.retractions != self.retractions, RETRACTIONS)
            | flag_if(chunk.finish.is_some(), FINISH)
            | flag_if(worker_code != self.worker, WORKER)
            | flag_if(has_ids != self.has_ids, IDS)
    }

    /// Writes the fields of a chunk to the columns, or reads them from there, except its rid and ids. `flags` has a bit for each field that
    /// is not as predicted; the others take no bytes. One function writes and reads, so that both use the same order of fields.
    #[inline]
    pub(super) fn write_or_read_fields<C: FieldTransfer>(
        &self,
        flags: u8,
        columns: &mut BlockColumns<C>,
        chunk: &mut Chunk<'_>,
        worker: &mut u32,
    ) -> Result<(), MalformedBlock> {
        columns.completion.write_or_read_optional(
            flags & COMPLETION != 0,
            &mut chunk.completion_tokens,
            self.predicted_completion(),
        )?;
        let listed = self.predicted_id_count(chunk.completion_tokens);
        columns.listed.write_or_read_optional(flags & LISTED != 0, &mut chunk.listed, listed)?;
        columns.prompt.write_or_read_optional(flags & PROMPT != 0, &mut chunk.prompt_tokens, self.prompt)?;
        columns.cached.write_or_read_optional(flags & CACHED != 0, &mut chunk.cached_tokens, self.cached)?;
        columns.retractions.write_or_read_optional(
            flags & RETRACTIONS != 0,
            &mut chunk.retractions,
            self.retractions,
        )?;
        if flags & FINISH != 0 {
            // A finish is never predicted, so the column always has it.
            let differs = true;
            // A chunk that is read has no finish yet, so it gets one to be replaced.
            let finish = chunk.finish.get_or_insert(Finish::Other);
            columns.finish.write_or_read_code(differs, finish, Finish::Other)?;
        }
        columns.worker.write_or_read_number(flags & WORKER != 0, worker, self.worker)
    }
}
