//! State of a run in bounded memory: per request, per hop, and in total.
//!
//! [`Ledger::apply`] enters events and [`Ledger::tick`] advances time. Detectors, reports and screens read the state.

mod absence;
mod answer;
mod chunk;
mod clientless;
mod delivery;
mod delivery_tracker;
mod dispatched;
mod early_deliveries;
mod engine_silence;
mod finished;
mod first_token_waits;
mod frame;
mod frontend;
mod history;
mod hop;
mod hop_announcement;
mod hops;
mod invariant;
mod kernel_queue;
mod lane;
mod lifecycle;
mod limits;
mod losses;
mod marked_frames;
mod outcome;
mod pair_messages;
mod prefill;
mod processing_stage;
mod receive;
mod receiver;
mod request;
mod request_table;
mod request_timeline;
mod retries;
mod shared_rid;
mod stacks;
pub mod stages;
mod stream;
mod stream_count;
mod summed_counts;
#[cfg(test)]
#[path = "../../tests/common/path.rs"]
mod test_path;
mod threads;
mod time_use;
mod tool_calls;
mod totals;
mod ttft;
mod unanswered;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use absence::AwayTimes;
pub use answer::ResponseEnd;
pub use dispatched::{DispatchCounts, EngineTimesCounts, RequestAbort, RequestDispatch};
pub use engine_silence::{EngineSilence, EngineSilences};
#[cfg(test)]
pub(crate) use engine_silence::{MIN_STREAMS, MIN_TIMES_USUAL};
pub(crate) use first_token_waits::WaitBreakdown;
pub use frontend::{FrontendResponse, FrontendWaits};
pub use history::{ChunkRecord, DEFAULT_CHUNK_HISTORY, DeliveryRecord, RequestHistory};
pub use hop::{Hop, HopCounts};
pub use hops::HopGroup;
pub use kernel_queue::KernelQueue;
pub use lane::LaneCounts;
pub use limits::{BOUNDS, Bound, Limits, ReachedLimit};
pub use losses::{Losses, Lossy, LostRange};
pub use outcome::{ChunkOutcome, JudgedChunks, OutcomeCounts, UnjudgedCause};
pub use pair_messages::{PairMessageCounts, PairTimes};
pub use prefill::PrefillComparison;
#[cfg(test)]
pub(crate) use prefill::{MIN_OTHERS, MIN_TIMES_OTHERS};
pub use processing_stage::ProcessingStage;
pub use request::{ItlEnds, Request, RequestNumbers, RequestSummary};
pub use request_timeline::{ClosedRequest, FrameTimes, HopTimes, NoteKind, RequestNote, RequestTimeline, TimedRequest};
pub use retries::AbortedRetry;
pub use stacks::{StackCounts, StackFunction, StackHits, StackRole};
pub use stages::{AbandonedRequest, AbandonedRequests, Stages};
pub use stream::Stream;
pub use stream_count::Evidence;
pub use threads::Thread;
pub use time_use::TimeUse;
pub use tool_calls::{ToolCallResponse, ToolCallResponses};
pub use totals::{
    AffectedRequests, AffectedTotal, AnswerTotals, ChunkCounts, EngineFailure, IdCounts, Inflation, MissedCounts,
    ModeCounts, Predictions, RequestCounts, TokenCounts, Totals,
};
pub use ttft::{LateLeg, LegLengths, TimedLeg, Ttft, TtftGroup, TtftLeg, TtftMoment, TtftPath};
#[cfg(test)]
pub(crate) use unanswered::UNANSWERED_NS;
pub use unanswered::UnansweredRequest;

