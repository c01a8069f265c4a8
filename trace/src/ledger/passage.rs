//! What stands between two hops: a router or a detokenizer takes a chunk on one and sends it on by the next.
//!
//! A chunk is known again by its request and its count of tokens so far, which both frames state.

use serde::{Deserialize, Serialize};

use super::request::Request;
use crate::clock::MonoNs;
use crate::id::HopId;
use crate::stats::Distribution;

/// Roles told apart; ends of further ones are nobody's.
const ROLES: usize = 1_024;

/// The roles at a hop's ends, as places in the list of passages.
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

/// One role, and how long its processes keep what they send on.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Passage {
    /// Its word in hop names.
    pub role: String,
    /// Sent on minus taken, of every chunk whose both times were seen.
    pub inside: Distribution,
    /// The sum of these, in nanoseconds.
    pub inside_ns: u128,
    /// Sent on minus sent to it, of each request's first chunk: the wait for it included.
    pub through: Distribution,
    /// The sum of these, in nanoseconds.
    pub through_ns: u128,
}

impl Passage {
    fn inside(&mut self, until: MonoNs, ns: u64) {
        self.inside.record(until, ns);
        self.inside_ns += u128::from(ns);
    }

    fn through(&mut self, until: MonoNs, ns: u64) {
        self.through.record(until, ns);
        self.through_ns += u128::from(ns);
    }
}

/// The place of a role; one that is met for the first time is added.
pub(crate) fn role(passages: &mut Vec<Passage>, word: &str) -> u16 {
    let place = passages.iter().position(|p| p.role == word).or_else(|| {
        (passages.len() < ROLES).then(|| {
            passages.push(Passage {
                role: word.to_owned(),
                ..Passage::default()
            });
            passages.len() - 1
        })
    });
    place.map_or(u16::MAX, |place| place as u16)
}

/// A chunk of `count` tokens so far was sent on the hop of stream `on`: by whom, and how long after it had come there?
pub(crate) fn sent_on(passages: &mut [Passage], request: &mut Request, on: usize, count: u32, at: MonoNs) {
    let (by, first, whole) = {
        let stream = &request.streams[on];
        (stream.ends.from, stream.chunks == 1, stream.whole())
    };
    let Some(passage) = passages.get_mut(usize::from(by)) else {
        return;
    };
    let Some(came) = request.streams.iter_mut().find(|s| s.ends.to == by) else {
        return;
    };
    if first && whole && came.whole() {
        passage.through(at, at.since(came.first_at));
    }
    if let Some((_, taken)) = came.taken.take_if(|(tokens, taken)| *tokens == count && *taken <= at) {
        passage.inside(at, at.since(taken));
    }
}

/// A chunk of `count` tokens so far was taken on `hop`. Where that is told late, it has been sent on already.
pub(crate) fn taken(passages: &mut [Passage], request: &mut Request, hop: HopId, count: u32, at: MonoNs) {
    let Some(to) = request.streams.iter().find(|s| s.hop == hop).map(|s| s.ends.to) else {
        return;
    };
    let sent_on = request.streams.iter().find(|s| {
        let sent = s.ends.from == to && s.last_at >= at;
        sent && s.completion_tokens() == count
    });
    match (sent_on.map(|s| s.last_at), passages.get_mut(usize::from(to))) {
        (Some(sent), Some(passage)) => passage.inside(sent, sent.since(at)),
        _ => {
            if let Some(came) = request.streams.iter_mut().find(|s| s.hop == hop) {
                came.taken = Some((count, at));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::event::{Chunk, Event, Frame, Hop, IdColumn, Kind, Sees, Taken, What};
    use crate::id::{FrameId, HopId};
    use crate::ledger::{Ledger, Limits};
    use crate::{MonoNs, ledger::Passage};

    /// A router between two hops, the first of which may show its takes.
    struct Path(Ledger);

    impl Path {
        fn new(taken: bool) -> Self {
            let mut path = Self(Ledger::new(Limits::default()));
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

        /// The token of that number of request `a` is sent on `hop`.
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
        assert_eq!((path.router().inside.count(), path.router().inside_ns), (3, 21));
        assert_eq!((path.router().through.count(), path.router().through_ns), (1, 106));
    }

    #[test]
    fn a_take_that_is_told_late_counts_and_one_that_was_not_seen_does_not() {
        let mut path = Path::new(true);
        path.send(1, 0, 1);
        path.send(50, 1, 1);
        path.take(40, 1);
        assert_eq!(path.router().inside_ns, 10);
        path.send(60, 0, 2);
        path.send(90, 1, 2);
        assert_eq!(path.router().inside.count(), 1);
    }

    #[test]
    fn without_takes_the_first_chunk_of_each_request_tells() {
        let mut path = Path::new(false);
        path.send(1, 0, 1);
        path.send(2, 0, 2);
        path.send(31, 1, 1);
        path.send(99, 1, 2);
        assert_eq!((path.router().inside.count(), path.router().through_ns), (0, 30));
    }
}
