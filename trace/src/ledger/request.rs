//! One request: its state while it is live, and its summary after it has finished.

use std::hint::black_box;
use std::num::NonZeroU64;
use std::ops::Deref;

use smallvec::SmallVec;

use serde::{Deserialize, Serialize};

use super::answer::ResponseEnd;
use super::delivery_tracker::DeliveryTracker;
use super::hop::BurstPosition;
use super::limits::CountedLimits;
use super::losses::{LossMemory, Losses, Lossy, LostRange};
use super::outcome::OutcomeCounts;
use super::processing_stage::InProcess;
use super::request_details::{RequestDetails, RequestDispatch};
use super::stages::StageMarks;
use super::stream::Stream;
use crate::clock::{CompactNs, MonoNs};
use crate::event::{ArrivalTimes, EngineTimes, Finish, TraceParent, UnknownArrival};
use crate::stats::{Spread, Tally};

/// A request that is live, or waits for its last receive or delivery. Fields keep the order written here: those that every chunk reads
/// or writes come first, in four cache lines.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub struct Request {
    /// The engine's request id.
    pub rid: Box<str>,
    /// Its rid maps to this record. False once another request reuses the rid.
    pub(crate) is_mapped: bool,
    /// The receive of its first chunk was missed, or its time was.
    pub(crate) first_receive_missed: bool,
    pub(crate) is_after_engine_end: bool,
    /// Its final chunk has left the tokenizer's inbox.
    pub(crate) final_received: bool,
    /// Its finish was sent and, as far as receives are observed, has not reached the tokenizer.
    pub(crate) is_end_in_transit: bool,
    /// In the queue of finished requests that are kept briefly.
    pub(crate) is_closing_soon: bool,
    /// One of its streams lists more ids than new tokens.
    pub(crate) inflated: bool,
    /// The counts of one of its streams do not add up.
    pub(crate) has_odd_counts: bool,
    /// A consumer adds up its cumulative counts.
    pub(crate) has_summed_counts: bool,
    /// Its chunks went to more than one receiver of a hop.
    pub(crate) changed_receiver: bool,
    /// A frame with its finish was observed.
    pub(crate) finish_seen: bool,
    /// Several of its chunks were received in one wakeup.
    pub(crate) burst_seen: bool,
    /// Its response loses no tokens when its waiter skips chunks: it carries text, or one body at the end.
    pub(crate) is_lossless: bool,
    /// The arguments of its tool calls are not those that the engine sent.
    pub(crate) damaged_call: bool,
    /// Its first chunk has one token, as that of a streamed response has.
    pub(crate) starts_with_one_token: bool,
    pub(crate) is_ttft_recorded: bool,
    /// Its response is one body, written at the end.
    pub(crate) has_one_body: bool,
    /// How it ended; `None` while it is live.
    pub finish: Option<Finish>,
    /// How often the scheduler has retracted it, according to its frames.
    pub retractions: u32,
    /// When it was last seen, on any hop.
    pub last_at: MonoNs,
    /// Longest time between two of its chunks at the scheduler, in nanoseconds; 1 for an equal time.
    pub(crate) silence_ns: Option<NonZeroU64>,
    pub(crate) prompt_tokens: Option<u32>,
    pub(crate) cached_tokens: Option<u32>,
    pub(crate) chunks_sent: u32,
    /// Tokens sent by the scheduler.
    pub tokens_sent: u32,
    pub(crate) tokens_received: u32,
    pub(crate) last_received: ReceivedChunk,
    /// Number of its chunks that its waiter finds when it runs.
    pub(crate) burst: u32,
    pub(crate) wire_missing: u32,
    /// When the tokenizer received its first chunk; `None` if not observed.
    pub received_first: Option<MonoNs>,
    /// Position of the receive that last woke its waiter.
    pub(crate) last_wakeup: Option<BurstPosition>,
    pub(crate) tracker: Option<Box<DeliveryTracker>>,
    /// Inter-token latency, if deliveries are observed.
    pub(crate) itl: Option<Box<InterTokenLatency>>,
    /// Its stream on each hop, in the order first observed.
    pub streams: SmallVec<[Stream; 2]>,
    /// Unmatched times of its chunks inside processes between two hops.
    pub(crate) in_process: Vec<InProcess>,
    /// When it was first seen, on any hop.
    pub first_at: MonoNs,
    /// Moments before its first token, and the end of its response; `None` without any.
    pub(crate) details: Option<Box<RequestDetails>>,
    /// First send by the scheduler, if it was the request's first chunk.
    pub sent_first: Option<MonoNs>,
    /// See [`Self::gap_ns`].
    pub(super) gap: CompactNs,
    /// Tokens delivered; only meaningful if deliveries are observed.
    pub tokens_delivered: u32,
    /// Number of live requests with its rid, once it was shared; 1 after the others have ended. 0 if never shared.
    pub(crate) sharing_requests: u8,
    /// See [`Self::delivered_first`].
    pub(super) delivered_first_ns: CompactNs,
    pub(crate) marks: Option<Box<StageMarks>>,
    /// Losses proven by deliveries.
    pub(crate) losses: Option<Box<Losses>>,
    pub(crate) predicted: Option<Box<Losses>>,
}

