//! Processing stages between two hops: a router or detokenizer receives a chunk on one hop and forwards it on the next.
//!
//! A chunk is identified by its request and its cumulative token count, which both frames contain. Different threads report receives and
//! sends, so either may come first, and several of one kind may come before any of the other.

use serde::{Deserialize, Serialize};

use super::in_process::{InProcess, Side};
use super::limits::{Limits, ReachedCounts};
use super::request::Request;
use crate::clock::MonoNs;
use crate::stats::{Distribution, WindowedSum};

/// Maximum number of distinct roles; the ends of further ones are left unassigned.
const ROLES: usize = 1_024;

/// Processing stage: one role, with the time that chunks spend inside its processes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ProcessingStage {
    /// Role name, as in hop names.
    pub role: String,
    /// Forwarded minus received, of every chunk with both times observed.
    pub inside: Distribution,
    /// Sums of `inside`.
    pub inside_sum: WindowedSum,
    /// Time inside, of each request's first chunk.
    pub first_inside: WindowedSum,
    /// Forwarded minus sent to it, of each request's first chunk; includes the queue wait.
    pub through: Distribution,
    /// Sums of `through`.
    pub through_sum: WindowedSum,
    /// Receives are observed on a hop that leads to it.
    pub(crate) shows_receives: bool,
}

impl ProcessingStage {
    fn inside(&mut self, until: MonoNs, ns: u64) {
        self.inside.record(until, ns);
        self.inside_sum.record_n(until, ns, 1);
    }

    fn through(&mut self, until: MonoNs, ns: u64) {
        self.through.record(until, ns);
        self.through_sum.record_n(until, ns, 1);
    }
}

/// All roles in hop names.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ProcessingStages {
    pub(crate) all: Vec<ProcessingStage>,
    /// Number of times in all requests' [`InProcess`].
    waiting: usize,
}

impl ProcessingStages {
    /// Index of a role, which is added if unknown.
    pub(crate) fn role(&mut self, word: &str) -> u16 {
        let place = self.all.iter().position(|p| p.role == word).or_else(|| {
            (self.all.len() < ROLES).then(|| {
                self.all.push(ProcessingStage { role: word.to_owned(), ..ProcessingStage::default() });
                self.all.len() - 1
            })
        });
        place.map_or(u16::MAX, |place| place as u16)
    }

    pub(crate) fn mark_receives_observed(&mut self, role: u16) {
        if let Some(processing_stage) = self.all.get_mut(usize::from(role)) {
            processing_stage.shows_receives = true;
        }
    }

    /// Records the send of the chunk with count `count` on the hop of stream `on`. The time since its receive counts for the sending role.
    pub(crate) fn sent_on(
        &mut self,
        request: &mut Request,
        on: usize,
        count: u32,
        at: MonoNs,
        check: &mut LimitCheck<'_>,
    ) {
        let stream = &request.streams[on];
        let (by, first) = (stream.ends.from, stream.chunks == 1 && stream.whole());
        let Some(processing_stage) = self.all.get_mut(usize::from(by)) else {
            return;
        };
        let Some(incoming) = request.streams.iter().find(|s| s.ends.to == by) else {
            return;
        };
        if first && incoming.whole() {
            processing_stage.through(at, at.since(incoming.first_at));
        }
        if processing_stage.shows_receives {
            let received = pair(&mut self.waiting, request, by, (Side::SentOn, count, at), check);
            if let Some(received) = received.filter(|&received| received <= at) {
                processing_stage.inside(at, at.since(received));
                if first {
                    processing_stage.first_inside.record_n(at, at.since(received), 1);
                }
            }
        }
    }

    /// Records the receive of the chunk with count `count` by role `to`, which forwards it. `first`: it is the request's first chunk.
    pub(crate) fn received(
        &mut self,
        request: &mut Request,
        to: u16,
        (count, first): (u32, bool),
        at: MonoNs,
        check: &mut LimitCheck<'_>,
    ) {
        let Some(processing_stage) = self.all.get_mut(usize::from(to)) else {
            return;
        };
        let sent = pair(&mut self.waiting, request, to, (Side::Received, count, at), check);
        if let Some(sent) = sent.filter(|&sent| sent >= at) {
            processing_stage.inside(sent, sent.since(at));
            if first {
                processing_stage.first_inside.record_n(sent, sent.since(at), 1);
            }
        }
    }

    /// Removes a closed request's times from the total.
    pub(crate) fn forget(&mut self, request: &Request) {
        let waiting: usize = request.in_process.iter().map(InProcess::waiting).sum();
        self.waiting = self.waiting.saturating_sub(waiting);
    }
}

/// Limits, and the counters of how often each was reached.
pub(crate) struct LimitCheck<'l> {
    pub(crate) limits: &'l Limits,
    pub(crate) reached: &'l mut ReachedCounts,
}

