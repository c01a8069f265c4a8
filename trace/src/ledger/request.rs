//! One request: its state while it is live, and its summary after it has finished.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::chunkline::{Fates, Line};
use super::hop::Trip;
use super::limits::{Limits, ReachedCounts};
use super::losses::{Losses, Lossy, LostRange, Shelf};
use super::pace::{Pace, Paces};
use super::passage::Passing;
use super::stages::Marks;
use super::stream::Stream;
use crate::clock::MonoNs;
use crate::event::Finish;

/// A request that lives, or waits for its last take or delivery. Its fields are in the order in which they are written here: what
/// every chunk reads or writes comes first, in four lines of the cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[repr(C)]
pub struct Request {
    pub(crate) rid: Box<str>,
    /// The rid map leads here; not so once another request has taken the rid over.
    pub(crate) mapped: bool,
    /// The take of its first chunk was not seen, or not when it was.
    pub(crate) first_take_missed: bool,
    /// Its engine has ended.
    pub(crate) outlived: bool,
    /// Its final chunk has left the tokenizer's inbox.
    pub(crate) final_taken: bool,
    /// In the queue of requests that are over.
    pub(crate) queued: bool,
    /// A stream of it lists more than its tokens.
    pub(crate) inflated: bool,
    /// A stream of it does not add up.
    pub(crate) odd: bool,
    /// A consumer behind the engine adds its cumulative counts up.
    pub(crate) sums_up: bool,
    /// A frame has said that it is finished.
    pub(crate) finish_seen: bool,
    /// Some wakeup took more than one chunk of it.
    pub(crate) burst_seen: bool,
    /// Its response gives all that there is, whichever chunks its waiter skips: text, or one body at the end.
    #[serde(default)]
    pub(crate) skips_nothing: bool,
    pub(crate) finish: Option<Finish>,
    pub(crate) retractions: u32,
    pub(crate) last_at: MonoNs,
    /// Longest time between two of its chunks at the scheduler, in nanoseconds.
    pub(crate) silence_ns: Option<u64>,
    pub(crate) prompt_tokens: Option<u32>,
    pub(crate) cached_tokens: Option<u32>,
    pub(crate) chunks_sent: u32,
    pub(crate) tokens_sent: u32,
    pub(crate) tokens_taken: u32,
    /// The chunk taken last: the count after it, its tokens, and which it is.
    pub(crate) taken_last: [u32; 3],
    /// Chunks of it that its waiter finds when it runs.
    pub(crate) burst: u32,
    pub(crate) wire_missing: u32,
    pub(crate) taken_first: Option<MonoNs>,
    /// The take that called its waiter last.
    pub(crate) called: Option<Trip>,
    pub(crate) line: Option<Box<Line>>,
    /// Inter-token latency, where deliveries are seen.
    pub(crate) pace: Option<Box<Pace>>,
    pub(crate) streams: SmallVec<[Stream; 2]>,
    /// Its chunks inside processes between two hops.
    pub(crate) passing: Vec<Passing>,
    pub(crate) first_at: MonoNs,
    /// First send at the origin, if it was the request's very first chunk.
    pub(crate) sent_first: Option<MonoNs>,
    pub(crate) gap_ns: Option<u64>,
    pub(crate) tokens_delivered: u32,
    /// How many live requests have its rid, once it has been shared: 1 when all others have ended.
    #[serde(default)]
    pub(crate) sharing: u8,
    /// When its first tokens were accepted for its client, if those were the first.
    pub(crate) delivered_first: Option<MonoNs>,
    /// The stages its engine told of.
    pub(crate) marks: Option<Box<Marks>>,
    /// Losses proven by deliveries.
    pub(crate) losses: Option<Box<Losses>>,
    /// Predicted losses.
    pub(crate) predicted: Option<Box<Losses>>,
}

impl Request {
    pub(crate) fn new(rid: &str, at: MonoNs) -> Self {
        Self {
            rid: rid.into(),
            streams: SmallVec::new(),
            passing: Vec::new(),
            first_at: at,
            last_at: at,
            sent_first: None,
            taken_first: None,
            first_take_missed: false,
            outlived: false,
            gap_ns: None,
            tokens_sent: 0,
            tokens_taken: 0,
            tokens_delivered: 0,
            chunks_sent: 0,
            wire_missing: 0,
            prompt_tokens: None,
            cached_tokens: None,
            retractions: 0,
            finish: None,
            called: None,
            final_taken: false,
            line: None,
            mapped: true,
            queued: false,
            inflated: false,
            odd: false,
            sums_up: false,
            finish_seen: false,
            burst: 0,
            burst_seen: false,
            skips_nothing: false,
            sharing: 0,
            silence_ns: None,
            marks: None,
            delivered_first: None,
            pace: None,
            losses: None,
            predicted: None,
            taken_last: [0; 3],
        }
    }

