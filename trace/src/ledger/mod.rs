//! State of a run in bounded memory: per request, per hop, and in total.
//!
//! [`Ledger::apply`] enters events and [`Ledger::tick`] advances time. Detectors, reports and screens read the state.

mod absence;
mod answer;
mod backlog;
mod chunk;
mod clientless;
mod counted_rids;
mod delivery;
mod delivery_tracker;
mod dispatched;
mod early_deliveries;
mod engine_silence;
mod engine_times;
mod finished;
mod first_token_path;
mod first_token_waits;
mod frame;
mod frontend;
mod gap_parts;
mod hop;
mod hop_announcement;
mod hops;
mod in_flight_entry;
mod invariant;
mod kernel_queue;
mod lane;
mod late_frames;
mod late_leg;
mod late_legs;
mod lifecycle;
mod limits;
mod losses;
mod marked_frames;
mod new_connections;
mod observation_end;
mod occurrence_times;
mod outcome;
mod pair_messages;
mod prefill;
mod process_waits;
mod processing_stage;
mod queries;
mod receive;
mod receiver;
mod recent_chunks;
mod request;
mod request_details;
mod request_life;
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
#[cfg(test)]
mod tests;
mod threads;
mod time_use;
mod tool_calls;
mod totals;
mod ttft;
mod ttft_path;
mod unanswered;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use absence::AwayTimes;
pub use answer::ResponseEnd;
#[cfg(test)]
pub(crate) use backlog::MIN_RISING_SECONDS;
pub use counted_rids::CountedRids;
pub use dispatched::{DispatchCounts, RequestAbort};
pub use engine_silence::{ControlMessages, EngineSilence, EngineSilences};
#[cfg(test)]
pub(crate) use engine_silence::{MIN_STREAMS, MIN_TIMES_USUAL};
pub use engine_times::EngineTimesCounts;
pub use first_token_path::{FirstCrossing, FirstTokenLeg, FirstTokenPlace, WayPart, WayParts, first_token_legs};
pub(crate) use first_token_waits::WaitBreakdown;
pub use frontend::{FrontendResponse, FrontendWaits};
pub(crate) use gap_parts::{GapPart, GapPlace, parts_of_first_token_gap};
pub use hop::{Hop, HopCounts};
pub use hops::HopGroup;
pub use kernel_queue::KernelQueue;
pub use lane::{LaneCounts, QueuedLoad, SentFrame};
pub(crate) use late_frames::LateFrames;
pub use late_leg::LateLeg;
pub(crate) use late_leg::TtftPart;
pub use late_legs::{JudgedRequests, SilencedRequests, SlowestPrefill};
pub use limits::{BOUNDS, Bound, Limits, ReachedLimit};
pub use losses::{Losses, Lossy, LostRange};
pub use new_connections::NewConnections;
pub use observation_end::ObservationEnd;
pub use occurrence_times::{Episode, OccurrenceTimes};
pub use outcome::{ChunkOutcome, JudgedChunks, OutcomeCounts, UnjudgedCause};
pub use pair_messages::{PairMessageCounts, PairTimes};
pub use prefill::PrefillComparison;
#[cfg(test)]
pub(crate) use prefill::{MIN_OTHERS, MIN_TIMES_OTHERS};
pub(crate) use process_waits::ProcessWait;
pub use processing_stage::ProcessingStage;
pub use recent_chunks::{ChunkRecord, DEFAULT_CHUNK_HISTORY, DeliveryRecord, HopWait, RequestHistory};
pub use request::{ItlEnds, Request, RequestNumbers, RequestSummary};
pub use request_details::{EngineLoad, RequestDispatch};
pub use request_life::{ChunkLife, ChunkState, LifeLeg, NextChunk, RequestLife};
pub use request_timeline::{ClosedRequest, FrameTimes, HopTimes, NoteKind, RequestNote, RequestTimeline, TimedRequest};
pub use retries::AbortedRetry;
pub(crate) use stacks::TopFunction;
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
pub use ttft::{AbsentArrivals, LegLengths, Ttft, TtftGroup};
pub use ttft_path::{TimedLeg, TtftLeg, TtftMoment, TtftPath};
pub use unanswered::UnansweredRequest;
#[cfg(test)]
pub(crate) use unanswered::{PREFILL_NS_PER_TOKEN, UNANSWERED_NS};

