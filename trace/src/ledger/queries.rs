//! Read access to the state of a run.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::engine_silence::is_streamed;
use super::stream::Stream;
use super::{
    GAP_WARNING_NS, Hop, HopGroup, HopWait, JudgedChunks, Ledger, Lossy, ProcessingStage, ReachedLimit, Request,
    RequestHistory, RequestNumbers, RequestSummary, SentFrame, ToolCallResponses, Totals, WorstGap,
};
use crate::clock::MonoNs;
use crate::engine::{EngineState, Mode, Waiter};
use crate::id::HopId;
use crate::stats::{Buckets, Distribution, RecentWindow, Spread};

impl Ledger {
    /// Chunks whose outcome the last event showed, with the rid of their request.
    pub fn judged_chunks(&self) -> impl Iterator<Item = (&str, &JudgedChunks)> {
        self.judged.iter().filter_map(|(ticket, chunks)| Some((&*self.table.get(*ticket)?.rid, chunks)))
    }

    /// Send of the frame that the last event received; `None` after another event, and if the send was not observed before.
    pub fn received_frame(&self) -> Option<SentFrame> {
        self.received_frame
    }

    /// Recent chunks and deliveries of a request, with the outcome of each chunk; empty unless [`crate::Config::chunk_history`] is set.
    pub fn history(&self, rid: &str) -> RequestHistory {
        self.recent_chunks.history_of_request(rid)
    }

    /// Rids of the requests with a recent chunk in a frame that waited on a hop (channel) as `wait` asks for.
    pub fn rids_that_waited(&self, wait: &HopWait) -> BTreeSet<&str> {
        // The history of recent chunks keeps only hashes of rids.
        let waiting_hashes = self.recent_chunks.rid_hashes_that_waited(wait, self.now());
        let live = self.requests().map(|request| &*request.rid);
        let finished = self.finished().map(|summary| &*summary.rid);
        live.chain(finished).filter(|rid| waiting_hashes.contains(&self.recent_chunks.hash_rid(rid))).collect()
    }

    /// Start of the recent chunks, if earlier ones were overwritten.
    pub fn chunks_known_since(&self) -> Option<MonoNs> {
        self.recent_chunks.known_since()
    }

    /// Known properties of the engine.
    pub fn engine(&self) -> &EngineState {
        &self.engine
    }

