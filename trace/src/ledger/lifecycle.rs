//! Lifecycle of request records: creation, closing and eviction.

use super::finished::SummaryLimits;
use super::request::{CloseReason, Request, RequestSummary};
use super::stream::Stream;
use super::{Ledger, Lossy};
use crate::clock::MonoNs;
use crate::event::Finish;
use crate::id::Ticket;

/// Minimum number of slots examined per tick. A larger table is examined in steps of its length divided by `TICKS_PER_ROUND`.
const MIN_SLOTS_PER_TICK: usize = 256;
const TICKS_PER_ROUND: usize = 16;
/// How long a receive waits for its send before the send counts as missed, in nanoseconds.
const EARLY_RECEIVE_TIMEOUT_NS: u64 = 5_000_000_000;
/// Number of records compared for eviction if none has finished; the one silent longest is evicted.
const EVICTION_CANDIDATES: usize = 16;

impl Ledger {
    /// Advances time and removes old records. Called about every 100 ms.
    pub fn tick(&mut self, now: MonoNs) {
        self.now = self.now.max(now);
        let now = self.now;
        self.forget_closed_timelines();
        self.mark_missed_receives();
        self.close_finished_requests(now);
        self.close_silent_requests(now);
        self.drop_overdue_early_receives(now);
        self.waits.drop_overdue_waits(now);
        self.dispatched.drop_requests_sent_before(MonoNs(now.0.saturating_sub(self.limits.orphan_after_ns)));
        // Before the judgements below, which a silence of the engine may explain.
        self.advance_engine_silences(now);
        self.judge_unanswered_requests(now);
        self.judge_late_requests(now);
        self.advance_process_waits(now);
        self.judge_prefills(now);
        // The backlog of each group of hops (channels of one name) over time: whether it rises, and since when many frames wait.
        for group in &mut self.hops.groups {
            group.trend.record_level(now, group.backlog);
            group.course.record_backlog_at_tick(now, group.backlog, &group.trend);
        }
    }

    /// Closes finished requests: those of which everything has arrived, and those whose last receives or deliveries did not come in time.
    fn close_finished_requests(&mut self, now: MonoNs) {
        // Lingering requests: everything of them has arrived. They are kept briefly, so that a repeated finish is recognised.
        while let Some((_, ticket)) = self.lingering.pop_front_if(|(due, _)| *due <= now) {
            self.close_request(ticket, CloseReason::Ended);
        }
        // Settling requests wait for their last receives and deliveries. Most linger before they are due, and are closed above.
        while let Some(&(due, ticket)) = self.settling.front() {
            let is_closed = self.table.get(ticket).is_none();
            if due > now && !is_closed {
                break;
            }
            self.settling.pop_front();
            self.close_request(ticket, CloseReason::Ended);
        }
    }

    /// Forgets receives whose sends did not follow in time.
    fn drop_overdue_early_receives(&mut self, now: MonoNs) {
        for hop in &mut self.hops.all {
            while let Some(oldest) = hop.early_receives.front() {
                if now.since(oldest.at) <= EARLY_RECEIVE_TIMEOUT_NS {
                    break;
                }
                hop.early_receives.pop_front();
            }
        }
    }

    /// Closes requests that have been silent for the orphan timeout, in the part of the table that this tick examines.
    fn close_silent_requests(&mut self, now: MonoNs) {
        let slots = self.table.slot_count();
        // Each tick examines the next part only, because a whole large table would delay events.
        let examined_slots = MIN_SLOTS_PER_TICK.max(slots / TICKS_PER_ROUND).min(slots);
        for _ in 0..examined_slots {
            let Some(ticket) = self.table.advance_one_slot() else { continue };
            let Some(request) = self.table.get(ticket) else { continue };
            if now.since(request.last_at) <= self.limits.orphan_after_ns {
                continue;
            }
            // A log that contains first tokens need not contain the ends of requests, so such a request has probably ended.
            let is_only_logged = request.streams.is_empty() && request.received_first.is_some();
            let reason = if is_only_logged { CloseReason::Ended } else { CloseReason::Orphaned };
            self.close_request(ticket, reason);
        }
    }