use self::clientless::ClientlessRequests;
use self::dispatched::DispatchedRequests;
use self::early_deliveries::EarlyDeliveries;
use self::finished::FinishedRequests;
use self::first_token_waits::FirstTokenWaits;
use self::history::ChunkHistory;
use self::hops::Hops;
use self::lane::{FrameLoad, PendingChunk};
use self::limits::CountedLimits;
use self::losses::LossMemory;
use self::outcome::JudgedList;
use self::pair_messages::PairMessages;
use self::request_table::RequestTable;
use self::request_timeline::Timelines;
use self::retries::Retries;
use self::shared_rid::Predecessor;
use self::stacks::Stacks;
use self::threads::Threads;
use crate::clock::MonoNs;
use crate::engine::{EngineState, Engines, Mode, Waiter};
use crate::event::{Event, Missed, MissedCause, Undecoded, What};
use crate::id::HopId;
pub use crate::id::Ticket;
use crate::stats::{Buckets, Distribution};

/// Caps a number from an event, so that sums of hostile values cannot overflow.
fn capped(number: u64) -> u64 {
    const MAX: u64 = 1 << 40;
    number.min(MAX)
}

/// Wait of a first token between scheduler and tokenizer that causes a warning, in nanoseconds.
pub const GAP_WARNING_NS: u64 = 1_000_000_000;

/// Worst observed wait of a first token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorstGap {
    /// Length in nanoseconds.
    pub ns: u64,
    /// Rid of the request.
    pub rid: Box<str>,
    /// When the wait ended.
    pub at: MonoNs,
}

impl WorstGap {
    fn keep_longest(&mut self, at: MonoNs, rid: &str, ns: u64) {
        if ns >= self.ns {
            *self = Self { ns, rid: rid.into(), at };
        }
    }
}

/// State of a run.
#[derive(Debug, Default)]
pub struct Ledger {
    limits: CountedLimits,
    engine: EngineState,
    hops: Hops,
    table: RequestTable,
    finished: FinishedRequests,
    /// Finished requests that lost tokens, oldest first. Kept longer than the others.
    lossy: VecDeque<Lossy>,
    /// Finished requests kept briefly to recognise duplicates, by the time at which they are closed.
    lingering: VecDeque<(MonoNs, Ticket)>,
    /// Finished requests that wait for receives and deliveries, by the latest time at which they are closed.
    settling: VecDeque<(MonoNs, Ticket)>,
    totals: Totals,
    gap: Distribution,
    /// Gaps in the current time slot.
    gap_slot: Buckets,
    worst_gap: WorstGap,
    delivery_wait: Distribution,
    worst_delivery_wait: WorstGap,
    /// Time use of the receiving threads while first tokens waited for them.
    pub(crate) waits: FirstTokenWaits,
    threads: Threads,
    stacks: Stacks,
    stages: Stages,
    clientless: ClientlessRequests,
    retries: Retries,
    itl_sent: Distribution,
    itl_delivered: Distribution,
    /// The same per token: divided by the number of tokens, and counted once for each.
    itl_sent_by_token: Distribution,
    itl_delivered_by_token: Distribution,
    silences: EngineSilences,
    /// Hashes of the ids of recent health checks.
    health_checks: VecDeque<u64>,
    started: Option<MonoNs>,
    now: MonoNs,
    pending_frames: usize,
    pending_chunks: usize,
    loss_memory: LossMemory,
    /// Whether debug builds check the sums. False for a deserialized snapshot, whose sums may be invalid.
    is_checked: bool,
    /// Previous requests with a reused rid that had not ended, keyed by the request that has the rid now.
    predecessors: BTreeMap<Ticket, Predecessor>,
    /// Rids that several live requests shared. Later requests with one of them are not judged.
    shared_rids: BTreeSet<Box<str>>,
    /// Time of the last eviction of a request at the limit.
    last_eviction_at: Option<MonoNs>,
    /// Incremented whenever deliveries may have been missed.
    delivery_epoch: u32,
    early: EarlyDeliveries,
    dispatched: DispatchedRequests,
    pair_messages: PairMessages,
    ttft: Ttft,
    tool_calls: ToolCallResponses,
    frontend: FrontendWaits,
    pending_receive: Vec<PendingChunk>,
    /// Requests of the chunks of the last event.
    touched: Vec<Ticket>,
    /// Chunks whose outcome the last event showed.
    judged: Vec<(Ticket, JudgedChunks)>,
    history: ChunkHistory,
    /// `None` unless timelines are kept.
    timelines: Option<Box<Timelines>>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(limits: Limits) -> Self {
        let mut ledger = Self { is_checked: true, ..Self::default() };
        ledger.limits.values = limits;
        ledger
    }

