//! Counters over the whole run.

use std::collections::BTreeMap;

use super::counted_rids::CountedRids;
use super::dispatched::DispatchCounts;
use super::engine_times::EngineTimesCounts;
use super::losses::LossMemory;
use super::occurrence_times::OccurrenceTimes;
use super::outcome::OutcomeCounts;
use super::request::Request;
use crate::clock::MonoNs;
use crate::event::MissedCause;

/// Number of affected requests, with the worst one and the times of the occurrences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AffectedRequests {
    /// Number of requests.
    pub rids: u64,
    /// Times of the occurrences.
    pub times: OccurrenceTimes,
    /// Rid of the worst request.
    pub worst: Box<str>,
    /// Amount for the worst request, in the unit of the kind.
    pub amount: u64,
    /// The requests.
    pub requests: CountedRids,
}

impl AffectedRequests {
    /// Adds an affected request. The one with the largest `amount` is the worst; of equal ones, the first by rid. `is_first_time`: the
    /// request was not counted before.
    pub(crate) fn record_request(&mut self, at: MonoNs, rid: &str, amount: u64, is_first_time: bool) {
        self.times.record(at);
        self.rids += u64::from(is_first_time);
        if is_first_time {
            self.requests.add_rid(rid);
        }
        let is_first_of_equal_ones = amount == self.amount && (self.worst.is_empty() || rid < &*self.worst);
        if amount > self.amount || is_first_of_equal_ones {
            self.amount = amount;
            if &*self.worst != rid {
                self.worst = rid.into();
            }
        }
    }

    /// Removes a request that was not affected after all.
    fn remove_request(&mut self, rid: &str) {
        self.rids = self.rids.saturating_sub(1);
        if self.rids == 0 {
            *self = Self::default();
            return;
        }
        self.requests.remove_rid(rid);
        // The second worst is not known, so the next affected request becomes the worst.
        if *self.worst == *rid {
            self.worst = Box::default();
            self.amount = 0;
        }
    }

    /// Adds an occurrence that counts by itself, as [`Self::record_request`] adds a request that was not counted before.
    pub(crate) fn record_occurrence(&mut self, at: MonoNs, rid: &str, amount: u64) {
        let is_first_time = true;
        self.record_request(at, rid, amount, is_first_time);
    }
}

impl AffectedTotal {
    /// Takes back an amount that was counted for a request. `remaining_amount`: what is left of the request's amount.
    #[cold]
    pub(crate) fn take_back_amount(&mut self, rid: &str, amount: u32, remaining_amount: u32) {
        self.total = self.total.saturating_sub(amount.into());
        if amount > 0 && remaining_amount == 0 {
            self.requests.remove_request(rid);
        }
    }
}

/// Affected requests, and an amount over all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AffectedTotal {
    /// The requests.
    pub requests: AffectedRequests,
    /// Sum over the requests.
    pub total: u64,
}

/// Number of deliveries or streams in each mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModeCounts {
    /// With new tokens only.
    pub incremental: u64,
    /// With all tokens so far.
    pub cumulative: u64,
}

/// First report of an engine that it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineFailure {
    /// Time of the report.
    pub at: MonoNs,
    /// Number of requests that were live then.
    pub live_requests: u64,
}

/// Requests by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Requests seen on any hop, without health checks.
    pub seen: u64,
    /// A finish reason was seen in a frame, including aborts.
    pub finished: u64,
    /// Finished otherwise than by an abort.
    pub completed: u64,
    /// Of those, the ones whose finish was sent and has not reached the tokenizer.
    pub ends_in_transit: u64,
    /// Aborted, by a finish reason or only by an `AbortReq`.
    pub aborted: u64,
    /// The rid was reused by another request while this one was in flight.
    pub overwritten: u64,
    /// Began while another live request had the rid, so neither is judged.
    pub shared: u64,
    /// Removed after a long silence.
    pub orphaned: u64,
    /// Evicted at a limit.
    pub evicted: u64,
    /// The first observed chunk was not the first chunk.
    pub joined_late: u64,
    /// Health checks of the server, not judged.
    pub health_checks: u64,
    /// Finished requests that still wait for their last receive or delivery.
    pub settling: u64,
    /// Closed records, each with a summary: finished and removed requests.
    pub closed: u64,
}

/// Chunks by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkCounts {
    /// Sent by the scheduler.
    pub sent: u64,
    /// Received by the tokenizer.
    pub received: u64,
    /// Tracked until delivery: each has one of these `outcomes`, is in flight, or counts as undelivered.
    pub tracked: u64,
    /// Outcomes of the chunks.
    pub outcomes: OutcomeCounts,
    /// Not delivered before their request was closed.
    pub undelivered: u64,
    /// Delivered chunks in responses that do not stream.
    pub unstreamed: u64,
    /// Repeats of an earlier finish.
    pub repeats: u64,
}