/// Tokens that seemed to be missing, and that a late chunk brought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundTokens {
    /// Tokens that are missing no more on the chunk's hop.
    pub(crate) on_hop: u32,
    /// Those of them that are missing on no other hop.
    pub(crate) of_request: u32,
}

impl Request {
    pub(crate) fn new(rid: &str, at: MonoNs) -> Self {
        Self { rid: rid.into(), first_at: at, last_at: at, is_mapped: true, ..Self::default() }
    }

    /// Nanoseconds from its first send by the scheduler to its first receive by the tokenizer; `None` unless both are observed.
    pub fn gap_ns(&self) -> Option<u64> {
        self.gap.get()
    }

    /// When its first tokens were accepted for its client; `None` if that was not observed, and before that.
    pub fn delivered_first(&self) -> Option<MonoNs> {
        self.delivered_first_ns.get().map(MonoNs)
    }

    /// When it reached the server; `None` until its response begins, and where that is not observed.
    pub fn arrival(&self) -> Option<Result<ArrivalTimes, UnknownArrival>> {
        self.details.as_ref()?.arrival
    }

    /// Whether its response is streamed: it is not one body, and its first chunk has one token.
    pub(crate) fn is_streamed(&self) -> bool {
        self.starts_with_one_token && !self.has_one_body
    }

    /// Its dispatch to the scheduler; `None` if not observed.
    pub fn dispatch(&self) -> Option<RequestDispatch> {
        self.details.as_ref()?.dispatch
    }

    /// The engine's own times; `None` if no observed message has any: see [`super::Ledger::reasons_for_absent_engine_times`].
    pub fn engine_times(&self) -> Option<EngineTimes> {
        self.details.as_ref()?.engine_times
    }

    /// Loads the four cache lines that every chunk needs, by reading a field in each. The order of the fields in [`Request`] ensures that.
    pub(crate) fn touch_cache_lines(&self) {
        // Without `black_box`, the compiler would remove reads whose results are not used.
        black_box([
            self.last_at.0,
            u64::from(self.tokens_received),
            self.last_wakeup.map_or(0, |wakeup| wakeup.burst),
            self.streams.first().map_or(0, |stream| stream.last_at.0),
        ]);
    }

    /// Whether another live request had its rid at some time. If so, it is not judged.
    pub(crate) fn is_shared(&self) -> bool {
        self.sharing_requests > 0
    }

    /// Since when its first token waits for the tokenizer; `None` if it does not wait, or that is unknown.
    pub fn first_token_waiting_since(&self) -> Option<MonoNs> {
        // Nobody waits for the tokens of an aborted request.
        let is_aborted = self.finish == Some(Finish::Abort);
        if self.received_first.is_some() || self.first_receive_missed || is_aborted {
            return None;
        }
        self.sent_first
    }