    /// Creates a record for an unknown request, and returns its ticket (the handle of the record). At a limit, evicts other records until
    /// there is room for it, or none is left.
    pub(super) fn admit_request(&mut self, rid: &str, at: MonoNs) -> Ticket {
        self.make_room_for_rid(rid);
        self.totals.requests.seen += 1;
        // The load that this request meets. Counted before it is added, so without it.
        self.dispatched.running = self.table.live_count() as u64;
        let ticket = self.table.insert(rid, at);
        // Nearly always the set of shared rids is empty, and nothing is compared.
        if !self.shared_rids.is_empty()
            && self.shared_rids.contains(rid)
            && let Some(request) = self.table.get_mut(ticket)
        {
            // Earlier requests may have had the rid at the same time. Their chunks may still come, so this one is not judged either.
            request.sharing_requests = 1;
            self.totals.requests.shared += 1;
        }
        ticket
    }

    /// Evicts requests until a further one with this rid keeps both limits of the table, or none is left.
    fn make_room_for_rid(&mut self, rid: &str) {
        while self.table.len() >= self.limits.live_rids.max(1) {
            let was_evicted = self.evict_one_request("live_rids");
            if !was_evicted {
                break;
            }
        }
        // The other half is for summaries: see `Limits::rid_bytes`.
        let max_rid_bytes = self.limits.rid_bytes / 2;
        while self.table.rid_bytes + rid.len() > max_rid_bytes {
            let was_evicted = self.evict_one_request("rid_bytes");
            if !was_evicted {
                break;
            }
        }
    }

    /// Evicts one request at the limit with this name. Returns false if there is none.
    fn evict_one_request(&mut self, limit_name: &'static str) -> bool {
        // Finished requests are evicted first, since that loses no information.
        while let Some((_, ticket)) = self.lingering.pop_front() {
            if self.evict_request(ticket, CloseReason::Ended) {
                return true;
            }
        }
        if self.evict_one_with_logged_receive(limit_name) {
            return true;
        }
        // From here on, an eviction loses information: first that of finished requests whose last receives or deliveries may still come.
        self.limits.count_reached(limit_name);
        while let Some((_, ticket)) = self.settling.pop_front() {
            if self.evict_request(ticket, CloseReason::Ended) {
                return true;
            }
        }
        match self.find_eviction_candidate() {
            Some(ticket) => self.evict_request(ticket, CloseReason::Evicted),
            None => false,
        }
    }

    /// Looks at the next few requests in the table, and returns the ticket of the one that has been silent longest. A search of the whole
    /// table would be too slow for each new request.
    fn find_eviction_candidate(&mut self) -> Option<Ticket> {
        // Each call advances the table's cursor, so that the next eviction looks at others.
        let candidates: [Option<Ticket>; EVICTION_CANDIDATES] =
            std::array::from_fn(|_| self.table.advance_to_next_record());
        candidates.into_iter().flatten().min_by_key(|ticket| {
            let request = self.table.get(*ticket);
            // Each of these tickets has a record.
            request.map_or(MonoNs(u64::MAX), |request| request.last_at)
        })
    }

    /// Closes a request for lack of room, and remembers when. A later chunk of it creates a new record, which could mistake that chunk for
    /// the first. Returns whether the request was still in the table.
    fn evict_request(&mut self, ticket: Ticket, reason: CloseReason) -> bool {
        let was_present = self.close_request(ticket, reason);
        if was_present {
            self.last_eviction_at = Some(self.now);
        }
        was_present
    }

    /// Whether an evicted request may still resume: a live request is never silent for as long as the orphan timeout.
    pub(super) fn evicted_may_resume(&self, at: MonoNs) -> bool {
        self.last_eviction_at.is_some_and(|evicted_at| at.since(evicted_at) <= self.limits.orphan_after_ns)
    }

    /// Evicts one request whose first receive is in the engine's log, which need not contain its end. Returns false if there is none. An
    /// eviction loses information only if the request was seen within the settle time. It then counts at the limit with this name.
    fn evict_one_with_logged_receive(&mut self, limit_name: &'static str) -> bool {
        while let Some(ticket) = self.stages.with_logged_receive.pop_front() {
            // The queue also has requests whose records are closed.
            let Some(request) = self.table.get(ticket) else { continue };
            let may_continue = self.now.since(request.last_at) < self.limits.settle_ns;
            if may_continue {
                self.limits.count_reached(limit_name);
            }
            return self.evict_request(ticket, CloseReason::Ended);
        }
        false
    }