    /// Enters an event. Allocates nothing for a chunk of a known request.
    pub fn apply(&mut self, event: &Event<'_>) {
        let at = event.at;
        // Events observed during the attach are applied after the first `Engine` event, but are older.
        self.started = Some(self.started.map_or(at, |started| started.min(at)));
        self.now = self.now.max(at);
        self.totals.events += 1;
        self.touched.clear();
        self.judged.clear();
        self.forget_closed();
        match &event.what {
            What::Engine(engine) => {
                self.engine.set(engine);
                self.stages.forget_meanings();
            }
            What::Hop(hop) => self.announce_hop(hop),
            What::Dispatched(dispatch) => self.record_dispatch(at, dispatch),
            What::PairMessage(message) => self.record_pair_message(at, *message),
            What::Sent(frame) => self.record_sent_frame(at, frame),
            What::SendWait(wait) => self.hops.record_send_wait(at, *wait),
            What::RequestTimes(times) => self.record_request_times(times),
            What::Received(received) => self.record_received_frame(at, received),
            What::Processed(id) => self.record_processed(at, *id),
            What::Arrived(arrival) => self.record_arrival(arrival),
            What::Traced(traced) => self.record_trace_parent(traced),
            What::Delivered(delivery) => self.record_delivery(at, delivery),
            What::Answered(answer) => self.record_answer(at, answer),
            What::Rejected(rejection) => self.totals.answers.count_rejection(rejection.status),
            What::FrontendWait(wait) => self.record_frontend_wait(at, wait),
            What::Undecoded(undecoded) => self.record_undecoded(at, undecoded),
            What::Cpu(sample) => self.record_cpu_sample(at, sample),
            What::Queue(sample) => self.record_queue_sample(at, sample),
            What::Stack(sample) => self.record_stack_sample(at, sample),
            What::Stage(stage) => self.record_stage(at, stage),
            What::LoggedState(logged) => self.record_logged_state(at, logged),
            What::Merged(merged) => self.record_merged(at, merged),
            What::Missed(missed) if missed.cause == MissedCause::Ended => self.record_engine_end(at),
            What::Missed(missed) => self.record_missed(at, missed),
        }
        self.update_timelines(event);
    }

    fn record_undecoded(&mut self, at: MonoNs, undecoded: &Undecoded<'_>) {
        self.totals.undecoded += 1;
        self.pending_receive.clear();
        self.totals.undecoded_since.get_or_insert(at);
        self.silences.forget_current();
        let Some(hop_index) = self.register_frame(at, undecoded.id) else {
            return;
        };
        let hop = &mut self.hops.all[hop_index];
        hop.count_undecoded(undecoded.reason);
        hop.counts.bytes += capped(undecoded.bytes);
        // Its content is unknown, so no stream can be judged across it.
        hop.epoch += 1;
        if let Some(lane) = hop.lanes.get_mut(&undecoded.id.lane) {
            lane.watched_frames = 0;
        }
        self.delivery_epoch += u32::from(hop.tracks_deliveries);
        if hop.shows.sent {
            let load = FrameLoad::new(0, undecoded.bytes);
            self.queue_sent_frame(at, undecoded.id, hop_index, load, undecoded.forwarded);
        } else {
            hop.counts.frames_received += 1;
        }
    }

    fn record_missed(&mut self, at: MonoNs, missed: &Missed) {
        let count = capped(missed.count);
        self.silences.forget_current();
        self.totals.missed.add_missed(at, missed.cause, count);
        let mut may_hide_deliveries = missed.hop.is_none();
        for hop in self.hops.all.iter_mut().filter(|h| missed.hop.is_none_or(|id| id == h.id)) {
            hop.epoch += 1;
            hop.reported_missed += count;
            hop.counts.lost += count;
            may_hide_deliveries |= hop.capabilities.delivered;
            for lane in hop.lanes.values_mut() {
                lane.watched_frames = 0;
                // Their receives may be among the missed observations, so they may no longer be waiting.
                self.table.mark_first_receives_missed(lane.chunks.iter().copied());
            }
        }
        self.delivery_epoch += u32::from(may_hide_deliveries);
    }