    /// When its oldest chunk was received that the process at the end of this stream's hop has not sent on yet; `None` when there
    /// is none.
    pub(crate) fn inside_since(&self, stream: &Stream) -> Option<MonoNs> {
        self.passing.iter().find_map(|passing| passing.since(stream.ends.to))
    }

    /// Something of each line of the cache that every chunk needs.
    pub(crate) fn lines(&self) -> [u64; 4] {
        let stream = self.streams.first();
        [
            self.last_at.0,
            u64::from(self.tokens_taken),
            self.called.map_or(0, |called| called.burst),
            stream.map_or(0, |stream| stream.last_at.0),
        ]
    }

    /// SGLang's request id.
    pub fn rid(&self) -> &str {
        &self.rid
    }

    /// When it was first seen, on any hop.
    pub fn first_at(&self) -> MonoNs {
        self.first_at
    }

    /// When it was last seen, on any hop.
    pub fn last_at(&self) -> MonoNs {
        self.last_at
    }

    /// Nanoseconds from its first send by the scheduler to its first take by the tokenizer; `None` while either is unseen.
    pub fn gap_ns(&self) -> Option<u64> {
        self.gap_ns
    }

    /// Whether another live request had its rid at some time: nothing of it is judged.
    pub fn is_shared(&self) -> bool {
        self.sharing > 0
    }

    /// When its first chunk was sent by the scheduler; `None` when that was not seen.
    pub fn sent_first(&self) -> Option<MonoNs> {
        self.sent_first
    }

    /// When its first chunk was taken by the tokenizer; `None` when that was not seen.
    pub fn taken_first(&self) -> Option<MonoNs> {
        self.taken_first
    }

    /// Since when its first token waits for the tokenizer; `None` when it does not, or that cannot be seen.
    pub fn waiting_since(&self) -> Option<MonoNs> {
        self.sent_first
            .filter(|_| self.taken_first.is_none() && !self.first_take_missed)
    }

    /// Tokens sent by the scheduler.
    pub fn tokens_sent(&self) -> u32 {
        self.tokens_sent
    }

    /// Tokens taken by the tokenizer; only meaningful where takes are seen.
    pub fn tokens_taken(&self) -> u32 {
        self.tokens_taken
    }

    /// Tokens delivered; only meaningful where deliveries are seen.
    pub fn tokens_delivered(&self) -> u32 {
        self.tokens_delivered
    }

    /// Chunks sent by the scheduler.
    pub fn chunks_sent(&self) -> u32 {
        self.chunks_sent
    }

    /// Length of its prompt, where a frame said it.
    pub fn prompt_tokens(&self) -> Option<u32> {
        self.prompt_tokens
    }

    /// Prompt tokens found in the prefix cache, where a frame said it.
    pub fn cached_tokens(&self) -> Option<u32> {
        self.cached_tokens
    }

    /// How often the scheduler has retracted it, as far as frames say.
    pub fn retractions(&self) -> u32 {
        self.retractions
    }

    /// How it ended; `None` while it lives.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Its part on each hop, in the order the hops were met.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Its delivery tracker; `None` if deliveries are not observed or its response carries text only.
    fn seen_line(&self) -> Option<&Line> {
        self.line.as_deref().filter(|line| !line.text)
    }

    /// Outcomes of its chunks; `None` if its deliveries are not observed.
    pub fn fates(&self) -> Option<Fates> {
        self.seen_line().map(|l| l.fates)
    }

    /// Chunks sent and not yet delivered; `None` where its deliveries are not seen.
    pub fn outstanding(&self) -> Option<u64> {
        self.seen_line().map(Line::outstanding)
    }

    /// Tokens that never crossed the wire, by its streams' own arithmetic.
    pub fn wire_missing(&self) -> u32 {
        self.wire_missing
    }

    /// Whether a stream of it lists more tokens than it has.
    pub fn inflated(&self) -> bool {
        self.inflated
    }

    /// Whether some wakeup took more than one chunk of it.
    pub fn bursts(&self) -> bool {
        self.burst_seen
    }

    /// Longest time between two of its chunks at the scheduler, in nanoseconds; `None` before the second.
    pub fn silence_ns(&self) -> Option<u64> {
        self.silence_ns
    }

    /// When its first tokens were accepted for its client; `None` when that was not seen.
    pub fn delivered_first(&self) -> Option<MonoNs> {
        self.delivered_first
    }

    /// Inter-token latency at both ends; nothing where deliveries are not seen.
    pub fn paces(&self) -> Paces {
        self.pace.as_ref().map(|pace| pace.brief()).unwrap_or_default()
    }

    /// Losses proven by deliveries; `None` if there are none.
    pub fn losses(&self) -> Option<&Losses> {
        self.losses.as_deref()
    }

