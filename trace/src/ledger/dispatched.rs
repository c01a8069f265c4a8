//! Requests from their dispatch to the scheduler until their first chunk.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;

use super::Ledger;
use super::early_deliveries::hash_rid;
use super::lane::FrameLoad;
use super::request_details::{DispatchWait, EngineLoad, RequestDispatch};
use crate::clock::MonoNs;
use crate::event::{Dispatch, DispatchKind, DispatchedRequest};
use crate::id::{FrameId, HopId};
use crate::stats::{RunSeconds, WindowedDistribution};

/// Messages to the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DispatchCounts {
    /// Requests sent to the scheduler, without health checks.
    pub requests: u64,
    /// Requests that it was asked to abort.
    pub aborts: u64,
    /// Requests that it did not answer while it answered later ones.
    pub unanswered: u64,
}

/// A message that asks the scheduler to abort a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestAbort {
    /// When the tokenizer sent it.
    pub sent: MonoNs,
    /// When the scheduler received it; `None` if that was not observed, or it did not yet.
    pub received: Option<MonoNs>,
}

/// An abort, and its message.
#[derive(Clone, Copy, Debug)]
pub(super) struct AbortMessage {
    pub(super) id: FrameId,
    pub(super) abort: RequestAbort,
}

/// A dispatched request without a chunk.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    pub(super) rid: Arc<str>,
    pub(super) times: RequestDispatch,
    /// Its message.
    pub(super) message: FrameId,
    /// The message that asked the scheduler to abort it.
    pub(super) abort: Option<AbortMessage>,
    /// [`missed_messages`](super::hops::Hops::missed_messages) when it was dispatched, or [`UNJUDGED`].
    pub(super) missed_before: u64,
    /// When a request that was dispatched later on its hop had its first chunk.
    pub(super) overtaken: Option<OutputProgress>,
    pub(super) is_unanswered: bool,
    /// [`DispatchedRequests::output_ns`] when it was dispatched.
    output_before_ns: u64,
    /// Another request with its rid waited when it was dispatched.
    is_ambiguous: bool,
    /// `None` unless a process between the tokenizer and the scheduler sent it again.
    forwarding: Option<Forwarding>,
}

/// The way of a request to a process that forwards it to the scheduler.
#[derive(Clone, Copy, Debug)]
struct Forwarding {
    hop: HopId,
    /// Its number there.
    number: u64,
    /// Time until that process sent it again.
    ns: u64,
}

impl WaitingRequest {
    /// The hop, of those that its message crossed, on which it waited longest for the scheduler.
    fn slowest_hop(&self) -> HopId {
        // The hop of the last send. Unless a process between tokenizer and scheduler forwarded the message, it is the only one.
        let last_hop = self.message.hop;
        let Some(forwarding) = self.forwarding else { return last_hop };
        let Some(received) = self.times.received else { return last_hop };
        // From the tokenizer's send to the scheduler's receive, over both hops.
        let whole_ns = received.since(self.times.sent);
        let was_mostly_on_first_hop = forwarding.ns > whole_ns / 2;
        if was_mostly_on_first_hop { forwarding.hop } else { last_hop }
    }
}

/// Output of the engine up to some time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OutputProgress {
    /// Time in which the engine sent output. A pause counts as at most [`MAX_PAUSE_NS`].
    pub(super) busy_ns: u64,
    /// Number of requests of the hop with a chunk.
    pub(super) answered: u64,
}

/// Answered requests of a hop, which leads to one scheduler or to a process that forwards them.
#[derive(Debug, Default)]
pub(super) struct AnsweredRequests {
    pub(super) count: u64,
    /// All requests with a lower number have been overtaken.
    overtaken_below: u64,
    /// Time from dispatch to the first chunk.
    pub(super) first_chunk_waits: WindowedDistribution,
}

impl AnsweredRequests {
    fn with_seconds(seconds: RunSeconds) -> Self {
        Self { first_chunk_waits: WindowedDistribution::with_seconds(seconds), ..Self::default() }
    }
}

/// Chunks do not show whether the request was answered.
pub(super) const UNJUDGED: u64 = u64::MAX;
/// Longest part of a pause of the engine in which a request can be said to wait beside others.
const MAX_PAUSE_NS: u64 = 1_000_000_000;

