//! Matching of a worker's response streams to engine requests by their tokens, when no id connects them.
//!
//! Tokens are compared as marks: hashes with a key of this run, kept only as long as the comparison needs them. Token ids are not kept. A
//! stream matches a request if its chunks occur in order in the request's output and its token count equals the request's. A stream that
//! fits several requests is not matched.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use trace::event::Chunk;

use super::recent::Recent;

/// Maximum number of requests whose tokens are kept for comparison.
const MAX_REQUESTS: usize = 4_096;
/// Maximum number of id pairs kept for reporting.
const MAX_PAIRS: usize = 1_000;
/// Maximum number of tokens kept for one request.
const MAX_TOKENS: usize = 65_536;
/// Maximum number of tokens kept for all requests.
const MAX_MARKS: usize = 4 << 20;

/// Outputs that no stream has been matched to yet, and the results of matching.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContentMatcher {
    /// Key of the hashes; `None` while matching is off.
    key: Option<u64>,
    /// Output of requests that no stream has been matched to, by their ids.
    sent: Recent<SentTokens>,
    /// Number of marks kept for all requests.
    kept_marks: usize,
    /// Number of streams matched to a request.
    pub joined: u64,
    /// Number of streams that fit several requests.
    pub ambiguous: u64,
    /// Number of streams that fit no request.
    pub unknown: u64,
    /// Number of requests evicted because a limit was reached.
    pub evicted: u64,
    /// Latest matches: the frontend's id of a request, and the engine's.
    pub pairs: VecDeque<(String, String)>,
}

/// Output of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SentTokens {
    marks: Vec<u32>,
    /// Whether a part was missed, or a limit was reached. Its tokens are then not kept.
    is_incomplete: bool,
}

/// Chunks of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamTokens {
    marks: Vec<u32>,
    /// End index of each chunk in `marks`.
    ends: Vec<usize>,
    /// Whether the stream has more tokens than are kept.
    is_incomplete: bool,
}

impl SentTokens {
    /// Those `ids` of a chunk that are new: no earlier chunk of the request had them. `tokens_so_far`: number of the request's tokens up to
    /// the end of this chunk. `None` if not all tokens of the request are kept, or there are too many.
    fn new_ids<'c>(&self, ids: &'c [i64], tokens_so_far: usize) -> Option<&'c [i64]> {
        if self.is_incomplete || tokens_so_far > MAX_TOKENS {
            return None;
        }
        // Of each token so far, a hash is kept as its mark.
        let new_tokens = tokens_so_far.checked_sub(self.marks.len())?;
        // Cumulative chunks list the earlier tokens first. With more new tokens than ids, a chunk was missed.
        let first_new = ids.len().checked_sub(new_tokens)?;
        Some(&ids[first_new..])
    }

    /// Discards the marks of the request, and keeps none from here on: it cannot be matched without all of its tokens.
    fn stop_keeping_marks(&mut self) {
        self.is_incomplete = true;
        // Replaced, because an emptied list would keep the memory.
        self.marks = Vec::new();
    }
}

impl StreamTokens {
    /// Whether the tokens can show the stream's request. With no marks, or with a part of them only, the stream could be of any request.
    fn can_identify_request(&self) -> bool {
        !self.marks.is_empty() && !self.is_incomplete
    }
}

impl ContentMatcher {
    /// Turns matching on, with a random key. A key in use stays, because hashes of two keys cannot be compared.
    pub fn enable(&mut self) {
        // Any value hashed by a new random state gives a random number.
        self.key.get_or_insert_with(|| RandomState::new().hash_one(0));
    }

    /// Whether matching is on.
    pub fn is_enabled(&self) -> bool {
        self.key.is_some()
    }

