//! Processing stages between two hops: a router or detokenizer receives a chunk on one hop and forwards it on the next.
//!
//! A chunk is identified by its request and its cumulative token count, which both frames contain. Different threads report receives and
//! sends, so either may come first, and several of one kind may come before any of the other.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::limits::{Limits, ReachedCounts};
use super::request::Request;
use crate::clock::MonoNs;
use crate::stats::{Distribution, WindowedSum};

/// Maximum number of distinct roles; the ends of further ones are left unassigned.
const ROLES: usize = 1_024;

/// Roles at a hop's ends, as indices into the list of passages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ends {
    pub(crate) from: u16,
    pub(crate) to: u16,
}

impl Default for Ends {
    fn default() -> Self {
        Self {
            from: u16::MAX,
            to: u16::MAX,
        }
    }
}

/// Processing stage: one role, with the time that chunks spend inside its processes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Passage {
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
    pub(crate) shows_takes: bool,
}

impl Passage {
    fn inside(&mut self, until: MonoNs, ns: u64) {
        self.inside.record(until, ns);
        self.inside_sum.record_n(until, ns, 1);
    }

    fn through(&mut self, until: MonoNs, ns: u64) {
        self.through.record(until, ns);
        self.through_sum.record_n(until, ns, 1);
    }
}

/// Side of a chunk's passage whose time is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Side {
    Taken,
    SentOn,
}

/// One request at one role: unmatched times of its chunks, all of the same side.
///
/// A request's chunks are received and sent on in order, so an entry older than a matched one will never be matched.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Passing {
    role: u16,
    side: Side,
    /// Cumulative token count and time of each.
    waiting: VecDeque<(u32, MonoNs)>,
}

impl Passing {
    /// When the oldest chunk was received that `role` has not forwarded yet.
    pub(crate) fn since(&self, role: u16) -> Option<MonoNs> {
        let oldest = self
            .waiting
            .front()
            .filter(|_| self.role == role && self.side == Side::Taken)?;
        Some(oldest.1)
    }

    /// Returns the time of the other side for the chunk of `count` tokens, if it is known.
    fn meet(&mut self, side: Side, count: u32, at: MonoNs) -> Option<MonoNs> {
        if self.side != side {
            while self.waiting.front().is_some_and(|&(tokens, _)| tokens < count) {
                self.waiting.pop_front();
            }
            let met = self.waiting.pop_front_if(|&mut (tokens, _)| tokens == count);
            if met.is_some() || !self.waiting.is_empty() {
                // Only later chunks wait, so this one's other time was missed.
                return met.map(|(_, other)| other);
            }
            self.side = side;
        }
        if self.waiting.back().is_some_and(|&(tokens, _)| tokens > count) {
            // The count has restarted.
            self.waiting.clear();
        }
        self.waiting.push_back((count, at));
        None
    }
}

/// All roles in hop names.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Passages {
    pub(crate) all: Vec<Passage>,
    /// Number of times in all requests' [`Passing`].
    waiting: usize,
}

impl Passages {
    /// Index of a role, which is added if unknown.
    pub(crate) fn role(&mut self, word: &str) -> u16 {
        let place = self.all.iter().position(|p| p.role == word).or_else(|| {
            (self.all.len() < ROLES).then(|| {
                self.all.push(Passage {
                    role: word.to_owned(),
                    ..Passage::default()
                });
                self.all.len() - 1
            })
        });
        place.map_or(u16::MAX, |place| place as u16)
    }

    /// Marks the receives of this role as observed.
    pub(crate) fn takes_are_shown(&mut self, role: u16) {
        if let Some(passage) = self.all.get_mut(usize::from(role)) {
            passage.shows_takes = true;
        }
    }