/// Requests that were dispatched and of which no chunk was observed.
#[derive(Debug, Default)]
pub(super) struct DispatchedRequests {
    /// By number, in the order of dispatch.
    pub(super) waiting: BTreeMap<u64, WaitingRequest>,
    /// Number of the next request.
    next_number: u64,
    by_rid: HashMap<Arc<str>, u64>,
    aborted: usize,
    /// Numbers of the requests of each message whose receive is not observed yet.
    unreceived: HashMap<FrameId, Vec<u64>>,
    last_message: Option<LastMessage>,
    /// [`OutputProgress::busy_ns`] until now.
    pub(super) busy_ns: u64,
    /// Time in which the engine sent output, without pauses of more than [`MAX_PAUSE_NS`].
    output_ns: u64,
    /// Unfinished requests with output when the newest request had its first chunk, without it.
    pub(super) running: u64,
    last_output_at: Option<MonoNs>,
    pub(super) answered: HashMap<HopId, AnsweredRequests>,
    pub(super) judged_at: Option<MonoNs>,
    /// Health check that was dispatched last and is not answered.
    health_check: Option<HealthCheck>,
    /// When the latest health check of each hop was dispatched that the scheduler answered while it ran nothing else.
    pub(super) idle_checks: HashMap<HopId, MonoNs>,
    /// Seconds of the window of current figures.
    pub(super) seconds: RunSeconds,
}

/// A health check on its way.
#[derive(Clone, Copy, Debug)]
struct HealthCheck {
    rid_hash: u64,
    hop: HopId,
    sent: MonoNs,
}

/// The message that was sent last.
#[derive(Clone, Copy, Debug)]
struct LastMessage {
    id: FrameId,
    /// When it was received, if that was observed before its send.
    received_early: Option<MonoNs>,
}

impl DispatchedRequests {
    /// Adds a request that the message `frame` sent to the scheduler. Returns whether the oldest one was evicted, because `max_waiting` are
    /// waiting. `missed_before`: number of messages missed so far, or [`UNJUDGED`]. If it differs later, the first chunk may be missed.
    fn add_waiting_request_and_check_eviction(
        &mut self,
        at: MonoNs,
        frame: FrameId,
        request: &DispatchedRequest<'_>,
        missed_before: u64,
        max_waiting: usize,
    ) -> bool {
        // A maximum of 0 counts as 1, so that there is room for this request.
        let max_waiting = max_waiting.max(1);
        // A reused rid belongs to the latest request.
        let is_ambiguous = self.remove(request.rid).is_some();
        let has_evicted = self.evict_to_make_room(max_waiting);
        let received = self.early_receive(frame);
        let number = self.take_request_number();
        let rid: Arc<str> = request.rid.into();
        let times = RequestDispatch {
            sent: at,
            received,
            prompt_tokens: request.prompt_tokens,
            room: request.room,
            arrived_unix_ns: request.arrived_unix_ns,
        };
        self.by_rid.insert(Arc::clone(&rid), number);
        let waiting = WaitingRequest {
            rid,
            times,
            message: frame,
            abort: None,
            missed_before,
            overtaken: None,
            is_unanswered: false,
            output_before_ns: self.output_ns,
            is_ambiguous,
            forwarding: None,
        };
        self.waiting.insert(number, waiting);
        if received.is_none() {
            self.await_receive_of_request(frame, number, max_waiting);
        }
        has_evicted
    }

    /// Evicts the oldest requests until fewer than `max_waiting` are waiting. Returns whether that many were.
    fn evict_to_make_room(&mut self, max_waiting: usize) -> bool {
        let is_full = self.by_rid.len() >= max_waiting;
        while self.by_rid.len() >= max_waiting {
            let was_removed = self.remove_oldest();
            if !was_removed {
                break;
            }
        }
        is_full
    }

    /// Remembers which message has the request with this number until its receive.
    fn await_receive_of_request(&mut self, frame: FrameId, request_number: u64, max_unreceived: usize) {
        // An observed receive removes its entry. So many entries mean that receives are not observed, and none of them is of use.
        let max_unreceived = max_unreceived.max(1);
        if self.unreceived.len() >= max_unreceived {
            self.unreceived.clear();
        }
        self.unreceived.entry(frame).or_default().push(request_number);
    }