    /// Whether its client waits for its end, although the scheduler has sent it.
    pub fn is_end_in_transit(&self) -> bool {
        self.is_end_in_transit
    }

    /// Its delivery tracker; `None` if deliveries are not observed or its response carries text only.
    fn judged_tracker(&self) -> Option<&DeliveryTracker> {
        self.tracker.as_deref().filter(|tracker| !tracker.is_text_only)
    }

    /// Number of its chunks by outcome; `None` if its deliveries are not observed.
    pub fn outcomes(&self) -> Option<OutcomeCounts> {
        self.judged_tracker().map(|tracker| tracker.outcomes)
    }

    /// Losses proven by deliveries; `None` if there are none.
    pub fn losses(&self) -> Option<&Losses> {
        self.losses.as_deref()
    }

    /// Losses predicted from its receives and the known behaviour of the release; `None` if there are none.
    pub fn predicted(&self) -> Option<&Losses> {
        self.predicted.as_deref()
    }

    /// Inter-token latency at both ends; empty if deliveries are not observed.
    pub fn itl(&self) -> ItlEnds {
        let Some(itl) = &self.itl else { return ItlEnds::default() };
        ItlEnds { sent: Spread::of_tally(&itl.sent), delivered: Spread::of_tally(&itl.delivered) }
    }

    /// Adds tokens that did not reach the hop (channel) of the stream with this index. Returns how many of them no other hop has shown
    /// before. Tokens missing on one hop are missing on all later ones, but were lost only once.
    pub(crate) fn add_wire_loss_and_count_new(&mut self, stream_index: usize, missing_tokens: u32) -> u32 {
        let stream = &mut self.streams[stream_index];
        stream.missing_tokens = stream.missing_tokens.saturating_add(missing_tokens);
        // The request has lost as many as are missing on the hop that misses most.
        let newly_missing = stream.missing_tokens.saturating_sub(self.wire_missing);
        self.wire_missing += newly_missing;
        newly_missing
    }

    /// Takes back tokens that seemed to be missing on the hops of this group, because a late chunk brought them. `max_tokens`: maximum
    /// number of tokens that it can have brought.
    #[cold]
    pub(crate) fn take_back_wire_loss(&mut self, group_index: usize, max_tokens: u32) -> FoundTokens {
        let mut on_hop = 0;
        for stream in self.streams.iter_mut().filter(|stream| stream.is_on_group(group_index)) {
            let remaining = max_tokens - on_hop;
            let found = stream.missing_tokens.min(remaining);
            stream.missing_tokens -= found;
            on_hop += found;
        }
        // The request misses as many tokens as the stream that misses most.
        let most_missing = self.streams.iter().map(|stream| stream.missing_tokens).max().unwrap_or(0);
        let of_request = self.wire_missing.saturating_sub(most_missing);
        self.wire_missing -= of_request;
        FoundTokens { on_hop, of_request }
    }

    /// Adds the chunk received last to the predicted losses. The next one, received at `at`, replaced it before the task that waits for the
    /// request's chunks ran.
    pub(crate) fn add_predicted_drop_of_last_received(
        &mut self,
        at: MonoNs,
        loss_memory: &mut LossMemory,
        limits: &mut CountedLimits,
    ) {
        let ReceivedChunk { end_count, tokens, number } = self.last_received;
        let predicted = self.predicted.get_or_insert_default();
        predicted.chunks += 1;
        // A chunk without tokens has no range of them.
        if tokens == 0 {
            return;
        }
        let first_token = end_count.saturating_sub(tokens) + 1;
        let range = LostRange { tokens: [first_token, end_count], chunks: Some([number; 2]), ids: Vec::new() };
        loss_memory.add_lost_range_within_limits(at, predicted, range, limits);
    }

