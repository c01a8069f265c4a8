//! Ground truth recorded by the harness: the JSON lines of `engine/truth.py`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A message that a process sent.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Sent {
    /// Socket of the process: `output` or `control`.
    pub(crate) on: String,
    /// Hash of its bytes.
    pub(crate) hash: String,
    /// `CLOCK_MONOTONIC` just before the send call, ns.
    #[serde(rename = "sent_ns")]
    pub(crate) at_ns: u64,
    /// `CLOCK_MONOTONIC` just after the send call, ns.
    pub(crate) accepted_ns: u64,
    /// Its content for each request.
    pub(crate) chunks: Vec<ChunkSaid>,
}

/// Request id, number of listed token ids, completion tokens so far, and kind of finish.
type ChunkSaid = (String, Option<u64>, Option<u64>, Option<String>);

/// A message that a process received.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Taken {
    /// Hash of its bytes.
    pub(crate) hash: String,
    /// `CLOCK_MONOTONIC` when the receive call returned, ns.
    #[serde(rename = "taken_ns")]
    pub(crate) at_ns: u64,
    /// `CLOCK_MONOTONIC` just before that receive call, ns.
    pub(crate) called_ns: u64,
}

/// Outputs received by one client.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) struct Client {
    pub(crate) rid: String,
    /// Number of outputs, and of token ids in them.
    pub(crate) outputs: u64,
    pub(crate) ids: u64,
    /// Number of distinct token positions received.
    #[serde(rename = "distinct_ids")]
    pub(crate) tokens: u64,
    /// Tokens counted by its finish that never arrived; `None` where the release gives it no ids.
    pub(crate) lost: Option<u64>,
    /// Their positions, 0-based, as half-open ranges.
    pub(crate) missing: Option<Vec<[u64; 2]>>,
    /// Completion tokens of its last output, and its finish reason.
    pub(crate) completion_tokens: Option<u64>,
    pub(crate) finish: Option<String>,
    /// How it left before the end; `None` if it stayed.
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
    /// Requests that ended with a finish in a frame, including aborts.
    pub(crate) finishes: u64,
    /// Finishes that are aborts.
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
    /// The running release.
    pub(crate) release: String,
    /// To the tokenizer or detokenizer.
    pub(crate) output: Counts,
    /// To the tokenizer, on a separate connection.
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
    /// Outputs that the tokenizer gave to its clients.
    #[serde(flatten)]
    pub(crate) given: ClientTotals,
}

/// Sums over clients: those inside `receive`, or the HTTP clients of `client`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct ClientTotals {
    /// Clients that received a finish.
    pub(crate) finished: u64,
    /// Outputs and token ids received by all clients.
    pub(crate) outputs: u64,
    pub(crate) ids: u64,
    /// Tokens counted by the finishes, and how many of them never arrived, for clients that receive ids.
    pub(crate) completion_tokens: u64,
    pub(crate) lost: u64,
    pub(crate) clients_without_ids: u64,
    /// Clients with lost tokens.
    pub(crate) clients_with_loss: u64,
}

/// Truth of one process: sent and received messages, and totals.
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
    /// Reads a truth file. Missing totals are an error, because the process did not exit properly.
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