    /// The hop on which the waiting request with this id was sent last.
    fn last_hop_of(&self, rid: &str) -> Option<HopId> {
        let number = self.by_rid.get(rid)?;
        Some(self.waiting.get(number)?.message.hop)
    }

    /// Records that a process between the tokenizer and the scheduler sends a waiting request again. It was dispatched before, and is not
    /// received yet.
    fn record_forwarded_request(&mut self, at: MonoNs, new_frame: FrameId, rid: &str, max_unreceived: usize) {
        let Some(&number_before) = self.by_rid.get(rid) else { return };
        let Some(mut forwarded) = self.waiting.remove(&number_before) else { return };
        // The receive of the new message may have been observed before its send.
        let received = self.early_receive(new_frame);
        // From now on, only the receive of the new message matters.
        self.unreceived.remove(&forwarded.message);
        let hop = forwarded.message.hop;
        forwarded.forwarding = Some(Forwarding { hop, number: number_before, ns: at.since(forwarded.times.sent) });
        // If a later request has overtaken it, that was on the previous hop, not on the new one.
        forwarded.overtaken = None;
        forwarded.message = new_frame;
        forwarded.times.received = received;
        // Numbers are in the order in which the scheduler gets the requests, and it gets this one only now.
        let number = self.take_request_number();
        self.by_rid.insert(Arc::clone(&forwarded.rid), number);
        self.waiting.insert(number, forwarded);
        if received.is_none() {
            self.await_receive_of_request(new_frame, number, max_unreceived);
        }
    }

    /// When the abort of the waiting request with this id was sent.
    fn abort_sent_at(&self, rid: &str) -> Option<MonoNs> {
        let waiting = self.waiting.get(self.by_rid.get(rid)?)?;
        Some(waiting.abort?.abort.sent)
    }

    /// When the message was received, if that was observed before its send.
    fn early_receive(&self, frame: FrameId) -> Option<MonoNs> {
        self.last_message.filter(|message| message.id == frame)?.received_early
    }

    /// Records the receive of a message to the scheduler, in the requests that it dispatched or aborts.
    pub(super) fn record_receive_of_message(&mut self, at: MonoNs, frame: FrameId) {
        let Some(numbers) = self.unreceived.remove(&frame) else { return };
        for number in numbers {
            let Some(waiting) = self.waiting.get_mut(&number) else { continue };
            let is_dispatch = waiting.message == frame;
            if is_dispatch {
                waiting.times.received = Some(at);
                continue;
            }
            // A request keeps its last abort. The receive of an earlier one says nothing of it.
            if let Some(last_abort) = &mut waiting.abort
                && last_abort.id == frame
            {
                last_abort.abort.received = Some(at);
            }
        }
    }

    /// Records a frame with output of the engine. The time since the last one counts as time with output, unless it is longer than
    /// [`MAX_PAUSE_NS`]. It also counts as busy time, but of a longer pause only [`MAX_PAUSE_NS`].
    pub(super) fn record_output_frame(&mut self, at: MonoNs) {
        let last_output_at = self.last_output_at.replace(at);
        let pause_ns = last_output_at.map_or(0, |last| at.since(last));
        self.busy_ns += pause_ns.min(MAX_PAUSE_NS);
        if pause_ns <= MAX_PAUSE_NS {
            self.output_ns += pause_ns;
        }
    }

    /// Records that the scheduler answered the health check with this id while it ran nothing else.
    pub(super) fn record_idle_health_check(&mut self, rid: &str) {
        if let Some(check) = self.health_check
            && check.rid_hash == hash_rid(rid)
        {
            self.health_check = None;
            self.idle_checks.insert(check.hop, check.sent);
        }
    }

    /// The engine's load and output while the request `answered_request` waited for its first chunk, which has come now.
    pub(super) fn dispatch_wait(&self, answered_request: &WaitingRequest) -> DispatchWait {
        // The request itself has been removed, and aborted ones do not wait for output.
        let waiting = self.by_rid.len() - self.aborted;
        DispatchWait {
            hop: answered_request.slowest_hop(),
            load: EngineLoad { running: self.running, waiting: waiting as u64 },
            output_ns: self.output_ns - answered_request.output_before_ns,
            is_ambiguous: answered_request.is_ambiguous,
        }
    }