/// Tokens by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Sent by the scheduler, by its own counts.
    pub sent: u64,
    /// Received by the tokenizer.
    pub received: u64,
    /// Delivered, each counted once.
    pub delivered: u64,
    /// Sent to the tokenizer for text-only responses, where the number of delivered tokens is unknown.
    pub uncounted: u64,
    /// Of the lost tokens, those of responses that carry text only.
    pub lost_from_text: u64,
}

/// Chunks that share a wakeup with an earlier one of their request, by the engine's known behaviour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Predictions {
    /// Dropped: the waiter keeps only the last chunk, with new tokens only.
    pub dropped: u64,
    /// Merged into one, or replaced by a later chunk with the same tokens.
    pub merged: u64,
    /// Of those, chunks replaced by a later one in cumulative mode; in incremental mode they would be dropped.
    pub replaced: u64,
    /// Delivered separately.
    pub passed: u64,
    /// Unknown behaviour of the engine.
    pub unknown: u64,
    /// Maximum number of chunks of one request in one wakeup.
    pub burst_max: u32,
    /// Whether receives include their wakeup.
    pub wakeups_seen: bool,
}

/// Token counts of consumers or streams that exceed the generated tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inflation {
    /// Tokens counted by a consumer that adds up chunks.
    pub counted: u64,
    /// Tokens generated.
    pub made: u64,
    /// Affected requests.
    pub seen: AffectedRequests,
}

/// Observations that tokengap missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissedCounts {
    /// Reported by the source: the queue was full.
    pub queue_full: u64,
    /// Frame boundaries could not be found in the stream.
    pub unframed: u64,
    /// Frames larger than the capture limit.
    pub too_large: u64,
    /// Connections that ended inside a frame.
    pub cut_short: u64,
    /// Frames missing from a lane's numbering without a report of their loss.
    pub unannounced: u64,
    /// Times at which they were missed.
    pub times: OccurrenceTimes,
}

impl MissedCounts {
    /// Counts missed observations by their cause. The end of an engine is no missed observation.
    pub(crate) fn add_missed(&mut self, at: MonoNs, cause: MissedCause, count: u64) {
        let counter = match cause {
            MissedCause::QueueFull => &mut self.queue_full,
            MissedCause::Unframed => &mut self.unframed,
            MissedCause::TooLarge => &mut self.too_large,
            MissedCause::CutShort => &mut self.cut_short,
            MissedCause::Ended => return,
        };
        *counter += count;
        if count > 0 {
            self.times.record(at);
        }
    }

    /// Missed observations reported by the source, by cause.
    pub fn by_cause(&self) -> [(&'static str, u64); 4] {
        [
            ("queue_full", self.queue_full),
            ("unframed", self.unframed),
            ("too_large", self.too_large),
            ("cut_short", self.cut_short),
        ]
    }

    /// Missed observations reported by the source, over all causes.
    pub fn reported(&self) -> u64 {
        self.by_cause().iter().map(|(_, count)| count).sum()
    }
}

/// Token ids on one part of the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdCounts {
    /// Tokens that crossed, each counted once.
    pub tokens: u64,
    /// Ids listed for them.
    pub listed: u64,
    /// Sum of the chunks' cumulative counts, as far as known.
    pub cumulative: u64,
    /// Ids of chunks whose cumulative count is unknown.
    pub listed_without_count: u64,
}

impl IdCounts {
    /// Adds the counts of a chunk. `end_count`: all tokens of the request up to it, if known.
    pub(crate) fn add_counts_of_chunk(&mut self, tokens: u32, listed_ids: u32, end_count: Option<u32>) {
        self.tokens += u64::from(tokens);
        self.listed += u64::from(listed_ids);
        match end_count {
            Some(end_count) => self.cumulative += u64::from(end_count),
            None => self.listed_without_count += u64::from(listed_ids),
        }
    }

    /// Adds the counts of others.
    pub(crate) fn add_counts(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.listed += other.listed;
        self.cumulative += other.cumulative;
        self.listed_without_count += other.listed_without_count;
    }
}