    /// Marks the request as finished, unless it is already. Its last receives and deliveries may be in flight, so its record is closed
    /// later.
    pub(super) fn finish_request(&mut self, ticket: Ticket, at: MonoNs, finish: Finish) {
        let was_unfinished = self.table.mark_finished_if_open(ticket, finish);
        if !was_unfinished {
            return;
        }
        if let Some(request) = self.table.get(ticket) {
            self.retries.record_finish_of_retry(&request.rid, request.dispatch(), finish);
            // Some engines abort the rid of an ended request some time later, which may end another attempt with it.
            if let Some(delay_ns) = self.engine.facts().abort_delay_ns() {
                self.retries.record_sign_of_attempt_end(at, &request.rid, delay_ns);
            }
        }
        self.totals.requests.settling += 1;
        self.close_after_settle_time(ticket, at);
    }

    /// Queues a request that finished at `at` for closing, in case that its last receives or deliveries do not come.
    fn close_after_settle_time(&mut self, ticket: Ticket, at: MonoNs) {
        // The queue also has entries of requests that are closed, so the limit of the table does not limit it.
        if self.settling.len() >= self.limits.live_rids.max(1)
            && let Some((_, oldest)) = self.settling.pop_front()
        {
            self.evict_request(oldest, CloseReason::Ended);
        }
        let due = MonoNs(at.0.saturating_add(self.limits.settle_ns));
        self.settling.push_back((due, ticket));
    }

    /// Queues the request for closing if everything observable about it has arrived: its finish at the tokenizer, and its last delivery to
    /// the client.
    pub(super) fn close_soon_if_all_arrived(&mut self, ticket: Ticket, at: MonoNs) {
        let Some(request) = self.table.get(ticket) else { return };
        let is_queued_already = request.is_closing_soon;
        if is_queued_already || request.finish.is_none() {
            return;
        }
        let has_finish_arrived = if self.hops.any_last {
            self.has_finish_reached_tokenizer(request)
        } else {
            // Where no hop is known to lead to the tokenizer, the finish must have crossed each one.
            request.streams.iter().all(Stream::is_finished)
        };
        if !has_finish_arrived {
            return;
        }
        // No deliveries are observed of a response that carries text only.
        let awaits_delivery =
            request.tracker.as_ref().is_some_and(|tracker| !tracker.is_finished && !tracker.is_text_only);
        self.record_end_arrival(ticket);
        if !awaits_delivery {
            self.close_soon(ticket, at);
        }
    }

    /// Records that the end of a request has reached the tokenizer. Repeated calls change nothing.
    fn record_end_arrival(&mut self, ticket: Ticket) {
        let Some(request) = self.table.get_mut(ticket) else { return };
        if request.is_end_in_transit {
            request.is_end_in_transit = false;
            self.totals.requests.ends_in_transit -= 1;
        }
    }

    /// Marks first tokens and ends of requests that the tokenizer may have received unobserved, because they were on their way when
    /// observations were missed. The hop on which they were last seen does not matter: their sends on later hops may have been missed, too.
    fn mark_missed_receives(&mut self) {
        let Some(until) = self.receives_missed_until.take() else { return };
        for request in self.table.iter_mut() {
            if request.received_first.is_none() && request.sent_first.is_some_and(|sent| sent <= until) {
                request.first_receive_missed = true;
            }
            if request.is_end_in_transit && request.last_at <= until {
                request.is_end_in_transit = false;
                self.totals.requests.ends_in_transit -= 1;
            }
        }
    }

    /// Ends in transit never arrive once the engine has ended.
    pub(super) fn forget_ends_in_transit(&mut self) {
        self.table.iter_mut().for_each(|request| request.is_end_in_transit = false);
        self.totals.requests.ends_in_transit = 0;
    }