    /// Removes the request with this id, whose first chunk was observed. Marks the requests that were sent before it on its hop (channel
    /// to the scheduler) as overtaken. `None` if its dispatch was not observed.
    pub(super) fn remove_answered_and_mark_overtaken(&mut self, at: MonoNs, rid: &str) -> Option<WaitingRequest> {
        // Called for every new request. Without a watched tokenizer, no dispatch is observed.
        if self.by_rid.is_empty() {
            return None;
        }
        let number = *self.by_rid.get(rid)?;
        let answered = self.remove(rid)?;
        self.count_answered_and_mark_overtaken(at, answered.message.hop, number, answered.times.sent);
        if let Some(forwarding) = answered.forwarding {
            // It also waited on the hop to the process that forwarded it, with another number.
            self.count_answered_and_mark_overtaken(at, forwarding.hop, forwarding.number, answered.times.sent);
        }
        Some(answered)
    }

    /// Counts the request with this number as answered on the hop (channel to the scheduler). Marks waiting requests with lower numbers
    /// there as overtaken.
    fn count_answered_and_mark_overtaken(&mut self, at: MonoNs, hop: HopId, request_number: u64, sent_at: MonoNs) {
        let seconds = self.seconds;
        let answered_on_hop = self.answered.entry(hop).or_insert_with(|| AnsweredRequests::with_seconds(seconds));
        answered_on_hop.first_chunk_waits.record(at, at.since(sent_at));
        // A request that is overtaken now is judged later by the engine's output from now on, so the output until now is kept with it.
        let progress = OutputProgress { busy_ns: self.busy_ns, answered: answered_on_hop.count };
        answered_on_hop.count += 1;
        // All requests below the highest answered number are marked already.
        let marked_below = answered_on_hop.overtaken_below;
        if request_number > marked_below {
            answered_on_hop.overtaken_below = request_number;
            self.mark_overtaken(hop, marked_below..request_number, progress);
        }
    }

    /// Marks the waiting requests of the hop with these numbers as overtaken, at this progress of the engine.
    fn mark_overtaken(&mut self, hop: HopId, request_numbers: Range<u64>, progress: OutputProgress) {
        for (_, waiting) in self.waiting.range_mut(request_numbers) {
            if waiting.message.hop == hop {
                waiting.overtaken.get_or_insert(progress);
            }
        }
    }

    /// Number of a request that is sent now. Numbers are in the order in which the scheduler gets the requests.
    fn take_request_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// Removes and returns the request with this id; `None` if none waits.
    pub(super) fn remove(&mut self, rid: &str) -> Option<WaitingRequest> {
        let number = self.by_rid.remove(rid)?;
        let removed = self.waiting.remove(&number)?;
        self.aborted -= usize::from(removed.abort.is_some());
        Some(removed)
    }

    /// Marks all requests as aborted whose ids begin with `prefix`.
    fn mark_aborted_with_prefix(&mut self, prefix: &str, message: AbortMessage) {
        let matching = self.waiting.iter().filter(|(_, waiting)| waiting.rid.starts_with(prefix));
        let numbers: Vec<u64> = matching.map(|(number, _)| *number).collect();
        for number in numbers {
            self.mark_request_number_aborted(number, message);
        }
    }

    /// Marks the request with this id as aborted. Returns whether there is one.
    fn mark_rid_aborted_if_waiting(&mut self, rid: &str, message: AbortMessage) -> bool {
        let Some(&number) = self.by_rid.get(rid) else { return false };
        self.mark_request_number_aborted(number, message);
        true
    }

    /// Marks the request with this number as aborted by this message.
    fn mark_request_number_aborted(&mut self, request_number: u64, message: AbortMessage) {
        let Some(waiting) = self.waiting.get_mut(&request_number) else { return };
        let previous = waiting.abort.replace(message);
        // A second abort of the request replaces the first, but counts once.
        if previous.is_none() {
            self.aborted += 1;
        }
        if message.abort.received.is_none() {
            self.unreceived.entry(message.id).or_default().push(request_number);
        }
    }

