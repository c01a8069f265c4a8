//! Expected values of each request from the engine's timestamps.

use std::collections::{BTreeMap, HashMap};

use super::super::session::Outcome;
use super::super::truth::Sent;

/// Time range of an event: not before the first timestamp, not after the second (`CLOCK_MONOTONIC`, ns).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Between(pub(super) u64, pub(super) u64);

impl Between {
    pub(super) fn contains(self, at_ns: u64) -> bool {
        (self.0..=self.1).contains(&at_ns)
    }

    pub(super) fn width(self) -> u64 {
        self.1 - self.0
    }
}

/// Expected values of one request.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    /// Time range of the scheduler's send of the first chunk.
    pub(super) first_sent: Between,
    /// Time range of the tokenizer's receive of the first chunk.
    pub(super) first_taken: Option<Between>,
    pub(super) chunks: u64,
    pub(super) tokens: u64,
    pub(super) finish: Option<String>,
}

impl Expected {
    /// The gap from the timestamp before the send call to the one after the receive call.
    pub(super) fn gap_ns(&self) -> Option<u64> {
        Some(self.first_taken?.1 - self.first_sent.0)
    }
}

/// All requests that had a chunk, by request id.
pub(super) fn expected(outcome: &Outcome) -> BTreeMap<&str, Expected> {
    let mut requests: BTreeMap<&str, Expected> = BTreeMap::new();
    let output = outcome
        .senders
        .iter()
        .flat_map(|sender| &sender.sent)
        .filter(|sent| sent.on == "output");
    for sent in output.clone() {
        for (rid, _, completion, finish) in &sent.chunks {
            let request = requests.entry(rid).or_insert_with(|| Expected {
                first_sent: Between(sent.at_ns, sent.accepted_ns),
                first_taken: None,
                chunks: 0,
                tokens: 0,
                finish: None,
            });
            request.chunks += 1;
            request.tokens = completion.unwrap_or(request.tokens);
            request.finish = finish.clone().or(request.finish.take());
        }
    }
    let to_tokenizer: HashMap<&str, &Sent> = match &outcome.detokenizer {
        Some(detokenizer) => detokenizer.sent.iter().map(|sent| (sent.hash.as_str(), sent)).collect(),
        None => output.map(|sent| (sent.hash.as_str(), sent)).collect(),
    };
    for taken in &outcome.receiver.taken {
        let said = to_tokenizer.get(taken.hash.as_str());
        for (rid, ..) in said.into_iter().flat_map(|sent| &sent.chunks) {
            if let Some(request) = requests.get_mut(rid.as_str()) {
                request.first_taken.get_or_insert(Between(taken.called_ns, taken.at_ns));
            }
        }
    }
    requests
}