    /// Sets the known engines.
    #[must_use]
    pub(crate) fn with_engines(mut self, engines: Engines) -> Self {
        self.engine.resolve(engines);
        self
    }

    /// Keeps up to `moments` events of chunks, for [`Self::history`].
    #[must_use]
    pub(crate) fn with_history(mut self, moments: usize) -> Self {
        self.history = ChunkHistory::new(moments);
        self
    }

    /// Records the outcomes of chunks of one request. All counts of outcomes are sums of what passes here.
    fn record_outcomes(&mut self, at: MonoNs, ticket: Ticket, judged: &JudgedList) {
        self.totals.chunks.outcomes.add_counts(judged.count_outcomes());
        let Some(request) = self.table.get(ticket) else {
            return;
        };
        for &chunks in judged.iter() {
            self.history.record_outcome(at, &request.rid, chunks);
            self.judged.push((ticket, chunks));
        }
    }

    /// Chunks whose outcome the last event showed, with the rid of their request.
    pub fn judged_chunks(&self) -> impl Iterator<Item = (&str, &JudgedChunks)> {
        self.judged.iter().filter_map(|(ticket, chunks)| Some((&*self.table.get(*ticket)?.rid, chunks)))
    }

    /// Recent chunks and deliveries of a request, with the outcome of each chunk; empty unless [`crate::Config::chunk_history`] is set.
    pub fn history(&self, rid: &str) -> RequestHistory {
        self.history.history_of(rid)
    }

    /// Known properties of the engine.
    pub fn engine(&self) -> &EngineState {
        &self.engine
    }