    /// Whether a request with this id waits that the scheduler was asked to abort.
    pub(super) fn is_aborted(&self, rid: &str) -> bool {
        let waiting = self.by_rid.get(rid).and_then(|number| self.waiting.get(number));
        waiting.is_some_and(|waiting| waiting.abort.is_some())
    }

    /// Removes requests that were sent before `oldest_allowed` and have no chunk yet: their first chunk will not be recognised any more.
    pub(super) fn drop_requests_sent_before(&mut self, oldest_allowed: MonoNs) {
        while let Some(oldest) = self.waiting.values().next() {
            if oldest.times.sent >= oldest_allowed {
                break;
            }
            let was_removed = self.remove_oldest();
            if !was_removed {
                break;
            }
        }
        if self.by_rid.is_empty() {
            // Without waiting requests, a receive would find nothing to record.
            self.unreceived.clear();
        }
    }

    /// Removes all requests: the engine ended.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Requests that wait and were not aborted, oldest first.
    fn iter(&self) -> impl Iterator<Item = &WaitingRequest> {
        self.waiting.values().filter(|waiting| waiting.abort.is_none())
    }

    /// Removes the oldest request. Returns whether there was one.
    fn remove_oldest(&mut self) -> bool {
        let rid = self.waiting.first_key_value().map(|(_, oldest)| Arc::clone(&oldest.rid));
        rid.is_some_and(|rid| self.remove(&rid).is_some())
    }
}

impl Ledger {
    /// Records a message to the scheduler: requests, aborts of requests, or control. Called once for each request in it, in order.
    pub(super) fn record_dispatch(&mut self, at: MonoNs, dispatch: &Dispatch<'_>) {
        // The message itself counts once, with its first request.
        if dispatch.index == 0 {
            let has_room = self.record_dispatch_message_if_room(at, dispatch);
            if !has_room {
                return;
            }
        }
        if dispatch.kind == DispatchKind::Control {
            self.silences.record_control(at);
        }
        let Some(request) = dispatch.request else {
            // An abort without a rid is for all requests.
            if dispatch.kind == DispatchKind::Aborts {
                self.record_dispatched_abort_of_all(at, dispatch.id);
            }
            return;
        };
        // Health checks are kept apart, and their aborts do not matter.
        if self.engine.is_health_check(request.rid) {
            if dispatch.kind == DispatchKind::Requests {
                let check = HealthCheck { rid_hash: hash_rid(request.rid), hop: dispatch.id.hop, sent: at };
                self.dispatched.health_check = Some(check);
            }
            return;
        }
        match dispatch.kind {
            // A process between the tokenizer and the scheduler sends a request again that was dispatched before.
            DispatchKind::Requests if self.is_forwarded(dispatch.id.hop, request.rid) => {
                self.dispatched.record_forwarded_request(at, dispatch.id, request.rid, self.limits.dispatched_requests);
            }
            DispatchKind::Requests => self.record_dispatched_request(at, dispatch.id, &request),
            DispatchKind::Aborts => self.record_dispatched_abort(at, dispatch.id, request.rid),
            DispatchKind::Control => {}
        }
    }

    /// Records the send of a message to the scheduler, without its content. Returns false at the limit of hops.
    fn record_dispatch_message_if_room(&mut self, at: MonoNs, dispatch: &Dispatch<'_>) -> bool {
        let Some(hop_index) = self.register_frame_returning_hop_index(at, dispatch.id) else { return false };
        let hop = &mut self.hops.all[hop_index];
        hop.counts.bytes += super::capped(dispatch.bytes);
        // The receive by a process that forwards requests is not that of the scheduler.
        let early = hop.early_receives.iter().find(|early| early.id == dispatch.id && !hop.forwards_requests);
        let received_early = early.map(|early| early.at);
        self.dispatched.last_message = Some(LastMessage { id: dispatch.id, received_early });
        // The message has no chunks.
        self.pending_receive.clear();
        let chunks = 0;
        let forwarded = None;
        self.queue_sent_frame(at, dispatch.id, hop_index, FrameLoad::new(chunks, dispatch.bytes), forwarded);
        true
    }