use self::clientless::ClientlessRequests;
use self::dispatched::DispatchedRequests;
use self::early_deliveries::EarlyDeliveries;
use self::finished::FinishedRequests;
use self::first_token_waits::FirstTokenWaits;
use self::hops::Hops;
use self::lane::{FrameLoad, PendingChunk};
use self::limits::CountedLimits;
use self::losses::LossMemory;
use self::outcome::JudgedList;
use self::pair_messages::PairMessages;
use self::recent_chunks::RecentChunks;
use self::request_table::RequestTable;
use self::request_timeline::Timelines;
use self::retries::Retries;
use self::shared_rid::Predecessor;
use self::stacks::Stacks;
use self::threads::Threads;
use crate::clock::MonoNs;
use crate::engine::{EngineState, Engines};
use crate::event::{Event, Missed, MissedCause, Undecoded, What};
pub use crate::id::Ticket;
use crate::stats::{Buckets, Distribution, LongDurations, RunSeconds, WindowedDistribution};

/// Caps a number from an event, so that sums of hostile values cannot overflow.
fn capped(number: u64) -> u64 {
    // Far above any real count or length.
    const MAX: u64 = 1 << 40;
    number.min(MAX)
}

/// Wait of a first token between scheduler and tokenizer that causes a warning, in nanoseconds.
pub const GAP_WARNING_NS: u64 = 1_000_000_000;
/// Frames in one wakeup that make a burst.
pub(crate) const BURST_FRAMES: u32 = 8;
/// Minimum size of a backlog, in frames.
pub(crate) const BACKLOG_FRAMES: u64 = 64;
/// Minimum wait of a frame to judge a receiver or a backlog, in nanoseconds.
pub const LATE_NS: u64 = 250_000_000;

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
    /// Keeps the longest wait, of equal ones the first by rid, as lists are sorted.
    fn keep_longest(&mut self, at: MonoNs, rid: &str, ns: u64) {
        let is_first_of_equal_ones = ns == self.ns && (self.rid.is_empty() || rid < &*self.rid);
        if ns > self.ns || is_first_of_equal_ones {
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
    gap: WindowedDistribution,
    /// Gaps in the current time slot.
    gap_slot: Buckets,
    worst_gap: WorstGap,
    /// Sums of the long gaps.
    pub(crate) long_gaps: LongDurations,
    /// Gaps that are worth a finding, each from its send.
    pub(crate) late_gaps: OccurrenceTimes,
    /// Requests whose first-token gap was that long.
    pub(crate) late_gap_rids: CountedRids,
    delivery_wait: WindowedDistribution,
    worst_delivery_wait: WorstGap,
    /// Waits for a delivery, or times between two, that are worth a finding.
    pub(crate) late_deliveries: OccurrenceTimes,
    /// Requests with one of these.
    pub(crate) late_delivery_rids: CountedRids,
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
    /// Seconds of the run, by which all current figures are counted.
    seconds: RunSeconds,
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
    /// Until when receives by the tokenizer may have been missed, until the next tick has applied it to the requests.
    receives_missed_until: Option<MonoNs>,
    early_deliveries: EarlyDeliveries,
    dispatched: DispatchedRequests,
    pair_messages: PairMessages,
    ttft: Ttft,
    new_connections: NewConnections,
    tool_calls: ToolCallResponses,
    frontend: FrontendWaits,
    pending_receive: Vec<PendingChunk>,
    /// Requests of the chunks of the last event.
    touched: Vec<Ticket>,
    /// Chunks whose outcome the last event showed.
    judged: Vec<(Ticket, JudgedChunks)>,
    /// Send of the frame that the last event received.
    received_frame: Option<SentFrame>,
    recent_chunks: RecentChunks,
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

    /// Records an event. Allocates nothing for a chunk of a known request.
    pub fn apply(&mut self, event: &Event<'_>) {
        let at = event.at;
        // Events observed during the attach are applied after the first `Engine` event, but are older.
        self.started = Some(self.started.map_or(at, |started| started.min(at)));
        self.now = self.now.max(at);
        self.totals.events += 1;
        self.touched.clear();
        self.judged.clear();
        self.received_frame = None;
        self.forget_closed_timelines();
        match &event.what {
            What::Engine(engine) => {
                self.engine.apply_announcement(engine);
                self.stages.forget_meanings();
            }
            What::Hop(hop) => self.apply_hop_announcement(hop),
            What::Dispatched(dispatch) => self.record_dispatch(at, dispatch),
            What::PairMessage(message) => self.record_pair_message(at, *message),
            What::Sent(frame) => self.record_sent_frame(at, frame),
            What::SendWait(wait) => self.hops.record_send_wait(at, *wait),
            What::RequestTimes(times) => self.record_request_times(times),
            What::Received(received) => self.record_received_frame(at, received),
            What::Processed(id) => self.record_processed_frame(at, *id),
            What::Arrived(arrival) => self.record_arrival(arrival),
            What::Traced(traced) => self.record_trace_parent(traced),
            What::Delivered(delivery) => self.record_delivery(at, delivery),
            What::Answered(answer) => self.record_answer(at, answer),
            What::Rejected(rejection) => self.totals.answers.count_error_response(rejection.status),
            What::FrontendWait(wait) => self.record_frontend_wait(at, wait),
            What::Undecoded(undecoded) => self.record_undecoded(at, undecoded),
            What::Cpu(sample) => self.record_cpu_sample(at, sample),
            What::Queue(sample) => self.record_queue_sample(at, sample),
            What::Stack(sample) => self.record_stack_sample(at, sample),
            What::Stage(stage) => self.record_stage(at, stage),
            What::LoggedState(logged) => self.record_logged_state(at, logged),
            What::Merged(merged) => self.record_logged_merge(at, merged),
            What::Missed(missed) if missed.cause == MissedCause::Ended => self.record_engine_end(at),
            What::Missed(missed) => self.record_missed(at, missed),
        }
        self.update_timelines(event);
    }

    /// Counts a frame that could not be decoded. Its content is unknown, so nothing is judged across it.
    fn record_undecoded(&mut self, at: MonoNs, undecoded: &Undecoded<'_>) {
        self.totals.undecoded += 1;
        self.totals.undecoded_times.record(at);
        // The chunks to be queued with it. They are unknown, so there are none.
        self.pending_receive.clear();
        // It may have had output, so the engine is not known to be silent.
        self.silences.forget_current_silence();
        let Some(hop_index) = self.register_frame_returning_hop_index(at, undecoded.id) else { return };
        let hop = &mut self.hops.all[hop_index];
        hop.count_undecoded_frame(undecoded.reason);
        hop.counts.bytes += capped(undecoded.bytes);
        self.interrupt_observation(at, hop_index, undecoded.id.lane);
        let hop = &mut self.hops.all[hop_index];
        if hop.shows.sent {
            let load = FrameLoad::undecoded(undecoded.bytes);
            self.queue_sent_frame(at, undecoded.id, hop_index, load, undecoded.forwarded);
        } else {
            // Where sends are not observed, the frame was seen at its receive.
            hop.counts.frames_received += 1;
        }
    }

    /// Marks the observation of a hop (channel between two processes) as interrupted by a frame with unknown content on the connection
    /// `lane`.
    fn interrupt_observation(&mut self, at: MonoNs, hop_index: usize, lane: u32) {
        let hop = &mut self.hops.all[hop_index];
        // With another epoch, the next chunk of a stream does not continue the last observed one.
        hop.epoch += 1;
        // The frame may have had first tokens, and ends of requests.
        if hop.may_lead_to_tokenizer() {
            self.receives_missed_until = Some(at);
        }
        // Frames observed in a row begin again.
        if let Some(lane) = hop.lanes.get_mut(&lane) {
            lane.watched_frames = 0;
        }
        // With another epoch, the next delivery of a request proves no loss.
        self.delivery_epoch += u32::from(hop.tracks_deliveries);
    }

    /// Counts missed observations, of one hop (channel) or of unknown ones. Nothing is judged across them.
    fn record_missed(&mut self, at: MonoNs, missed: &Missed) {
        let count = capped(missed.count);
        // The engine may have sent output unobserved.
        self.silences.forget_current_silence();
        self.totals.missed.add_missed(at, missed.cause, count);
        let mut may_hide_deliveries = missed.hop.is_none();
        for hop in &mut self.hops.all {
            let is_affected = missed.hop.is_none_or(|id| id == hop.id);
            if !is_affected {
                continue;
            }
            // With another epoch, the next chunk of a stream does not continue the last observed one.
            hop.epoch += 1;
            // A gap in the frame numbers that this report explains is not counted again.
            hop.reported_missed += count;
            hop.counts.lost += count;
            // Frames sent until now may have been received unobserved.
            hop.receives_missed_until = at;
            may_hide_deliveries |= hop.capabilities.delivered;
            if hop.may_lead_to_tokenizer() {
                self.receives_missed_until = Some(at);
            }
            // Frames observed in a row begin again, on each connection.
            for lane in hop.lanes.values_mut() {
                lane.watched_frames = 0;
            }
        }
        // With another epoch, the next delivery of a request proves no loss.
        self.delivery_epoch += u32::from(may_hide_deliveries);
    }

    /// Sets the known engines.
    #[must_use]
    pub(crate) fn with_engines(mut self, engines: Engines) -> Self {
        self.engine.set_known_engines_and_resolve_facts(engines);
        self
    }

    /// Keeps up to `moments` events of chunks, for [`Self::history`].
    #[must_use]
    pub(crate) fn with_history(mut self, moments: usize) -> Self {
        self.recent_chunks = RecentChunks::new(moments);
        self
    }

    /// Records the outcomes of chunks of one request. All counts of outcomes are sums of what passes here.
    fn record_outcomes(&mut self, at: MonoNs, ticket: Ticket, judged: &JudgedList) {
        self.totals.chunks.outcomes.add_counts(judged.count_outcomes());
        let Some(request) = self.table.get(ticket) else { return };
        for chunks in judged.iter_with_carriers() {
            self.recent_chunks.keep_outcome(at, &request.rid, chunks);
            self.judged.push((ticket, chunks));
        }
    }

    /// Counts the seconds of all current figures from the start of the first time slot. Called before the first event.
    pub(crate) fn start_slots(&mut self, at: MonoNs) {
        let seconds = RunSeconds::starting_at(at);
        self.seconds = seconds;
        self.gap = WindowedDistribution::with_seconds(seconds);
        self.delivery_wait = WindowedDistribution::with_seconds(seconds);
        self.ttft.seconds = seconds;
        self.dispatched.seconds = seconds;
        self.hops.processing_stages.seconds = seconds;
    }

    /// Starts a new time slot: resets the values kept per slot.
    pub(crate) fn next_slot(&mut self) {
        self.gap_slot.clear();
        for group in &mut self.hops.groups {
            group.queue_wait_slot.clear();
            // Frames that wait now also wait in the new slot.
            group.backlog_slot = group.backlog;
        }
    }
}