/// Records the time of one side of a chunk; returns the other if it is known.
fn pair(
    all_waiting: &mut usize,
    request: &mut Request,
    role: u16,
    (side, count, at): (Side, u32, MonoNs),
    check: &mut LimitCheck<'_>,
) -> Option<MonoNs> {
    let place = request.in_process.iter().position(|p| p.role == role).unwrap_or_else(|| {
        request.in_process.push(InProcess::new(role, side));
        request.in_process.len() - 1
    });
    let in_process = &mut request.in_process[place];
    let before = in_process.waiting();
    let other = in_process.pair(side, count, at);
    if in_process.waiting() > check.limits.in_process_per_rid
        || (in_process.waiting() > before && *all_waiting >= check.limits.in_process)
    {
        in_process.forget();
        check.reached.in_process += 1;
    }
    *all_waiting = (*all_waiting + in_process.waiting()).saturating_sub(before);
    other
}

#[cfg(test)]
mod tests {
    use crate::event::{Capabilities, Chunk, Event, Frame, Hop, Received, What};
    use crate::id::{FrameId, HopId};
    use crate::ledger::{Ledger, Limits};
    use crate::{MonoNs, ledger::ProcessingStage};

    /// A router between two hops; receives on the first may be observed.
    struct Path(Ledger);

    impl Path {
        fn new(received: bool) -> Self {
            Self::within(received, Limits::default())
        }

        fn within(received: bool, limits: Limits) -> Self {
            let mut path = Self(Ledger::new(limits));
            let hops = [("scheduler->router", true, received), ("router->worker", false, false)];
            for (id, (name, origin, received)) in hops.into_iter().enumerate() {
                let capabilities = Capabilities { sent: true, received, ..Capabilities::default() };
                let hop = Hop { origin, last: !origin, ..Hop::new(HopId(id as u16), name, capabilities) };
                path.apply(0, What::Hop(hop));
            }
            path
        }

        fn apply(&mut self, at: u64, what: What<'_>) {
            self.0.apply(&Event { at: MonoNs(at), what });
        }

        fn id(hop: u16, seq: u64) -> FrameId {
            FrameId::new(HopId(hop), 0, seq)
        }

        /// Sends token `number` of request `a` on `hop`.
        fn send(&mut self, at: u64, hop: u16, number: u32) {
            let chunk = Chunk::counted("a", 1, number);
            self.apply(at, What::Sent(Frame::token_ids(Self::id(hop, u64::from(number) - 1), 1, &[chunk])));
        }

        fn receive(&mut self, at: u64, number: u32) {
            let received = Received::new(Self::id(0, u64::from(number) - 1));
            self.apply(at, What::Received(received));
        }

        fn router(&self) -> &ProcessingStage {
            self.0.processing_stages().iter().find(|p| p.role == "router").expect("the router")
        }
    }

    #[test]
    fn a_chunk_is_matched_across_the_router_with_others_queued() {
        let mut path = Path::new(true);
        for number in 1..=3 {
            path.send(u64::from(number), 0, number);
        }
        for number in 1..=3 {
            path.receive(100 * u64::from(number), number);
            path.send(100 * u64::from(number) + 7, 1, number);
        }
        assert_eq!(path.router().inside.count(), 3);
        assert_eq!(path.router().inside_sum.whole().ns, 21);
        assert_eq!(path.router().through.count(), 1);
        assert_eq!(path.router().through_sum.whole().ns, 106);
    }

    #[test]
    fn a_late_receive_counts_and_a_missed_one_does_not() {
        let mut path = Path::new(true);
        path.send(1, 0, 1);
        path.send(50, 1, 1);
        path.receive(40, 1);
        assert_eq!(path.router().inside_sum.whole().ns, 10);
        path.send(60, 0, 2);
        path.send(90, 1, 2);
        assert_eq!(path.router().inside.count(), 1);
    }

    #[test]
    fn receives_reported_after_the_sends_all_count() {
        let mut path = Path::new(true);
        for number in 1..=5 {
            path.send(u64::from(number), 0, number);
        }
        for number in 1..=5 {
            path.send(1_000 * u64::from(number), 1, number);
        }
        for number in 1..=5 {
            path.receive(1_000 * u64::from(number) - 3, number);
        }
        assert_eq!(path.router().inside.count(), 5);
        assert_eq!(path.router().inside_sum.whole().ns, 15);
        assert_eq!(path.0.hops.processing_stages.waiting, 0);
    }

    #[test]
    fn receives_reported_before_the_sends_are_kept_up_to_the_limit() {
        let mut path = Path::within(true, Limits { in_process_per_rid: 3, ..Limits::default() });
        for number in 1..=5 {
            path.send(u64::from(number), 0, number);
        }
        for number in 1..=5 {
            path.receive(10 + u64::from(number), number);
        }
        for number in 1..=5 {
            path.send(30 + u64::from(number), 1, number);
        }
        assert_eq!(path.router().inside.count(), 3);
        assert_eq!(path.router().inside_sum.whole().ns, 60);
        let reached = path.0.limits();
        assert!(reached.iter().any(|l| (l.name, l.times) == ("in_process", 2)), "{reached:?}");
    }

    #[test]
    fn without_receives_first_chunks_measure_the_time_through_a_stage() {
        let mut path = Path::new(false);
        path.send(1, 0, 1);
        path.send(2, 0, 2);
        path.send(31, 1, 1);
        path.send(99, 1, 2);
        assert_eq!(path.router().inside.count(), 0);
        assert_eq!(path.router().through_sum.whole().ns, 30);
    }
}
