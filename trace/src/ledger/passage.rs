//! What stands between two hops: a router or a detokenizer takes a chunk on one and sends it on by the next.
//!
//! A chunk is known again by its request and its count of tokens so far, which both frames state.

use super::request::Request;
use crate::clock::MonoNs;
use crate::id::HopId;
use crate::stats::Distribution;

/// Roles told apart; ends of further ones are nobody's.
const ROLES: usize = 1_024;

/// The roles at a hop's ends, as places in the list of passages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Debug, Default)]
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
