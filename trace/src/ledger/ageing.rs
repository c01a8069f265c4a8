//! Lifecycle of request records: creation, closing and eviction.

use super::request::{Closed, Summary};
use super::{Ledger, Lossy};
use crate::clock::MonoNs;
use crate::event::Finish;
use crate::id::Ticket;

/// Minimum number of slots examined per tick. A larger table is examined in steps of its length divided by `ROUND`.
const STEPS: usize = 256;
const ROUND: usize = 16;
/// How long a receive waits for its send before the send counts as missed, in nanoseconds.
const EARLY_NS: u64 = 5_000_000_000;
/// Number of records compared for eviction if none has finished; the one silent longest is evicted.
const CANDIDATES: usize = 16;

impl Ledger {
    /// Advances time and removes old records. Called about every 100 ms.
    pub fn tick(&mut self, now: MonoNs) {
        self.now = self.now.max(now);
        let now = self.now;
        self.forget_closed();
        while let Some((_, ticket)) = self.lingering.pop_front_if(|l| l.0 <= now) {
            self.close(ticket, Closed::Over);
        }
        // Entries of already closed records are removed when they reach the front.
        while let Some(&(due, ticket)) = self.settling.front() {
            if due > now && self.table.get(ticket).is_some() {
                break;
            }
            self.settling.pop_front();
            self.close(ticket, Closed::Over);
        }
        for _ in 0..STEPS.max(self.table.slots() / ROUND).min(self.table.slots()) {
            let Some(ticket) = self.table.step() else { continue };
            let (silent, logged_only) = self.table.get(ticket).map_or((0, false), |r| {
                // A log that contains first tokens need not contain the ends of requests.
                (now.since(r.last_at), r.streams.is_empty() && r.received_first.is_some())
            });
            if silent > self.limits.orphan_after_ns {
                self.close(ticket, if logged_only { Closed::Over } else { Closed::Orphaned });
            }
        }
        for hop in &mut self.hops.all {
            while hop.early.pop_front_if(|early| now.since(early.at) > EARLY_NS).is_some() {}
        }
        self.waits.age(now);
        self.tick_engine_silences(now);
        for group in &mut self.hops.groups {
            group.trend.sample(now, group.backlog);
        }
    }

    /// Creates a record for an unknown request.
    pub(super) fn admit(&mut self, rid: &str, at: MonoNs) -> Ticket {
        while self.table.len() >= self.limits.live_rids.max(1) && self.make_room("live_rids") {}
        let limit = self.limits.rid_bytes / 2;
        while self.table.rid_bytes + rid.len() > limit && self.make_room("rid_bytes") {}
        self.totals.requests.seen += 1;
        let ticket = self.table.insert(rid, at);
        if !self.shared_rids.is_empty()
            && self.shared_rids.contains(rid)
            && let Some(request) = self.table.get_mut(ticket)
        {
            request.sharing = 1;
            self.totals.requests.shared += 1;
        }
        ticket
    }

    /// Evicts one record at the limit with this name.
    fn make_room(&mut self, limit: &'static str) -> bool {
        // Finished requests are evicted first, since that loses no information.
        while let Some((_, ticket)) = self.lingering.pop_front() {
            if self.give_up(ticket, Closed::Over) {
                return true;
            }
        }
        // Next are requests whose first receive is logged. Evicting one that is silent for the settle time loses no information either.
        while let Some(ticket) = self.stages.passed.pop_front() {
            let silent = self.table.get(ticket).map_or(0, |r| self.now.since(r.last_at));
            if self.table.get(ticket).is_some() && silent < self.limits.settle_ns {
                self.limits.reached(limit);
            }
            if self.give_up(ticket, Closed::Over) {
                return true;
            }
        }
        self.limits.reached(limit);
        while let Some((_, ticket)) = self.settling.pop_front() {
            if self.give_up(ticket, Closed::Over) {
                return true;
            }
        }
        let candidates: [Option<Ticket>; CANDIDATES] = std::array::from_fn(|_| self.table.next());
        let silent_since = |t: &Ticket| self.table.get(*t).map_or(MonoNs(u64::MAX), |r| r.last_at);
        let quietest = candidates.into_iter().flatten().min_by_key(silent_since);
        quietest.is_some_and(|ticket| self.give_up(ticket, Closed::Evicted))
    }

    /// Evicts a record at the limit. A later chunk of its request creates a new record, which could mistake that chunk for the first.
    fn give_up(&mut self, ticket: Ticket, why: Closed) -> bool {
        let closed = self.close(ticket, why);
        if closed {
            self.forgot = Some(self.now);
        }
        closed
    }

    /// Whether an evicted request may still resume: a live request is never silent for as long as the orphan timeout.
    pub(super) fn evicted_may_resume(&self, at: MonoNs) -> bool {
        let recent = |forgot: MonoNs| at.since(forgot) <= self.limits.orphan_after_ns;
        self.forgot.is_some_and(recent)
    }

