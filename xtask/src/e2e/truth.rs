//! What the harness says really happened: the JSON lines of `engine/truth.py`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A message that a process gave to its socket.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Sent {
    /// Which of the process's sockets: `output` or `control`.
    pub(crate) on: String,
    /// Fingerprint of its bytes.
    pub(crate) hash: String,
    /// `CLOCK_MONOTONIC` just before the send call, ns.
    #[serde(rename = "sent_ns")]
    pub(crate) at_ns: u64,
    /// The same just after it.
    pub(crate) accepted_ns: u64,
    /// What it says of each request.
    pub(crate) chunks: Vec<ChunkSaid>,
}

/// Of one request: rid, ids listed, completion tokens so far and the kind of finish.
type ChunkSaid = (String, Option<u64>, Option<u64>, Option<String>);

/// A message that a process took from its socket.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Taken {
    /// Fingerprint of its bytes.
    pub(crate) hash: String,
    /// `CLOCK_MONOTONIC` when libzmq handed it over, ns.
    #[serde(rename = "taken_ns")]
    pub(crate) at_ns: u64,
    /// The same just before the receive call that got it.
    pub(crate) called_ns: u64,
}

/// What one client was given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) struct Client {
    pub(crate) rid: String,
    /// How many outputs, and how many token ids in them.
    pub(crate) outputs: u64,
    pub(crate) ids: u64,
    /// Places in the output that it has tokens for.
    #[serde(rename = "distinct_ids")]
    pub(crate) tokens: u64,
    /// Tokens that its finish claims and that never came; `None` where the release gives it no ids.
    pub(crate) lost: Option<u64>,
    /// Their places from 0, each range up to but not including its second number.
    pub(crate) missing: Option<Vec<[u64; 2]>>,
    /// Tokens that its last output claims, and why it ended.
    pub(crate) completion_tokens: Option<u64>,
    pub(crate) finish: Option<String>,
    /// How it went away before its end; `None` where it stayed.
    #[serde(default)]
    pub(crate) left: Option<String>,
}

/// Counts of one directed connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Counts {
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
    pub(crate) requests: u64,
    pub(crate) chunks: u64,
    pub(crate) tokens: u64,
    /// Requests that ended by a frame that says so, aborts included.
    pub(crate) finishes: u64,
    /// Those of them that say abort.
    pub(crate) aborts: u64,
    /// `AbortReq` messages: requests that ended without a frame of their own.
    pub(crate) abort_messages: u64,
}

impl std::ops::Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            frames: self.frames + other.frames,
            bytes: self.bytes + other.bytes,
            requests: self.requests + other.requests,
            chunks: self.chunks + other.chunks,
            tokens: self.tokens + other.tokens,
            finishes: self.finishes + other.finishes,
            aborts: self.aborts + other.aborts,
            abort_messages: self.abort_messages + other.abort_messages,
        }
    }
}

impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), std::ops::Add::add)
    }
}

/// Totals of `send`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SenderTotals {
    /// The release that ran.
    pub(crate) release: String,
    /// To the tokenizer or detokenizer.
    pub(crate) output: Counts,
    /// To the tokenizer, on a connection of its own.
    pub(crate) control: Counts,
}

/// Totals of `detokenize`.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct DetokenizerTotals {
    pub(crate) output: Counts,
}

/// Totals of `route`, and of `detokenize` with several workers behind it.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct RelayTotals {}

/// Totals of `receive`.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct ReceiverTotals {
    pub(crate) frames: u64,
    /// What the tokenizer gave to its clients.
    #[serde(flatten)]
    pub(crate) given: ClientTotals,
}

/// Sums over clients: those inside `receive`, or those of `client` at the other end of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct ClientTotals {
    /// Clients that were given a finish.
    pub(crate) finished: u64,
    /// How many outputs all clients were given, and how many token ids.
    pub(crate) outputs: u64,
    pub(crate) ids: u64,
    /// Tokens that the finishes claim, and how many of them never came, as far as clients are given ids to tell.
    pub(crate) completion_tokens: u64,
    pub(crate) lost: u64,
    pub(crate) clients_without_ids: u64,
    /// Clients that did not get all.
    pub(crate) clients_with_loss: u64,
}

/// One process's truth: what it sent, what it took, and its totals.
#[derive(Debug)]
pub(crate) struct Truth<T> {
    pub(crate) sent: Vec<Sent>,
    pub(crate) taken: Vec<Taken>,
    pub(crate) clients: Vec<Client>,
    pub(crate) totals: T,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line {
    Sent(Sent),
    Taken(Taken),
    Client(Client),
    Totals(serde_json::Value),
}

impl<T: DeserializeOwned> Truth<T> {
    /// Reads a truth file; one without totals is an error, its process did not end properly.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("reading the truth at {}", path.display()))?;
        let (mut sent, mut taken, mut clients, mut totals) = (Vec::new(), Vec::new(), Vec::new(), None);
        for (number, line) in BufReader::new(file).lines().enumerate() {
            let at = || format!("{} line {}", path.display(), number + 1);
            match serde_json::from_str(&line?).with_context(at)? {
                Line::Sent(one) => sent.push(one),
                Line::Taken(one) => taken.push(one),
                Line::Client(one) => clients.push(one),
                Line::Totals(value) => totals = Some(serde_json::from_value(value).with_context(at)?),
            }
        }
        let totals = totals.with_context(|| format!("{} has no totals", path.display()))?;
        Ok(Self {
            sent,
            taken,
            clients,
            totals,
        })
    }
}