/// Outcomes of responses to clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerTotals {
    /// Finished responses, one per request.
    pub seen: u64,
    /// Those that the client ended early.
    pub client_left: u64,
    /// Those that the server ended early.
    pub server_left: u64,
    /// Those in which it wrote an error.
    pub failed: u64,
    /// Those whose socket at some time accepted less data than was written.
    pub short_writes: u64,
    /// Those without token ids, so the number of their tokens is unknown.
    pub uncounted: u64,
    /// Complete responses judged by their own sums: no frame named their request, or none of its deliveries was observed.
    pub judged_alone: u64,
    /// Tokens in these responses.
    pub judged_alone_tokens: u64,
    /// Those of them that carried fewer tokens than claimed in their last event; the amount is in tokens.
    pub judged_alone_lost: AffectedRequests,
    /// Total of tokens claimed and not carried.
    pub judged_alone_tokens_lost: u64,
    /// Of these, tokens of `OpenAI` endpoints, whose events list ids.
    pub openai_tokens_lost: u64,
    /// Responses of `OpenAI` endpoints that list more ids than their last event counts; the amount is in tokens.
    pub judged_alone_repeated: AffectedRequests,
    /// Total of ids listed beyond the count.
    pub judged_alone_tokens_repeated: u64,
    /// Streams written to their end without a finish reason and `[DONE]`; the amount is in events with text or tokens.
    pub lacking_end: AffectedRequests,
    /// Streams that wrote `[DONE]`.
    pub done: u64,
    /// Those of them without a finish reason.
    pub done_without_finish: u64,
    /// Responses whose finish reason contradicts that of the engine's frames.
    pub finish_contradicted: AffectedRequests,
    /// Sum of the counts that last events claim.
    pub tokens_claimed: u64,
    /// Number of responses that claim a count.
    pub claiming: u64,
    /// Responses with an error status, by status.
    pub rejected: BTreeMap<u16, u64>,
    /// Events with text or tokens; `None` before any HTTP response.
    pub events: Option<u64>,
    /// Maximum number of tokens in one event; `None` if no event shows its tokens.
    pub event_tokens_max: Option<u32>,
}

impl AnswerTotals {
    /// Counts a response with an error status, or a stream with only an error event.
    pub(crate) fn count_error_response(&mut self, status: u16) {
        match status {
            // A stream that has begun keeps this status; its only event is an error.
            200 => {
                self.seen += 1;
                self.failed += 1;
            }
            400..600 => *self.rejected.entry(status).or_default() += 1,
            // No other status rejects a request.
            _ => {}
        }
    }
}

/// All counters.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Events applied.
    pub events: u64,
    /// Requests.
    pub requests: RequestCounts,
    /// Messages to the scheduler.
    pub dispatched: DispatchCounts,
    /// The engine's own times in messages.
    pub engine_times: EngineTimesCounts,
    /// Tokens.
    pub tokens: TokenCounts,
    /// Chunks.
    pub chunks: ChunkCounts,
    /// Chunks without a readable request id.
    pub unnamed: u64,
    /// Predictions from wakeups.
    pub predicted: Predictions,
    /// Requests predicted to lose or merge chunks.
    pub bursts: AffectedRequests,
    /// Requests predicted to lose chunks; the amount is in chunks.
    pub predicted_drops: AffectedRequests,
    /// Requests with tokens lost on the wire, and the total number of these tokens.
    pub wire_loss: AffectedTotal,
    /// Requests with inconsistent counts but no missing tokens, and the number of such chunks.
    pub anomalies: AffectedTotal,
    /// Requests with chunks proven lost; the amount is in tokens.
    pub drops: AffectedRequests,
    /// Requests with merged deliveries; the amount is in chunks.
    pub merges: AffectedRequests,
    /// Delta streams that list all ids.
    pub wire_inflation: Inflation,
    /// Consumers that count more tokens than were generated.
    pub claimed_inflation: Inflation,
    /// Consumers whose count of a request is the sum of all cumulative counts received.
    pub summed: Inflation,
    /// Token ids in deliveries.
    pub delivered_ids: IdCounts,
    /// Requests with chunks that a later one in a cumulative delivery replaced, and the number of these chunks.
    pub replaced: AffectedTotal,
    /// Deliveries. First ones that fit either mode are not counted.
    pub deliveries: ModeCounts,
    /// Finished responses.
    pub answers: AnswerTotals,
    /// Observations missed by tokengap.
    pub missed: MissedCounts,
    /// Frames that could not be decoded.
    pub undecoded: u64,
    /// Times of these frames.
    pub undecoded_times: OccurrenceTimes,
    /// Number of observed ends of the engine.
    pub engine_ends: u64,
    /// Times of these ends.
    pub engine_end_times: OccurrenceTimes,
    /// `None` if no engine reported that it failed.
    pub engine_failed: Option<EngineFailure>,
}

impl Totals {
    /// Withdraws the predicted losses of a request whose response contains the tokens of skipped chunks.
    pub(crate) fn withdraw_predicted_losses(&mut self, request: &mut Request, loss_memory: &mut LossMemory) {
        request.is_lossless = true;
        if let Some(losses) = request.predicted.take() {
            loss_memory.ranges -= losses.ranges.len();
            self.predicted.dropped -= losses.chunks;
            self.predicted_drops.rids -= 1;
        }
    }
}