    /// Marks the request as finished. Its last receives and deliveries may be in flight.
    pub(super) fn finish(&mut self, ticket: Ticket, at: MonoNs, finish: Finish) {
        if !self.table.finish(ticket, finish) {
            return;
        }
        self.totals.requests.settling += 1;
        if self.settling.len() >= self.limits.live_rids.max(1)
            && let Some((_, oldest)) = self.settling.pop_front()
        {
            self.give_up(oldest, Closed::Over);
        }
        self.settling.push_back((MonoNs(at.0.saturating_add(self.limits.settle_ns)), ticket));
    }

    /// Queues the request for closing if everything observable about it has arrived.
    pub(super) fn settle_if_finished(&mut self, ticket: Ticket, at: MonoNs) {
        let Some(request) = self.table.get(ticket).filter(|r| !r.queued && r.finish.is_some()) else {
            return;
        };
        let mut arrived = request.streams.iter().all(super::Stream::finished);
        if self.hops.any_last {
            let last = |s: &&super::Stream| self.hops.of(s).filter(|h| h.last);
            let at_last = request.streams.iter().find_map(|s| Some((s, last(&s)?)));
            arrived = at_last.is_some_and(|(s, hop)| s.finished() && (request.final_received || !hop.shows.received));
        }
        if arrived && request.tracker.as_ref().is_none_or(|tracker| tracker.finished || tracker.text) {
            self.linger(ticket, at);
        }
    }

    /// Queues the record for closing after a short time, in which a repeated finish is still recognised.
    pub(super) fn linger(&mut self, ticket: Ticket, at: MonoNs) {
        let due = MonoNs(at.0.saturating_add(self.limits.linger_ns));
        if let Some(request) = self.table.get_mut(ticket).filter(|r| !r.queued) {
            request.queued = true;
            self.lingering.push_back((due, ticket));
        }
    }

    /// Keeps the losses of a finished request, and evicts the oldest at the limit.
    fn keep_lossy(&mut self, lossy: Lossy) {
        self.lossy.push_back(lossy);
        while self.lossy.len() > self.limits.lossy_requests || self.shelf.ranges > self.limits.lost_ranges / 2 {
            let Some(oldest) = self.lossy.pop_front() else { break };
            self.shelf.ranges -= oldest.ranges();
            self.shelf.ids -= oldest.ids();
            self.limits.reached("lossy_requests");
        }
    }

    fn close(&mut self, ticket: Ticket, why: Closed) -> bool {
        let Some(mut request) = self.table.remove(ticket) else {
            return false;
        };
        self.totals.requests.settling -= u64::from(request.finish.is_some());
        self.totals.requests.closed += 1;
        match why {
            Closed::Orphaned if request.finish.is_none() => self.totals.requests.orphaned += 1,
            Closed::Evicted => self.totals.requests.evicted += 1,
            _ => {}
        }
        self.close_clientless(ticket, &request);
        self.hops.processing_stages.forget(&request.in_process);
        self.predecessors.remove(&ticket);
        if request.streams.iter().any(|stream| stream.count.listed_all()) {
            self.add_shared_rid(request.rid.clone());
        }
        if let Some(tracker) = &request.tracker {
            self.totals.chunks.undelivered += tracker.chunks;
            tracker.release(&mut self.shelf);
        }
        if let Some(lossy) = request.take_losses() {
            self.keep_lossy(lossy);
        }
        let numbers = self.numbers(&request);
        let mut finished = std::mem::take(&mut self.finished);
        let limits = (self.limits.finished_kept, self.limits.rid_bytes / 2);
        let summary = Summary { rid: request.rid, numbers };
        if let Some(timelines) = &mut self.timelines {
            timelines.close(ticket, summary.clone());
        }
        finished.enter(summary, limits, |of| self.is_notable(of));
        self.finished = finished;
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;
    use crate::MonoNs;
    use crate::event::{Capabilities, Chunk, IdColumn};
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
        path.ledger().request(rid).expect("it lives").gap_ns
    }

    #[test]
    fn rid_memory_is_bounded_in_bytes() {
        let mut path = path(Limits { rid_bytes: 10_000, ..Limits::default() });
        for n in 0..100 {
            let rid = format!("{n:04000}");
            pass(&mut path, IdColumn::Cumulative, &[(&rid, 1)]);
        }
        assert_eq!(path.ledger().remembered(), 1, "a limit of 10,000 bytes fits one request");
        assert_eq!(path.ledger().finished_count(), 1);
        let degraded: Vec<String> = path.ledger().degraded().collect();
        assert_eq!(degraded, ["limit rid_bytes = 10000 was reached 99 times: the oldest entries were evicted"]);
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