    /// Records that the message `frame` sends a request to the scheduler for the first time.
    fn record_dispatched_request(&mut self, at: MonoNs, frame: FrameId, request: &DispatchedRequest<'_>) {
        self.totals.dispatched.requests += 1;
        // The rid may have another client.
        self.unwatch_clientless(request.rid);
        self.record_dispatch_for_retries(at, request.rid);
        // With a rid in use, a chunk does not show whose it is.
        let is_in_use = self.table.ticket_of(request.rid).is_some();
        let missed = if is_in_use { UNJUDGED } else { self.hops.missed_messages() };
        let has_evicted = self.dispatched.add_waiting_request_and_check_eviction(
            at,
            frame,
            request,
            missed,
            self.limits.dispatched_requests,
        );
        if has_evicted {
            self.limits.count_reached("dispatched_requests");
        }
    }

    /// Records that the message `frame` asks the scheduler to abort the request with this id. Each process between the tokenizer and the
    /// scheduler sends it again, which counts as the same abort.
    fn record_dispatched_abort(&mut self, at: MonoNs, frame: FrameId, rid: &str) {
        let is_repeated = self.hops.get(frame.hop).is_some_and(|hop| hop.repeats_requests);
        if !is_repeated {
            self.totals.dispatched.aborts += 1;
            self.record_abort_for_retries(at, rid);
        }
        let first_sent = if is_repeated { self.dispatched.abort_sent_at(rid) } else { None };
        let received = self.dispatched.early_receive(frame);
        let abort = RequestAbort { sent: first_sent.unwrap_or(at), received };
        let message = AbortMessage { id: frame, abort };
        // Recorded in both places: while a finished request still has a record, a retry with its rid may be waiting.
        let is_waiting = self.dispatched.mark_rid_aborted_if_waiting(rid, message);
        let has_record = self.record_abort_if_known(rid, frame, abort);
        let is_known = is_waiting || has_record;
        // An engine may end all requests whose ids begin with that of the abort, so such an id need not be that of a request.
        if !is_known && self.engine.facts().aborts_by_prefix() {
            self.dispatched.mark_aborted_with_prefix(rid, message);
        }
    }

    /// Records that the message `frame` asks the scheduler to abort all requests.
    fn record_dispatched_abort_of_all(&mut self, at: MonoNs, frame: FrameId) {
        let abort = RequestAbort { sent: at, received: self.dispatched.early_receive(frame) };
        // Every rid begins with an empty one.
        let every_rid = "";
        self.dispatched.mark_aborted_with_prefix(every_rid, AbortMessage { id: frame, abort });
        self.clientless.record_abort_of_all(abort);
        self.retries.record_abort_of_all();
    }

    /// Whether the sender of this hop forwards the request with this id, which it received on another hop. A second attempt with the id is
    /// sent on a hop that begins where the first one did.
    fn is_forwarded(&self, hop: HopId, rid: &str) -> bool {
        self.dispatched.last_hop_of(rid).is_some_and(|before| self.hops.is_first_hop_followed_by_second(before, hop))
    }

    /// Requests that were sent to the scheduler, were not aborted, and of which no chunk was observed.
    pub fn dispatched_count(&self) -> usize {
        self.dispatched.by_rid.len() - self.dispatched.aborted
    }

    /// Sum of the waits of these requests since they were sent.
    pub fn dispatched_wait_ns(&self) -> u128 {
        self.dispatched.iter().map(|waiting| u128::from(self.now().since(waiting.times.sent))).sum()
    }

    /// Requests that were sent to the scheduler, and of which no chunk was observed, with their rids; aborted ones included.
    pub fn waiting_requests(&self) -> impl Iterator<Item = (&str, RequestDispatch)> {
        self.dispatched.waiting.values().map(|waiting| (&*waiting.rid, waiting.times))
    }

    /// Dispatch of the request that waits longest for its first chunk, with its rid; `None` if none waits.
    pub fn oldest_dispatched(&self) -> Option<(&str, RequestDispatch)> {
        self.dispatched.iter().next().map(|oldest| (&*oldest.rid, oldest.times))
    }
}

#[cfg(test)]
mod tests;