    /// Enters the send of the chunk with count `count` on the hop of stream `on`. The time since its receive counts for the sending role.
    pub(crate) fn sent_on(&mut self, request: &mut Request, on: usize, count: u32, at: MonoNs, room: &mut Room<'_>) {
        let stream = &request.streams[on];
        let (by, first) = (stream.ends.from, stream.chunks == 1 && stream.whole());
        let Some(passage) = self.all.get_mut(usize::from(by)) else {
            return;
        };
        let Some(came) = request.streams.iter().find(|s| s.ends.to == by) else {
            return;
        };
        if first && came.whole() {
            passage.through(at, at.since(came.first_at));
        }
        if passage.shows_takes {
            let taken = meet(&mut self.waiting, request, by, (Side::SentOn, count, at), room);
            if let Some(taken) = taken.filter(|&taken| taken <= at) {
                passage.inside(at, at.since(taken));
                if first {
                    passage.first_inside.record_n(at, at.since(taken), 1);
                }
            }
        }
    }

    /// Enters the receive of the chunk with count `count` by role `to`, which forwards it. `first`: it is the request's first chunk.
    pub(crate) fn taken(
        &mut self,
        request: &mut Request,
        to: u16,
        (count, first): (u32, bool),
        at: MonoNs,
        room: &mut Room<'_>,
    ) {
        let Some(passage) = self.all.get_mut(usize::from(to)) else {
            return;
        };
        let sent = meet(&mut self.waiting, request, to, (Side::Taken, count, at), room);
        if let Some(sent) = sent.filter(|&sent| sent >= at) {
            passage.inside(sent, sent.since(at));
            if first {
                passage.first_inside.record_n(sent, sent.since(at), 1);
            }
        }
    }

    /// Removes a closed request's times from the total.
    pub(crate) fn forget(&mut self, request: &Request) {
        let waiting: usize = request.passing.iter().map(|p| p.waiting.len()).sum();
        self.waiting = self.waiting.saturating_sub(waiting);
    }
}

/// Limits, and the counters of how often each was reached.
pub(crate) struct Room<'l> {
    pub(crate) limits: &'l Limits,
    pub(crate) reached: &'l mut ReachedCounts,
}

/// Enters the time of one side of a chunk; returns the other if it is known.
fn meet(
    all_waiting: &mut usize,
    request: &mut Request,
    role: u16,
    (side, count, at): (Side, u32, MonoNs),
    room: &mut Room<'_>,
) -> Option<MonoNs> {
    let place = request.passing.iter().position(|p| p.role == role).unwrap_or_else(|| {
        request.passing.push(Passing {
            role,
            side,
            waiting: VecDeque::new(),
        });
        request.passing.len() - 1
    });
    let passing = &mut request.passing[place];
    let before = passing.waiting.len();
    let other = passing.meet(side, count, at);
    if passing.waiting.len() > room.limits.passing_per_rid
        || (passing.waiting.len() > before && *all_waiting >= room.limits.passing)
    {
        passing.waiting.pop_front();
        room.reached.passing += 1;
    }
    *all_waiting = (*all_waiting + passing.waiting.len()).saturating_sub(before);
    other
}

#[cfg(test)]
mod tests {
    use crate::event::{Chunk, Event, Frame, Hop, IdColumn, Kind, Sees, Taken, What};
    use crate::id::{FrameId, HopId};
    use crate::ledger::{Ledger, Limits};
    use crate::{MonoNs, ledger::Passage};

    /// A router between two hops; receives on the first may be observed.
    struct Path(Ledger);

    impl Path {
        fn new(taken: bool) -> Self {
            Self::within(taken, Limits::default())
        }

        fn within(taken: bool, limits: Limits) -> Self {
            let mut path = Self(Ledger::new(limits));
            let hops = [("scheduler->router", true, taken), ("router->worker", false, false)];
            for (id, (name, origin, taken)) in hops.into_iter().enumerate() {
                let sees = Sees {
                    sent: true,
                    taken,
                    ..Sees::default()
                };
                let hop = Hop {
                    id: HopId(id as u16),
                    name,
                    endpoint: "",
                    worker: None,
                    origin,
                    last: !origin,
                    sees,
                };
                path.say(0, What::Hop(hop));
            }
            path
        }

        fn say(&mut self, at: u64, what: What<'_>) {
            self.0.apply(&Event { at: MonoNs(at), what });
        }

