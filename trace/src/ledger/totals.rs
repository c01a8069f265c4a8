//! Counters over the whole run.

use serde::{Deserialize, Serialize};

use super::chunkline::Fates;
use super::losses::Shelf;
use super::request::Request;
use crate::clock::MonoNs;
use crate::event::LostCause;

/// The request that stands for all of a kind, and when the first was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sightings {
    /// How many requests.
    pub rids: u64,
    /// When the first was seen.
    pub since: Option<MonoNs>,
    /// The worst of them.
    pub worst: Box<str>,
    /// Severity, in the unit of the counted thing.
    pub amount: u64,
}

impl Sightings {
    pub(crate) fn enter(&mut self, at: MonoNs, rid: &str, amount: u64, new_rid: bool) {
        self.since.get_or_insert(at);
        self.rids += u64::from(new_rid);
        if amount > self.amount || self.worst.is_empty() {
            self.amount = amount;
            if &*self.worst != rid {
                self.worst = rid.into();
            }
        }
    }
}

/// Requests by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCounts {
    /// Requests seen, on any hop, health checks apart.
    pub seen: u64,
    /// A finish reason was seen in a frame, aborts included.
    pub finished: u64,
    /// Ended by an abort: by a frame that says so, or by an `AbortReq` alone.
    pub aborted: u64,
    /// Another request took the rid over in flight.
    pub overwritten: u64,
    /// Began while another live one had the rid: neither is judged.
    #[serde(default)]
    pub shared: u64,
    /// Silent too long, and forgotten.
    pub orphaned: u64,
    /// Forgotten to make room.
    pub forgotten: u64,
    /// The first chunk seen was not the first.
    pub joined_late: u64,
    /// Probes of the server's own, not judged.
    pub health_checks: u64,
    /// Of those remembered, how many have finished and wait for their last take or delivery.
    pub settling: u64,
    /// Closed records, each with a summary: finished and forgotten requests.
    pub closed: u64,
}

/// Chunks by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkCounts {
    /// Sent by the scheduler.
    pub sent: u64,
    /// Taken by the tokenizer.
    pub taken: u64,
    /// Sent to the tokenizer where deliveries are seen: each ends as one of the fates or is outstanding.
    pub lined_up: u64,
    /// Outcomes of the chunks.
    pub fates: Fates,
    /// Sent, and their request closed before they were delivered.
    pub undelivered: u64,
    /// Of those delivered, the ones in responses that do not stream.
    #[serde(default)]
    pub unstreamed: u64,
    /// Repeats of a finish that was already said.
    pub repeats: u64,
}

/// Tokens by how far they came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCounts {
    /// Sent by the scheduler, by its own count.
    pub sent: u64,
    /// Taken by the tokenizer.
    pub taken: u64,
    /// Delivered, each counted once.
    pub delivered: u64,
    /// Sent to the tokenizer for responses with text only: how many of them were delivered is unknown.
    #[serde(default)]
    pub uncounted: u64,
}

/// Chunks that share a wakeup with an earlier one of their request, by what the engine is known to do with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predictions {
    /// The waiter keeps the last only and hands out new tokens only: they are dropped.
    pub dropped: u64,
    /// They are merged into one, or replaced by a later one that says the same.
    pub coalesced: u64,
    /// Of those, the ones that a later chunk replaces in cumulative mode: with new tokens only they would be dropped.
    pub replaced: u64,
    /// Every chunk is handed out by itself.
    pub passed: u64,
    /// The engine's behaviour is unknown.
    pub unknown: u64,
    /// Most chunks of one request in one wakeup.
    pub burst_max: u32,
    /// Takes told which wakeup they belong to.
    pub wakeups_seen: bool,
}

/// Sums of ids listed against tokens made, where a stream lists more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inflation {
    /// Tokens a consumer that adds chunks up counts.
    pub counted: u64,
    /// Tokens there were.
    pub made: u64,
    /// Which requests.
    pub seen: Sightings,
}

/// Observations that tokengap missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    /// Reported by the source: the queue was full.
    pub queue_full: u64,
    /// The stream could not be framed.
    pub unframed: u64,
    /// Frames larger than the capture limit.
    pub too_large: u64,
    /// Connections that ended inside a frame.
    pub cut_short: u64,
    /// Frames that a lane's numbering shows to have passed without any report.
    pub unannounced: u64,
    /// When the first was.
    pub since: Option<MonoNs>,
}

impl Missed {
    pub(crate) fn enter(&mut self, at: MonoNs, cause: LostCause, count: u64) {
        let counter = match cause {
            LostCause::QueueFull => &mut self.queue_full,
            LostCause::Unframed => &mut self.unframed,
            LostCause::TooLarge => &mut self.too_large,
            LostCause::CutShort => &mut self.cut_short,
            LostCause::Ended => return,
        };
        *counter += count;
        self.since.get_or_insert(at);
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

    /// All that the source reported.
    pub fn reported(&self) -> u64 {
        self.by_cause().iter().map(|cause| cause.1).sum()
    }
}

/// All counters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Events entered.
    pub events: u64,
    /// Requests.
    pub requests: RequestCounts,
    /// Tokens.
    pub tokens: TokenCounts,
    /// Chunks.
    pub chunks: ChunkCounts,
    /// Chunks whose request id could not be read.
    #[serde(default)]
    pub unnamed: u64,
    /// Predictions from wakeups.
    pub predicted: Predictions,
    /// Requests predicted to lose or merge chunks.
    pub bursts: Sightings,
    /// Requests predicted to lose chunks; the amount is in chunks.
    pub foreseen: Sightings,
    /// Requests whose wire lost tokens, and how many are missing in all.
    pub wire_loss: (Sightings, u64),
    /// Chunks whose counts do not add up though nothing is missing.
    pub anomalies: (Sightings, u64),
    /// Requests with chunks proven lost; the amount is in tokens.
    pub drops: Sightings,
    /// Requests with merged deliveries; the amount is in chunks.
    pub merges: Sightings,
    /// Delta streams that list everything.
    pub wire_inflation: Inflation,
    /// Consumers that count more than there is.
    pub claimed_inflation: Inflation,
    /// Consumers whose count of a request is the sum of all cumulative counts received.
    pub summed: Inflation,
    /// Token ids in deliveries.
    pub delivered_ids: super::IdCounts,
    /// Chunks that a later one replaced in a cumulative delivery, and whose.
    pub replaced: (u64, Sightings),
    /// Deliveries in each mode: incremental, cumulative.
    /// First ones that fit either are in neither.
    pub deliveries: (u64, u64),
    /// Responses that are over.
    pub answers: super::answer::Answers,
    /// Deliveries for requests that no frame has named.
    pub deliveries_unmatched: u64,
    /// Observations missed by tokengap.
    pub missed: Missed,
    /// Frames that could not be read.
    pub undecoded: u64,
    /// When the first of them was seen.
    pub undecoded_since: Option<MonoNs>,
    /// How often the engine was seen to end.
    pub engine_ends: u64,
    /// When it last did.
    pub engine_ended: Option<MonoNs>,
}

impl Totals {
    /// Withdraws the prediction for a request whose response cannot lose a chunk that its waiter skips.
    pub(crate) fn withdraw(&mut self, request: &mut Request, shelf: &mut Shelf) {
        request.skips_nothing = true;
        if let Some(losses) = request.predicted.take() {
            shelf.ranges -= losses.ranges.len();
            self.predicted.dropped -= losses.chunks;
            self.foreseen.rids -= 1;
        }
    }
}