    /// Removes and returns its confirmed and predicted losses; `None` if there are none.
    pub(crate) fn take_losses(&mut self) -> Option<Lossy> {
        let confirmed = self.losses.take();
        let predicted = self.predicted.take();
        if confirmed.is_none() && predicted.is_none() {
            return None;
        }
        Some(Lossy {
            rid: self.rid.clone(),
            first_at: self.first_at,
            finish: self.finish,
            tokens_sent: self.tokens_sent,
            tokens_delivered: self.judged_tracker().map(|_| self.tokens_delivered),
            confirmed,
            predicted,
        })
    }

    /// Numbers of the request, for tables and exports. `worker`: the one that it belongs to, if there are several.
    pub(crate) fn numbers(&self, worker: Option<u16>, observes_receives: bool) -> RequestNumbers {
        // If deliveries are not observed, this is `None`, and so is everything below that they would show.
        let outcomes = self.outcomes();
        RequestNumbers {
            first_at: self.first_at,
            last_at: self.last_at,
            arrival: self.arrival(),
            trace_parent: self.details.as_ref().and_then(|details| details.trace_parent),
            dispatch: self.dispatch(),
            engine_times: self.engine_times(),
            sent_first: self.sent_first,
            // The first stream is the scheduler's.
            sent_last: self.sent_first.and(self.streams.first().map(|stream| stream.last_at)),
            received_first: self.received_first,
            processed_first: self.details.as_ref().and_then(|details| details.processed),
            delivered_first: self.delivered_first(),
            gap_ns: self.gap_ns(),
            silence_ns: self.silence_ns.map(NonZeroU64::get),
            tokens_sent: self.tokens_sent,
            tokens_received: observes_receives.then_some(self.tokens_received),
            tokens_delivered: outcomes.map(|_| self.tokens_delivered),
            tokens_lost: outcomes.map(|counts| counts.tokens_lost as u32),
            wire_missing: self.wire_missing,
            chunks_sent: self.chunks_sent,
            delivered: outcomes.map(|counts| counts.delivered as u32),
            merged: outcomes.map(|counts| counts.merged as u32),
            dropped: outcomes.map(|counts| counts.dropped as u32),
            unjudged: outcomes.map(|counts| counts.unjudged as u32),
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            finish: self.finish,
            response_end: self.details.as_ref().and_then(|details| details.response_end),
            retractions: self.retractions,
            inflated: self.inflated || self.tracker.as_deref().is_some_and(|tracker| tracker.is_inflated),
            bursts: self.burst_seen,
            damaged_call: self.damaged_call,
            // From the engine's log only. The ledger adds what frames show.
            is_abandoned: self.marks.as_deref().is_some_and(StageMarks::is_abandoned),
            changed_receiver: self.changed_receiver,
            is_streamed: self.is_streamed(),
            itl: self.itl(),
            worker,
        }
    }
}

/// Position of a received chunk in its request's output.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceivedChunk {
    /// Cumulative count after it.
    pub(crate) end_count: u32,
    pub(crate) tokens: u32,
    /// Number within the request (1-based).
    pub(crate) number: u32,
}

/// Time between chunks with tokens, divided by the tokens of the later chunk and counted once for each token. The engine's own metric
/// `inter_token_latency_seconds` and its benchmark use the same definition.
#[derive(Clone, Debug, Default)]
pub(crate) struct InterTokenLatency {
    pub(crate) sent: Tally,
    pub(crate) delivered: Tally,
}

/// A request's inter-token latency at both ends, by token; quantiles are accurate to 6 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItlEnds {
    /// Between the scheduler's sends.
    pub sent: Option<Spread>,
    /// Between deliveries to the client.
    pub delivered: Option<Spread>,
}

/// Summary of a finished request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestSummary {
    /// The engine's request id.
    pub rid: Box<str>,
    /// Its numbers, which [`Deref`] gives as fields of the summary.
    pub numbers: RequestNumbers,
}

impl Deref for RequestSummary {
    type Target = RequestNumbers;

    fn deref(&self) -> &RequestNumbers {
        &self.numbers
    }
}