    /// Whether the finish was sent on the last hop, the channel into the tokenizer, and was received there if receives are observed.
    fn has_finish_reached_tokenizer(&self, request: &Request) -> bool {
        for stream in &request.streams {
            let Some(hop) = self.hops.hop_of(stream) else { continue };
            if hop.last {
                let is_received = request.final_received || !hop.shows.received;
                return stream.is_finished() && is_received;
            }
        }
        false
    }

    /// Queues the record for closing after a short time, in which a repeated finish is still recognised.
    pub(super) fn close_soon(&mut self, ticket: Ticket, at: MonoNs) {
        let due = MonoNs(at.0.saturating_add(self.limits.linger_ns));
        let Some(request) = self.table.get_mut(ticket) else { return };
        if !request.is_closing_soon {
            request.is_closing_soon = true;
            self.lingering.push_back((due, ticket));
        }
    }

    /// Keeps the losses of a finished request, and evicts the oldest at the limit.
    fn keep_losses_of_finished_request(&mut self, lossy: Lossy) {
        self.lossy.push_back(lossy);
        // Half of the ranges are for live requests.
        while self.lossy.len() > self.limits.lossy_requests || self.loss_memory.ranges > self.limits.lost_ranges / 2 {
            let Some(oldest) = self.lossy.pop_front() else { break };
            self.loss_memory.ranges -= oldest.range_count();
            self.loss_memory.ids -= oldest.id_count();
            self.limits.count_reached("lossy_requests");
        }
    }

    /// Removes a request's record and keeps its summary. Returns false if it is not in the table.
    fn close_request(&mut self, ticket: Ticket, reason: CloseReason) -> bool {
        let Some(mut request) = self.table.remove(ticket) else { return false };
        self.count_closed_record(&request, reason);
        let is_abandoned = self.keep_closed_request_if_abandoned(ticket, &request);
        self.subtract_waiting_chunks_of_closed(&request);
        self.predecessors.remove(&ticket);
        if request.streams.iter().any(|stream| stream.count.last_chunk_listed_all()) {
            // Its last chunk may belong to another request with the rid, whose later chunks then look like a new request.
            self.add_shared_rid(request.rid.clone());
        }
        if let Some(lossy) = request.take_losses() {
            self.keep_losses_of_finished_request(lossy);
        }
        self.ttft.record_ttft_of_request(&mut request, &mut self.limits);
        let mut numbers = self.numbers(&request);
        // `keep_closed_request_if_abandoned` has stopped watching the request, so its numbers do not show this any more.
        numbers.is_abandoned |= is_abandoned;
        let summary = RequestSummary { rid: request.rid, numbers };
        if let Some(timelines) = &mut self.timelines {
            timelines.close_timeline(ticket, summary.clone());
        }
        self.keep_summary(summary);
        true
    }

    /// Subtracts the chunks of a closed request that wait in processes and for their deliveries from the numbers over all requests. Those
    /// without a delivery count as undelivered.
    fn subtract_waiting_chunks_of_closed(&mut self, request: &Request) {
        self.hops.processing_stages.subtract_closed(&request.in_process);
        if let Some(tracker) = &request.tracker {
            self.totals.chunks.undelivered += tracker.chunks_in_flight;
            tracker.subtract_from_memory_use(&mut self.loss_memory);
        }
    }

    /// Counts a request whose record is closed, and subtracts it from the counts of those that are on their way to their end.
    fn count_closed_record(&mut self, request: &Request, reason: CloseReason) {
        let totals = &mut self.totals.requests;
        totals.settling -= u64::from(request.finish.is_some());
        totals.ends_in_transit -= u64::from(request.is_end_in_transit);
        totals.closed += 1;
        match reason {
            CloseReason::Evicted => totals.evicted += 1,
            // A finished request had its end, even if it was silent for long after it.
            CloseReason::Orphaned if request.finish.is_none() => totals.orphaned += 1,
            CloseReason::Orphaned | CloseReason::Ended => {}
        }
    }