    /// Losses predicted from its receives and the known behaviour of the release; `None` if there are none.
    pub fn predicted(&self) -> Option<&Losses> {
        self.predicted.as_deref()
    }

    /// The chunk taken last is expected to be dropped.
    pub(crate) fn foresee_drop(&mut self, shelf: &mut Shelf, limits: &Limits, reached: &mut ReachedCounts) {
        let [end, tokens, nth] = self.taken_last;
        let predicted = self.predicted.get_or_insert_default();
        predicted.chunks += 1;
        if tokens == 0 {
            return;
        }
        let range = LostRange {
            tokens: [end.saturating_sub(tokens) + 1, end],
            chunks: Some([nth; 2]),
            ids: Vec::new(),
        };
        shelf.keep(predicted, range, limits, reached);
    }

    /// Removes and returns its losses; `None` if there are none.
    pub(crate) fn take_losses(&mut self) -> Option<Lossy> {
        let (confirmed, predicted) = (self.losses.take(), self.predicted.take());
        (confirmed.is_some() || predicted.is_some()).then(|| Lossy {
            rid: self.rid.clone(),
            first_at: self.first_at,
            finish: self.finish,
            tokens_sent: self.tokens_sent,
            tokens_delivered: self.seen_line().map(|_| self.tokens_delivered),
            confirmed,
            predicted,
        })
    }

    pub(crate) fn summary(self, worker: Option<u16>) -> Summary {
        let (paces, fates) = (self.paces(), self.fates());
        Summary {
            tokens_delivered: self.seen_line().map(|_| self.tokens_delivered),
            coalesced: fates.map(|f| f.coalesced as u32),
            dropped: fates.map(|f| f.dropped as u32),
            tokens_lost: fates.map(|f| f.tokens_lost as u32),
            rid: self.rid,
            first_at: self.first_at,
            last_at: self.last_at,
            sent_first: self.sent_first,
            taken_first: self.taken_first,
            gap_ns: self.gap_ns,
            tokens_sent: self.tokens_sent,
            chunks_sent: self.chunks_sent,
            prompt_tokens: self.prompt_tokens,
            finish: self.finish,
            tokens_taken: self.tokens_taken,
            wire_missing: self.wire_missing,
            retractions: self.retractions,
            inflated: self.inflated,
            bursts: self.burst_seen,
            silence_ns: self.silence_ns,
            delivered_first: self.delivered_first,
            paces,
            worker,
        }
    }
}

/// Summary of a finished request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// SGLang's request id.
    pub rid: Box<str>,
    /// When it was first seen.
    pub first_at: MonoNs,
    /// When it was last seen.
    pub last_at: MonoNs,
    /// When its first chunk was sent by the scheduler; `None` when that was not seen.
    pub sent_first: Option<MonoNs>,
    /// When its first chunk was taken by the tokenizer; `None` when that was not seen.
    pub taken_first: Option<MonoNs>,
    /// First take at the tokenizer minus first send by the scheduler, in nanoseconds.
    pub gap_ns: Option<u64>,
    /// Tokens sent by the scheduler.
    pub tokens_sent: u32,
    /// Chunks sent by the scheduler.
    pub chunks_sent: u32,
    /// Length of its prompt.
    pub prompt_tokens: Option<u32>,
    /// How it ended; `None` when it was forgotten unfinished.
    pub finish: Option<Finish>,
    /// Tokens taken by the tokenizer; only meaningful where takes are seen.
    pub tokens_taken: u32,
    /// Tokens delivered; `None` where deliveries are not seen.
    pub tokens_delivered: Option<u32>,
    /// Chunks that left inside another chunk's delivery; `None` where deliveries are not seen.
    pub coalesced: Option<u32>,
    /// Chunks proven lost; `None` where deliveries are not seen.
    pub dropped: Option<u32>,
    /// Tokens in them.
    pub tokens_lost: Option<u32>,
    /// Tokens that never crossed the wire.
    pub wire_missing: u32,
    /// How often the scheduler retracted it.
    pub retractions: u32,
    /// A stream of it listed more tokens than it had.
    pub inflated: bool,
    /// Some wakeup took more than one chunk of it.
    pub bursts: bool,
    /// Longest time between two of its chunks at the scheduler, in nanoseconds.
    pub silence_ns: Option<u64>,
    /// When its first tokens were accepted for its client; `None` when that was not seen.
    pub delivered_first: Option<MonoNs>,
    /// Inter-token latency at both ends; nothing where deliveries are not seen.
    pub paces: Paces,
    /// The tokenizer worker that it went to; `None` where there is only one, or it is not known.
    pub worker: Option<u16>,
}

/// Why a record is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Ended or overwritten, and its last takes and deliveries came or were waited for.
    Over,
    /// Silent for too long.
    Orphaned,
    /// Made room for others.
    Forgotten,
}