    /// All live and settling requests, in no order.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.table.iter()
    }

    /// Requests that the engine works on at `at`: those that were dispatched and not aborted, and those that had a chunk shortly before.
    pub(crate) fn rids_in_engine(&self, at: MonoNs) -> impl Iterator<Item = &str> {
        /// A stream without a chunk for longer may have ended unobserved.
        const MAX_CHUNK_INTERVAL_NS: u64 = 1_000_000_000;
        let is_streaming = move |request: &&Request| {
            let is_open = request.is_mapped && request.finish.is_none();
            is_open && at.since(request.last_at) <= MAX_CHUNK_INTERVAL_NS
        };
        let streaming = self.table.iter().filter(is_streaming).map(|request| &*request.rid);
        let waiting = self.dispatched.waiting.values().filter(|request| request.abort.is_none());
        streaming.chain(waiting.map(|request| &*request.rid))
    }

    /// Current record of a rid.
    pub fn request(&self, rid: &str) -> Option<&Request> {
        self.table.get(self.table.ticket_of(rid)?)
    }

    /// Whether the request is unfinished and has certainly produced no token for `min_silent_ns`.
    pub fn is_stalled(&self, request: &Request, now: MonoNs, min_silent_ns: u64) -> bool {
        let is_silent = request.finish.is_none() && now.since(request.last_at) >= min_silent_ns;
        // A request known only from the engine's log has no observed tokens.
        if !is_silent || request.streams.is_empty() {
            return false;
        }
        // With missed observations on one of its hops since its last chunk, it may have continued unobserved.
        let was_observed = request.streams.iter().all(|stream| self.hops.observed_all_since(stream));
        was_observed && !self.scheduler_may_hold_tokens_back(request)
    }

    /// Whether the scheduler may be generating tokens of a silent request and not have sent them yet. Of a request that is not streamed, it
    /// sends a number of tokens together.
    fn scheduler_may_hold_tokens_back(&self, request: &Request) -> bool {
        // Without such a number, the engine sends each token as soon as it is generated.
        let Some(tokens_per_chunk) = self.engine.facts().unstreamed_tokens() else { return false };
        request.streams.iter().any(|stream| {
            let is_streamed = is_streamed(stream.chunks, stream.count.highest, Some(tokens_per_chunk));
            !is_streamed && self.is_before_next_chunk(stream, tokens_per_chunk)
        })
    }

    /// Whether the scheduler goes on, but has made too few steps since the stream's last chunk for the next one. A step generates at least
    /// one token of each request.
    fn is_before_next_chunk(&self, stream: &Stream, tokens_per_chunk: u32) -> bool {
        // In each step, the scheduler sends a frame with chunks of other requests. Without any, the whole scheduler is silent.
        let steps = self.hops.frames_sent_since_last_chunk(stream);
        steps > 0 && steps < tokens_per_chunk as usize
    }

    /// Numbers of a live request.
    pub fn numbers(&self, request: &Request) -> RequestNumbers {
        let mut numbers = request.numbers(self.hops.worker_of(&request.streams), self.observes_receives());
        numbers.is_abandoned |= self.is_abandoned(request);
        numbers
    }

    /// Number of live requests: neither evicted nor finished. One whose end has not reached the tokenizer is live, since its client waits.
    pub fn live_count(&self) -> u64 {
        self.table.live_count() as u64 + self.totals.requests.ends_in_transit
    }

    /// Number of request records.
    pub fn record_count(&self) -> usize {
        self.table.len()
    }

    /// Finished requests, oldest first. Above the limit, ordinary ones are evicted before notable ones.
    pub fn finished(&self) -> impl DoubleEndedIterator<Item = &RequestSummary> {
        self.finished.iter()
    }

    /// Number of finished requests whose summaries were evicted.
    pub fn finished_evicted(&self) -> u64 {
        self.finished.evicted
    }

    /// Number of summaries of finished requests.
    pub fn finished_count(&self) -> usize {
        self.finished.len()
    }

    /// Whether a request lost tokens, is predicted to have lost some, has a damaged tool call, was abandoned, or was slow, so that an
    /// operator may look for it.
    pub fn is_notable(&self, summary: &RequestSummary) -> bool {
        let has_lost_tokens = summary.tokens_lost.unwrap_or(0) > 0 || summary.wire_missing > 0;
        // Its chunks were received in bursts, of which such an engine may lose some.
        let is_predicted_loss = summary.bursts && self.predicts_drops();
        let was_slow = summary.gap_ns.is_some_and(|gap_ns| gap_ns >= GAP_WARNING_NS);
        has_lost_tokens || is_predicted_loss || summary.damaged_call || summary.is_abandoned || was_slow
    }

    /// Whether several chunks of a request in one wakeup of the tokenizer predict a loss. They do if deliveries are not observed, and the
    /// task that waits for the request's chunks (its waiter) keeps only the last chunk, which has new tokens only.
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

    /// Name of a hop (channel between two processes). Hops beyond the limit have none but their number.
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

    /// Whether chunks of this request on the hop are the scheduler's. Until that is known, the first hop on which the request was seen
    /// stands for the scheduler's.
    pub fn is_from_scheduler(&self, request: &Request, hop: HopId) -> bool {
        if self.hops.any_origin {
            return self.is_origin(hop);
        }
        request.streams.first().is_some_and(|first| first.hop == hop)
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
        self.hops.all.iter().filter(move |hop| hop.group == group)
    }

    /// Number of undecoded frames of a group by reason.
    pub fn undecoded_by_reason(&self, group_index: usize) -> BTreeMap<&str, u64> {
        let mut reasons = BTreeMap::new();
        for (reason, count) in self.hops_of_group(group_index).flat_map(|hop| &hop.undecoded) {
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
        self.gap.whole()
    }

    /// First-token gaps over the window of current figures; `None` without any.
    pub fn recent_gap(&self) -> Option<Spread> {
        self.gap.recent_spread(self.now)
    }

    /// Window of all current figures: the current second, as far as it has passed, and the nine before it.
    pub fn recent_window(&self) -> RecentWindow {
        self.seconds.window(self.now)
    }

    /// Gaps since the last [`Self::next_slot`].
    pub(crate) fn gap_slot(&self) -> &Buckets {
        &self.gap_slot
    }

    /// Worst gap; `None` if no gap was observed.
    pub fn worst_gap(&self) -> Option<&WorstGap> {
        (self.gap().count() > 0).then_some(&self.worst_gap)
    }

    /// First delivery minus first receive, over streamed requests; minus first send if receives are not observed.
    pub fn delivery_wait(&self) -> &Distribution {
        self.delivery_wait.whole()
    }

    /// Longest [`Self::delivery_wait`] in the window of current figures; `None` without any.
    pub(crate) fn recent_delivery_wait_max(&self, now: MonoNs) -> Option<u64> {
        self.delivery_wait.recent_max(now)
    }

    /// Worst of [`Self::delivery_wait`]; `None` if none was observed.
    pub(crate) fn worst_delivery_wait(&self) -> Option<&WorstGap> {
        (self.delivery_wait().count() > 0).then_some(&self.worst_delivery_wait)
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

    /// Time per token between the deliveries of a response: the inter-token latency that the client saw.
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
        self.limits.list_counted_limits().collect()
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
        let observes_sends = self.hops.all.iter().any(|hop| hop.capabilities.sent && self.is_origin(hop.id));
        let observes_both = self.observes_receives() && observes_sends;
        observes_both || self.stages.observes_gaps()
    }

    /// Tokens delivered; `None` if deliveries are not observed, or every response carries text only.
    pub fn tokens_delivered(&self) -> Option<u64> {
        let tokens = self.totals.tokens;
        let has_text_only = tokens.delivered == 0 && tokens.uncounted > 0;
        (self.observes_deliveries() && !has_text_only).then_some(tokens.delivered)
    }

    /// Reasons why parts of the data are unjudged or were evicted, one line each.
    pub fn degraded_reason_lines(&self) -> impl Iterator<Item = String> + use<> {
        let mut reasons = Vec::new();
        let shared = self.totals.requests.shared;
        if shared > 0 {
            reasons.push(format!("{shared} requests reused the id of an unfinished request: neither is judged"));
        }
        let unnamed = self.totals.unnamed;
        if unnamed > 0 {
            reasons.push(format!(
                "{unnamed} chunks had a request id that is empty, too long or not UTF-8: they are counted for no request"
            ));
        }
        // Other limits only shorten lists of details.
        for limit in self.limits().into_iter().filter(|limit| limit.times > 0 && !limit.keeps_totals()) {
            reasons.push(format!(
                "limit {} = {} was reached {} times: the oldest entries were evicted",
                limit.name, limit.limit, limit.times
            ));
        }
        reasons.into_iter()
    }

    /// Whether deliveries are or were observed anywhere.
    pub fn observes_deliveries(&self) -> bool {
        let observes_now = self.hops.all.iter().any(|hop| hop.shows.delivered);
        // Deliveries announced and withdrawn before the first one were not observed.
        let has_observed = self.hops.any_delivered && self.totals.tokens.delivered > 0;
        observes_now || has_observed
    }
}