    /// Keeps the summary of a closed request for a while.
    fn keep_summary(&mut self, summary: RequestSummary) {
        // Half of the bytes of rids are for live requests: see `Limits::rid_bytes`.
        let limits = SummaryLimits { summaries: self.limits.finished_kept, rid_bytes: self.limits.rid_bytes / 2 };
        // Taken out, because `is_notable` borrows the ledger.
        let mut finished = std::mem::take(&mut self.finished);
        finished.add_summary(summary, limits, |summary| self.is_notable(summary));
        self.finished = finished;
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;
    use crate::MonoNs;
    use crate::event::{Capabilities, Chunk, Finish, IdColumn};
    use crate::ledger::Limits;
    use crate::ledger::test_path::Path;

    fn path(limits: Limits) -> Path {
        let mut path = Path { step_ns: 5, ..Path::new(Config { limits, ..Config::default() }) };
        path.announce(0, "scheduler->tokenizer", [true, true], Capabilities::SENT | Capabilities::RECEIVED);
        path
    }

    /// Sends a frame with chunks of (rid, count so far), which list all ids so far, and receives it 5 ns later.
    fn pass(path: &mut Path, claim: IdColumn, chunks: &[(&str, u32)]) {
        let chunks: Vec<Chunk<'_>> = chunks.iter().map(|&(rid, count)| Chunk::counted(rid, count, count)).collect();
        let id = path.send(0, claim, &chunks);
        path.receive(id);
    }

    fn gap(path: &Path, rid: &str) -> Option<u64> {
        path.ledger().request(rid).expect("it lives").gap_ns()
    }

    #[test]
    fn rid_memory_is_bounded_in_bytes() {
        let mut path = path(Limits { rid_bytes: 10_000, ..Limits::default() });
        for n in 0..100 {
            let rid = format!("{n:04000}");
            pass(&mut path, IdColumn::Cumulative, &[(&rid, 1)]);
        }
        assert_eq!(path.ledger().record_count(), 1, "a limit of 10,000 bytes fits one request");
        assert_eq!(path.ledger().finished_count(), 1);
        let degraded: Vec<String> = path.ledger().degraded_reason_lines().collect();
        assert_eq!(degraded, ["limit rid_bytes = 10000 was reached 99 times: the oldest entries were evicted"]);
    }

    #[test]
    fn a_request_is_live_until_the_tokenizer_has_received_its_end() {
        let mut path = path(Limits::default());
        let numbers = |path: &Path| {
            let requests = path.ledger().totals().requests;
            (requests.completed, requests.ends_in_transit, path.ledger().live_count())
        };
        let first = path.send(0, IdColumn::Delta, &[Chunk::counted("a", 1, 1)]);
        let last = Chunk { finish: Some(Finish::Stop), ..Chunk::counted("a", 1, 2) };
        let last = path.send(0, IdColumn::Delta, &[last]);
        assert_eq!(numbers(&path), (1, 1, 1), "the scheduler has finished it, but its client waits");
        path.receive(first);
        assert_eq!(numbers(&path), (1, 1, 1));
        path.receive(last);
        assert_eq!(numbers(&path), (1, 0, 0));
        let aborted = Chunk { finish: Some(Finish::Abort), ..Chunk::counted("b", 1, 1) };
        path.send(0, IdColumn::Delta, &[aborted]);
        assert_eq!(numbers(&path), (1, 0, 0), "nobody waits for it");
    }

    #[test]
    fn an_evicted_request_does_not_restart_with_a_later_chunk() {
        for claim in [IdColumn::Cumulative, IdColumn::Undecided] {
            let mut path = path(Limits { live_rids: 2, ..Limits::default() });
            pass(&mut path, claim, &[("a", 1)]);
            pass(&mut path, claim, &[("b", 3)]);
            assert_eq!((gap(&path, "a"), gap(&path, "b")), (Some(5), Some(5)));
            // In one frame, c evicts the record of a, and then a evicts that of b.
            pass(&mut path, claim, &[("c", 1), ("a", 2)]);
            assert_eq!((gap(&path, "c"), gap(&path, "a")), (Some(5), None), "{claim:?}");
            // A request silent for the orphan timeout does not resume.
            path.now += Limits::default().orphan_after_ns;
            path.analysis.tick(MonoNs(path.now));
            pass(&mut path, claim, &[("d", 2)]);
            assert_eq!(gap(&path, "d"), Some(5));
        }
    }
}