    /// Keeps hashes of the tokens of a request's chunk as marks, by which a response stream without its id can be matched to it. Only if
    /// matching is on and the chunk states the number of tokens so far. Forgets the oldest requests beyond the limits.
    pub(super) fn record_chunk(&mut self, chunk: &Chunk<'_>) {
        let Chunk { rid, ids, .. } = *chunk;
        let (Some(key), Some(tokens_so_far)) = (self.key, chunk.completion_tokens) else { return };
        if !self.sent.values.contains_key(rid) {
            let evicted = self.sent.insert(rid, SentTokens::default(), MAX_REQUESTS);
            self.count_evicted(evicted);
        }
        let Some(sent) = self.sent.values.get_mut(rid) else { return };
        let Some(new_ids) = sent.new_ids(ids, tokens_so_far as usize) else {
            self.kept_marks -= sent.marks.len();
            sent.stop_keeping_marks();
            return;
        };
        sent.marks.extend(new_ids.iter().map(|&id| token_mark(key, id as u32)));
        self.kept_marks += new_ids.len();
        self.evict_above_limit();
    }

    /// Forgets the oldest requests while more marks are kept than permitted. The newest request is kept in any case.
    #[inline]
    fn evict_above_limit(&mut self) {
        while self.kept_marks > MAX_MARKS && self.sent.values.len() > 1 {
            let evicted = self.sent.remove_oldest();
            self.count_evicted(evicted);
        }
    }

    /// Counts a request that was forgotten because of a limit, if there was one.
    fn count_evicted(&mut self, evicted: Option<SentTokens>) {
        if let Some(sent) = evicted {
            self.evicted += 1;
            self.kept_marks -= sent.marks.len();
        }
    }

    /// Adds the token ids of a stream's next chunk to `stream`. Without all of its tokens, a stream cannot be matched.
    pub(super) fn add_stream_chunk(&self, stream: &mut StreamTokens, ids: &[u32]) {
        let Some(key) = self.key else { return };
        if stream.marks.len() + ids.len() > MAX_TOKENS {
            stream.is_incomplete = true;
        }
        if stream.is_incomplete || ids.is_empty() {
            return;
        }
        stream.marks.extend(ids.iter().map(|&id| token_mark(key, id)));
        stream.ends.push(stream.marks.len());
    }

    /// Matches a finished stream, whose response states `token_count` tokens, to a request of the engine by the tokens of both. Returns the
    /// id of the request if exactly one has these tokens. It is then forgotten. Counts the result.
    pub(super) fn match_stream_to_request(&mut self, stream: &StreamTokens, token_count: u32) -> Option<String> {
        if !self.is_enabled() || !stream.can_identify_request() {
            return None;
        }
        let requests_with_tokens = requests_with_tokens_of(&self.sent, stream, token_count as usize);
        match requests_with_tokens[..] {
            [] => {
                self.unknown += 1;
                None
            }
            [rid] => {
                let rid = rid.clone();
                self.joined += 1;
                self.forget_request(&rid);
                Some(rid)
            }
            // Equal outputs, such as those of equal prompts, cannot be told apart.
            _ => {
                self.ambiguous += 1;
                None
            }
        }
    }

    /// Forgets the tokens of a request that has been matched to its stream, if they are kept.
    pub(super) fn forget_request(&mut self, rid: &str) {
        if let Some(sent) = self.sent.remove(rid) {
            self.kept_marks -= sent.marks.len();
        }
    }

    /// Keeps the frontend's id of a request, `context`, and the engine's, for reporting. Beyond the limit, the oldest pair is forgotten.
    pub(super) fn remember_matched_ids(&mut self, context: &str, rid: &str) {
        if self.pairs.len() == MAX_PAIRS {
            self.pairs.pop_front();
        }
        self.pairs.push_back((context.to_owned(), rid.to_owned()));
    }
}

impl StreamTokens {
    /// Whether the chunks of this stream occur in `sent`, the hashed tokens of a request: in order, each contiguous. Tokens between them
    /// were lost.
    fn occurs_in(&self, sent: &[u32]) -> bool {
        // The earliest position of a chunk leaves the most room for later chunks, so no other position needs to be tried.
        let mut rest = sent;
        let mut chunk_start = 0;
        for &chunk_end in &self.ends {
            let chunk = &self.marks[chunk_start..chunk_end];
            let Some(position) = rest.windows(chunk.len()).position(|window| window == chunk) else {
                return false;
            };
            rest = &rest[position + chunk.len()..];
            chunk_start = chunk_end;
        }
        true
    }
}