    /// All live and settling requests, in no order.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.table.iter()
    }

    /// Current record of a rid.
    pub fn request(&self, rid: &str) -> Option<&Request> {
        self.table.get(self.table.ticket_of(rid)?)
    }

    /// Whether the request is unfinished and has produced no token for `ns`. Requests known only from the engine's log have no observed
    /// tokens, and one with missed observations since its last chunk may have continued unobserved.
    pub fn is_stalled(&self, request: &Request, now: MonoNs, ns: u64) -> bool {
        request.finish.is_none()
            && now.since(request.last_at) >= ns
            && !request.streams.is_empty()
            && request.streams.iter().all(|stream| self.hops.observed_all_since(stream))
            && !self.may_hold_tokens_back(request)
    }

    /// Whether the request may be producing tokens although it is silent. That is so if it may not be streamed, and its scheduler has made
    /// fewer steps since its last chunk than a chunk takes.
    fn may_hold_tokens_back(&self, request: &Request) -> bool {
        let Some(tokens) = self.engine.facts().unstreamed_tokens() else {
            return false;
        };
        request.streams.iter().any(|stream| {
            let is_unstreamed = stream.chunks <= 1 + stream.count.high / tokens;
            is_unstreamed && (1..tokens as usize).contains(&self.hops.sends_since(stream))
        })
    }

    /// Numbers of a live request.
    pub fn numbers(&self, request: &Request) -> RequestNumbers {
        request.numbers(self.hops.worker_of(&request.streams), self.observes_receives())
    }

    /// Number of live requests: neither finished nor evicted.
    pub fn live_count(&self) -> u64 {
        self.table.live_count() as u64
    }

    /// Number of request records.
    pub fn record_count(&self) -> usize {
        self.table.len()
    }

    /// Finished requests, oldest first. Above the limit, ordinary ones are evicted before notable ones.
    pub fn finished(&self) -> impl DoubleEndedIterator<Item = &RequestSummary> {
        self.finished.iter()
    }

    /// Number of summaries of finished requests.
    pub fn finished_count(&self) -> usize {
        self.finished.len()
    }

    /// Whether a request lost tokens, is predicted to have lost some, has a damaged tool call, or was slow, so that an operator may look for
    /// it.
    pub fn is_notable(&self, of: &RequestSummary) -> bool {
        let lost = of.tokens_lost.unwrap_or(0) > 0 || of.wire_missing > 0 || of.damaged_call;
        lost || (of.bursts && self.predicts_drops()) || of.gap_ns >= Some(GAP_WARNING_NS)
    }

    /// Whether a burst predicts a loss: deliveries are not observed, and the engine keeps only the last of several chunks.
    pub fn predicts_drops(&self) -> bool {
        let engine = &self.engine;
        !self.observes_deliveries()
            && engine.waiter == Some(Waiter::KeepsLast)
            && engine.mode == Some(Mode::Incremental)
    }

    /// Hops in the order first observed.
    pub fn hops(&self) -> &[Hop] {
        &self.hops.all
    }

    /// The hop with this id; `None` beyond the limit of hops.
    pub fn hop(&self, id: HopId) -> Option<&Hop> {
        self.hops.get(id)
    }

    /// Name of a hop. Hops beyond the limit have none but their number.
    pub fn hop_name(&self, id: HopId) -> Cow<'_, str> {
        match self.hop(id) {
            Some(hop) => Cow::from(&self.groups()[hop.group].name),
            None => Cow::from(format!("hop {}", id.0)),
        }
    }

    /// Whether the sends on a hop are the scheduler's.
    pub fn is_origin(&self, id: HopId) -> bool {
        self.hop(id).is_some_and(|hop| hop.origin || !self.hops.any_origin)
    }

    /// Groups of hops with the same name.
    pub fn groups(&self) -> &[HopGroup] {
        &self.hops.groups
    }

    /// Groups of hops that carry output, each with its index in [`Self::groups`].
    pub fn output_groups(&self) -> impl Iterator<Item = (usize, &HopGroup)> {
        self.hops.groups.iter().enumerate().filter(|(_, group)| !group.carries_requests)
    }

    /// Processes between hops, in the order first observed; those at the path's ends have no data.
    pub fn processing_stages(&self) -> &[ProcessingStage] {
        &self.hops.processing_stages.all
    }

    /// The hops of one group.
    pub fn hops_of_group(&self, group: usize) -> impl Iterator<Item = &Hop> {
        self.hops.all.iter().filter(move |h| h.group == group)
    }

    /// Number of undecoded frames of a group by reason.
    pub fn undecoded_by_reason(&self, group: usize) -> BTreeMap<&str, u64> {
        let mut reasons = BTreeMap::new();
        for (reason, count) in self.hops_of_group(group).flat_map(|hop| &hop.undecoded) {
            *reasons.entry(reason.as_str()).or_default() += count;
        }
        reasons
    }

    /// All counters.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// First receive minus first send, over requests.
    pub fn gap(&self) -> &Distribution {
        &self.gap
    }

    /// Gaps since the last [`Self::next_slot`].
    pub(crate) fn gap_slot(&self) -> &Buckets {
        &self.gap_slot
    }

    /// Starts a new time slot: resets the values kept per slot.
    pub(crate) fn next_slot(&mut self) {
        self.gap_slot.clear();
        for group in &mut self.hops.groups {
            group.queue_wait_slot.clear();
            group.backlog_slot = group.backlog;
        }
    }

    /// Worst gap; `None` if no gap was observed.
    pub fn worst_gap(&self) -> Option<&WorstGap> {
        (self.gap.count() > 0).then_some(&self.worst_gap)
    }

    /// First delivery minus first receive, over streamed requests; minus first send if receives are not observed.
    pub fn delivery_wait(&self) -> &Distribution {
        &self.delivery_wait
    }

    /// Worst of [`Self::delivery_wait`]; `None` if none was observed.
    pub(crate) fn worst_delivery_wait(&self) -> Option<&WorstGap> {
        (self.delivery_wait.count() > 0).then_some(&self.worst_delivery_wait)
    }

    /// Time between chunks of one request at the scheduler.
    pub fn itl_sent(&self) -> &Distribution {
        &self.itl_sent
    }

    /// Time between deliveries of one request.
    pub fn itl_delivered(&self) -> &Distribution {
        &self.itl_delivered
    }

    /// Time between chunks of one request at the scheduler, divided by the tokens of the later one and counted for each.
    pub fn itl_sent_by_token(&self) -> &Distribution {
        &self.itl_sent_by_token
    }

    /// The same between its deliveries: the inter-token latency that the client saw.
    pub fn itl_delivered_by_token(&self) -> &Distribution {
        &self.itl_delivered_by_token
    }

    /// Finished requests that lost tokens, or were predicted to, oldest first.
    pub fn lossy_requests(&self) -> impl DoubleEndedIterator<Item = &Lossy> + ExactSizeIterator {
        self.lossy.iter()
    }

    /// Responses with tool calls.
    pub fn tool_calls(&self) -> &ToolCallResponses {
        &self.tool_calls
    }

    /// The limits, and how often each was reached.
    pub fn limits(&self) -> Vec<ReachedLimit> {
        self.limits.list_reached().collect()
    }

    /// Time of the earliest event; `None` without events.
    pub fn started(&self) -> Option<MonoNs> {
        self.started
    }

    /// Latest time of an event or a tick.
    pub fn now(&self) -> MonoNs {
        self.now
    }

    /// Chunks sent and not yet delivered, those of closed requests included.
    pub fn undelivered_chunks(&self) -> u64 {
        let chunks = self.totals.chunks;
        chunks.tracked - chunks.outcomes.chunks()
    }

    /// Whether the hops of this name are the path's last: those into the tokenizer.
    pub fn is_last(&self, name: &str) -> bool {
        self.hops.all.iter().any(|hop| hop.last && self.hops.groups[hop.group].name == name)
    }

    /// Whether the receives of a hop into the tokenizer are or were observed.
    pub fn observes_receives(&self) -> bool {
        self.hops.observes_receives()
    }

    /// Whether gaps are observable: sends and receives are both observed, or the engine logs both.
    pub fn observes_gaps(&self) -> bool {
        let observes_sends =
            self.hops.all.iter().any(|hop| hop.capabilities.sent && (hop.origin || !self.hops.any_origin));
        (self.observes_receives() && observes_sends) || self.stages.observes_gaps()
    }

    /// Tokens delivered; `None` if deliveries are not observed, or every response carries text only.
    pub fn tokens_delivered(&self) -> Option<u64> {
        let tokens = self.totals.tokens;
        let uncounted = tokens.delivered == 0 && tokens.uncounted > 0;
        (self.observes_deliveries() && !uncounted).then_some(tokens.delivered)
    }

    /// Reasons why parts of the data are unjudged or were evicted, one line each.
    pub fn degraded_reasons(&self) -> impl Iterator<Item = String> + use<> {
        let shared = self.totals.requests.shared;
        let shared = (shared > 0)
            .then(|| format!("{shared} requests reused the id of an unfinished request: neither is judged"));
        let reached = self.limits().into_iter().filter(|limit| limit.times > 0 && !limit.keeps_totals()).map(|limit| {
            format!(
                "limit {} = {} was reached {} times: the oldest entries were evicted",
                limit.name, limit.limit, limit.times
            )
        });
        let unnamed = self.totals.unnamed;
        let unnamed = (unnamed > 0).then(|| {
            format!(
                "{unnamed} chunks had a request id that is empty, too long or not UTF-8: they are counted for no request"
            )
        });
        shared.into_iter().chain(unnamed).chain(reached)
    }

    /// Whether deliveries are or were observed anywhere.
    pub fn observes_deliveries(&self) -> bool {
        let now = self.hops.all.iter().any(|hop| hop.shows.delivered);
        now || (self.hops.any_delivered && self.totals.tokens.delivered > 0)
    }
}
