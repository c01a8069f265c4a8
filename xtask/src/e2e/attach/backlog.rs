//! Bounds of each hop's backlog from the engine's timestamps.
//!
//! Each send and each receive happens between two timestamps. The maximum backlog assumes the earliest sends and the latest receives; the
//! minimum assumes the reverse. The two are equal unless a send and a receive overlap while the backlog peaks.

use std::collections::{BTreeMap, HashSet};

use super::super::session::Outcome;
use super::super::truth::{Sent, Taken};
use super::expected::Between;

/// Sends and receives of frames on one hop.
#[derive(Debug, Default)]
pub(super) struct Crossing {
    sends: Vec<Between>,
    takes: Vec<Between>,
}

impl Crossing {
    fn new<'t>(sent: impl Iterator<Item = &'t Sent>, taken: &[Taken]) -> Self {
        let mut crossing = Self::default();
        let mut hashes = HashSet::new();
        for sent in sent {
            hashes.insert(sent.hash.as_str());
            crossing.sends.push(Between(sent.at_ns, sent.accepted_ns));
        }
        let taken = taken.iter().filter(|taken| hashes.contains(taken.hash.as_str()));
        crossing.takes = taken.map(|taken| Between(taken.called_ns, taken.at_ns)).collect();
        crossing
    }

    /// Number of frames sent and received.
    pub(super) fn frames(&self) -> (u64, u64) {
        (self.sends.len() as u64, self.takes.len() as u64)
    }

    /// Lower and upper bound of the peak backlog.
    pub(super) fn highest(&self) -> Between {
        let least = highest(&self.sends, |send| send.1, &self.takes, |take| take.0);
        let most = highest(&self.sends, |send| send.0, &self.takes, |take| take.1);
        // A sent frame waits for at least a moment, so the peak is at least 1.
        Between(least.max(u64::from(!self.sends.is_empty())), most)
    }
}

fn highest(sends: &[Between], sent: fn(&Between) -> u64, takes: &[Between], taken: fn(&Between) -> u64) -> u64 {
    // At equal times sends sort first: a send sorts as 0, a receive as 1.
    let mut steps: Vec<(u64, u8)> = sends.iter().map(|send| (sent(send), 0)).collect();
    steps.extend(takes.iter().map(|take| (taken(take), 1)));
    steps.sort_unstable();
    let (mut now, mut highest) = (0_i64, 0_i64);
    for (_, step) in steps {
        now += if step == 0 { 1 } else { -1 };
        highest = highest.max(now);
    }
    highest as u64
}

/// All hops that frames crossed, by their names in the report.
pub(super) fn crossings(outcome: &Outcome) -> BTreeMap<&'static str, Crossing> {
    let on = |socket: &'static str| {
        let sent = outcome.senders.iter().flat_map(|sender| &sender.sent);
        sent.filter(move |sent| sent.on == socket)
    };
    let at_tokenizer = &outcome.receiver.taken;
    let mut hops = match &outcome.detokenizer {
        None => BTreeMap::from([(
            "scheduler->tokenizer",
            Crossing::new(on("output").chain(on("control")), at_tokenizer),
        )]),
        Some(detokenizer) => BTreeMap::from([
            (
                "scheduler->detokenizer",
                Crossing::new(on("output"), &detokenizer.taken),
            ),
            (
                "detokenizer->tokenizer",
                Crossing::new(detokenizer.sent.iter(), at_tokenizer),
            ),
            ("scheduler->tokenizer", Crossing::new(on("control"), at_tokenizer)),
        ]),
    };
    hops.retain(|_, crossing| !crossing.sends.is_empty());
    hops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_that_overlap_at_the_peak_leave_one_frame_open() {
        let crossing = Crossing {
            sends: vec![Between(10, 12), Between(20, 24)],
            takes: vec![Between(21, 23), Between(40, 41)],
        };
        assert_eq!(crossing.highest(), Between(1, 2));
        let apart = Crossing {
            takes: vec![Between(30, 31), Between(40, 41)],
            ..crossing
        };
        assert_eq!(apart.highest(), Between(2, 2));
    }
}