/// Hash of a token id with the key of this run.
fn token_mark(key: u64, id: u32) -> u32 {
    // The constants of SplitMix64 spread each bit of the id over the whole number.
    let mixed = (u64::from(id) ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
}

/// Ids of the requests with `token_count` tokens among which the chunks of the stream occur.
fn requests_with_tokens_of<'r>(
    sent: &'r Recent<SentTokens>,
    stream: &StreamTokens,
    token_count: usize,
) -> Vec<&'r String> {
    let mut rids = Vec::new();
    for (rid, sent) in &sent.values {
        if sent.marks.len() == token_count && stream.occurs_in(&sent.marks) {
            rids.push(rid);
        }
    }
    rids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent<'a>(rid: &'a str, ids: &'a [i64], count: u32) -> Chunk<'a> {
        Chunk { ids, completion_tokens: Some(count), ..Chunk::new(rid) }
    }

    fn compared(requests: &[(&str, &[&[i64]])]) -> ContentMatcher {
        let mut content = ContentMatcher::default();
        content.enable();
        for (rid, chunks) in requests {
            let mut count = 0;
            for chunk in *chunks {
                count += chunk.len() as u32;
                content.record_chunk(&sent(rid, chunk, count));
            }
        }
        content
    }

    fn received(content: &ContentMatcher, chunks: &[&[u32]]) -> StreamTokens {
        let mut received = StreamTokens::default();
        for chunk in chunks {
            content.add_stream_chunk(&mut received, chunk);
        }
        received
    }

    #[test]
    fn a_stream_is_matched_to_its_request_even_with_lost_tokens() {
        let mut content = compared(&[("a", &[&[1], &[2], &[3], &[4]]), ("b", &[&[1], &[3], &[2], &[4]])]);
        let whole = received(&content, &[&[1], &[3], &[2], &[4]]);
        assert_eq!(content.match_stream_to_request(&whole, 4).as_deref(), Some("b"));
        let lossy = received(&content, &[&[2], &[4]]);
        assert_eq!(content.match_stream_to_request(&lossy, 4).as_deref(), Some("a"));
        assert_eq!((content.joined, content.kept_marks, content.sent.values.len()), (2, 0, 0));
    }

    #[test]
    fn merged_and_speculative_chunks_match_across_boundaries() {
        let mut content = compared(&[("a", &[&[1, 2], &[3], &[4, 5]]), ("b", &[&[1, 9], &[3], &[4, 5]])]);
        let merged = received(&content, &[&[1], &[2, 3, 4], &[5]]);
        assert_eq!(content.match_stream_to_request(&merged, 5).as_deref(), Some("a"));
    }

    #[test]
    fn an_ambiguous_stream_is_assigned_to_no_request() {
        let mut content = compared(&[("a", &[&[1], &[2]]), ("b", &[&[1], &[2]]), ("c", &[&[7]])]);
        let either = received(&content, &[&[1], &[2]]);
        assert_eq!(content.match_stream_to_request(&either, 2), None);
        assert_eq!(content.match_stream_to_request(&either, 3), None, "no request has that token count");
        assert_eq!((content.ambiguous, content.unknown), (1, 1));
    }

    #[test]
    fn cumulative_lists_are_recognised_by_their_count_and_a_gap_prevents_a_match() {
        let mut content = compared(&[]);
        content.record_chunk(&sent("a", &[1], 1));
        content.record_chunk(&sent("a", &[1, 2, 3], 3));
        content.record_chunk(&sent("torn", &[1], 1));
        content.record_chunk(&sent("torn", &[3], 3));
        let stream = received(&content, &[&[1], &[2], &[3]]);
        assert_eq!(content.match_stream_to_request(&stream, 3).as_deref(), Some("a"));
        assert_eq!(content.match_stream_to_request(&received(&content, &[&[1], &[3]]), 3), None);
    }

    #[test]
    fn tokens_are_stored_only_on_request_and_up_to_the_limit() {
        let mut content = ContentMatcher::default();
        content.record_chunk(&sent("a", &[1], 1));
        assert_eq!(content, ContentMatcher::default());
        content.enable();
        for n in 0..=MAX_REQUESTS {
            content.record_chunk(&sent(&n.to_string(), &[1], 1));
        }
        assert_eq!((content.evicted, content.sent.values.len(), content.kept_marks), (1, MAX_REQUESTS, MAX_REQUESTS));
    }
}