/// Numbers of a request, live or finished. `trace::columns` lists those of tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one fact about the request, read by its name")]
pub struct RequestNumbers {
    /// When it was first seen.
    pub first_at: MonoNs,
    /// When it was last seen.
    pub last_at: MonoNs,
    /// When it reached the server; `None` until its response begins, and where that is not observed.
    pub arrival: Option<Result<ArrivalTimes, UnknownArrival>>,
    /// Span of its caller; `None` unless its head was observed and names one.
    pub trace_parent: Option<TraceParent>,
    /// Its dispatch to the scheduler; `None` if not observed.
    pub dispatch: Option<RequestDispatch>,
    /// The engine's own times; `None` if no observed message has any.
    pub engine_times: Option<EngineTimes>,
    /// When the scheduler sent its first chunk; `None` if not observed.
    pub sent_first: Option<MonoNs>,
    /// When the scheduler sent its latest chunk; `None` unless the first one was observed.
    pub sent_last: Option<MonoNs>,
    /// When the tokenizer received its first chunk; `None` if not observed.
    pub received_first: Option<MonoNs>,
    /// When the tokenizer had processed the message with its first chunk; `None` if that or the request's dispatch was not observed.
    pub processed_first: Option<MonoNs>,
    /// When its first tokens were accepted for its client; `None` if not observed.
    pub delivered_first: Option<MonoNs>,
    /// First receive by the tokenizer minus first send by the scheduler, in nanoseconds.
    pub gap_ns: Option<u64>,
    /// Longest time between two of its chunks at the scheduler, in nanoseconds.
    pub silence_ns: Option<u64>,
    /// Tokens sent by the scheduler.
    pub tokens_sent: u32,
    /// Tokens received by the tokenizer; `None` if receives are not observed.
    pub tokens_received: Option<u32>,
    /// Tokens delivered; `None` if deliveries are not observed.
    pub tokens_delivered: Option<u32>,
    /// Tokens of chunks proven dropped; `None` if deliveries are not observed.
    pub tokens_lost: Option<u32>,
    /// Tokens that never crossed the wire.
    pub wire_missing: u32,
    /// Chunks sent by the scheduler.
    pub chunks_sent: u32,
    /// Chunks delivered, of several in one delivery the first; `None` if deliveries are not observed.
    pub delivered: Option<u32>,
    /// Chunks merged into another chunk's delivery; `None` if deliveries are not observed.
    pub merged: Option<u32>,
    /// Chunks proven dropped; `None` if deliveries are not observed.
    pub dropped: Option<u32>,
    /// Chunks with an unknown outcome; `None` if deliveries are not observed.
    pub unjudged: Option<u32>,
    /// Number of prompt tokens; `None` if no frame contained it.
    pub prompt_tokens: Option<u32>,
    /// Prompt tokens found in the prefix cache; `None` if no frame contained it.
    pub cached_tokens: Option<u32>,
    /// How it ended; `None` if it is live, or was removed unfinished.
    pub finish: Option<Finish>,
    /// How its response ended; `None` before that, and where responses are not observed.
    pub response_end: Option<ResponseEnd>,
    /// How often the scheduler retracted it.
    pub retractions: u32,
    /// One of its streams listed more ids than new tokens, or its consumer counted more tokens than were generated.
    pub inflated: bool,
    /// Several of its chunks were received in one wakeup.
    pub bursts: bool,
    /// The arguments of its tool calls are not those that the engine sent.
    pub damaged_call: bool,
    /// The scheduler continued it without a client, or after its abort.
    pub is_abandoned: bool,
    /// Its chunks went to more than one receiver of a hop.
    pub changed_receiver: bool,
    /// Its response is streamed, so that it has a time to first token.
    pub is_streamed: bool,
    /// Inter-token latency at both ends; empty if deliveries are not observed.
    pub itl: ItlEnds,
    /// Its tokenizer worker; `None` if there is only one, or it is unknown.
    pub worker: Option<u16>,
}

/// Why a record is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// Ended or overwritten, and its last receives and deliveries have arrived or are no longer waited for.
    Ended,
    Orphaned,
    Evicted,
}