        fn id(hop: u16, seq: u64) -> FrameId {
            FrameId {
                hop: HopId(hop),
                lane: 0,
                seq,
            }
        }

        /// Sends token `number` of request `a` on `hop`.
        fn send(&mut self, at: u64, hop: u16, number: u32) {
            let chunk = Chunk {
                rid: "a",
                listed: Some(1),
                completion_tokens: Some(number),
                prompt_tokens: None,
                cached_tokens: None,
                finish: None,
                retractions: None,
                worker: None,
                ids: &[],
            };
            let frame = Frame {
                id: Self::id(hop, u64::from(number) - 1),
                bytes: 1,
                kind: Kind::TokenIds,
                ids: IdColumn::Delta,
                chunks: &[chunk],
            };
            self.say(at, What::Sent(frame));
        }

        fn take(&mut self, at: u64, number: u32) {
            let taken = Taken {
                id: Self::id(0, u64::from(number) - 1),
                wakeup: None,
                by: None,
                frame: None,
            };
            self.say(at, What::Taken(taken));
        }

        fn router(&self) -> &Passage {
            self.0
                .passages()
                .iter()
                .find(|p| p.role == "router")
                .expect("the router")
        }
    }

    #[test]
    fn a_chunk_is_known_again_behind_the_router_however_many_wait_before_it() {
        let mut path = Path::new(true);
        for number in 1..=3 {
            path.send(u64::from(number), 0, number);
        }
        for number in 1..=3 {
            path.take(100 * u64::from(number), number);
            path.send(100 * u64::from(number) + 7, 1, number);
        }
        assert_eq!(
            (path.router().inside.count(), path.router().inside_sum.whole().ns),
            (3, 21)
        );
        assert_eq!(
            (path.router().through.count(), path.router().through_sum.whole().ns),
            (1, 106)
        );
    }

    #[test]
    fn a_take_that_is_told_late_counts_and_one_that_was_not_seen_does_not() {
        let mut path = Path::new(true);
        path.send(1, 0, 1);
        path.send(50, 1, 1);
        path.take(40, 1);
        assert_eq!(path.router().inside_sum.whole().ns, 10);
        path.send(60, 0, 2);
        path.send(90, 1, 2);
        assert_eq!(path.router().inside.count(), 1);
    }

    #[test]
    fn every_chunk_counts_when_many_takes_are_told_after_their_sends() {
        let mut path = Path::new(true);
        for number in 1..=5 {
            path.send(u64::from(number), 0, number);
        }
        for number in 1..=5 {
            path.send(1_000 * u64::from(number), 1, number);
        }
        for number in 1..=5 {
            path.take(1_000 * u64::from(number) - 3, number);
        }
        assert_eq!(
            (path.router().inside.count(), path.router().inside_sum.whole().ns),
            (5, 15)
        );
        assert_eq!(path.0.hops.passages.waiting, 0);
    }

    #[test]
    fn many_takes_told_before_their_sends_are_kept_as_far_as_there_is_room() {
        let mut path = Path::within(
            true,
            Limits {
                passing_per_rid: 3,
                ..Limits::default()
            },
        );
        for number in 1..=5 {
            path.send(u64::from(number), 0, number);
        }
        for number in 1..=5 {
            path.take(10 + u64::from(number), number);
        }
        for number in 1..=5 {
            path.send(30 + u64::from(number), 1, number);
        }
        assert_eq!(
            (path.router().inside.count(), path.router().inside_sum.whole().ns),
            (3, 60)
        );
        let reached = path.0.limits();
        assert!(
            reached.iter().any(|l| (l.name, l.times) == ("passing", 2)),
            "{reached:?}"
        );
    }

    #[test]
    fn without_takes_the_first_chunk_of_each_request_tells() {
        let mut path = Path::new(false);
        path.send(1, 0, 1);
        path.send(2, 0, 2);
        path.send(31, 1, 1);
        path.send(99, 1, 2);
        assert_eq!(
            (path.router().inside.count(), path.router().through_sum.whole().ns),
            (0, 30)
        );
    }
}
