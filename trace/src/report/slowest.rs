//! Requests with the longest waits, by rid, to look them up in the engine's own logs.

use serde::{Deserialize, Serialize};

use super::Spread;
use crate::clock::MonoNs;
use crate::ledger::{ItlEnds, ItlSummary, Ledger, Request, Summary};

/// One listed request. Times are relative to the start of the capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowLine {
    /// The engine's request id.
    pub rid: String,
    /// First receive at the tokenizer minus first send by the scheduler; `null` until both are observed.
    pub gap_ns: Option<u64>,
    /// Time when the scheduler sent its first chunk.
    pub first_sent_ns: Option<u64>,
    /// Time when the tokenizer received its first chunk.
    pub first_received_ns: Option<u64>,
    /// Tokens sent by the scheduler.
    pub tokens_sent: u64,
    /// Tokens received by the tokenizer.
    pub tokens_received: Option<u64>,
    /// Chunks sent by the scheduler.
    pub chunks_sent: u64,
    /// Time when its first tokens were accepted for its client.
    #[serde(default)]
    pub first_delivered_ns: Option<u64>,
    /// Tokens delivered; `null` if deliveries are not observed.
    #[serde(default)]
    pub tokens_delivered: Option<u64>,
    /// Its inter-token latency at both ends, by token; quantiles are accurate to 6 %.
    #[serde(default)]
    pub itl_ns: TokenItl,
    /// Chunks proven dropped between the tokenizer and its client.
    pub dropped: Option<u64>,
    /// Tokens in the dropped chunks.
    pub tokens_lost: Option<u64>,
    /// Finish reason: `length`, `stop`, `abort` or `other`; `null` if no frame has one.
    pub finish: Option<String>,
}

/// Inter-token latency: time between chunks with tokens, divided by the tokens of the later one and counted once for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenItl {
    /// Between the scheduler's sends.
    pub sent: Option<Spread>,
    /// Between deliveries to the client.
    pub delivered: Option<Spread>,
}

impl TokenItl {
    fn of(itl: ItlEnds) -> Self {
        let spread = |itl: ItlSummary| Spread {
            count: itl.count,
            p50: itl.p50,
            p90: itl.p90,
            p99: itl.p99,
            max: itl.max,
        };
        Self {
            sent: itl.sent.map(spread),
            delivered: itl.delivered.map(spread),
        }
    }
}

/// The `limit` slowest requests kept by the ledger, worst gap first. A request whose first token still waits ranks by its wait until `to`.
/// Requests of unknown gap come last.
pub(super) fn slowest(ledger: &Ledger, limit: usize, (from, to): (MonoNs, MonoNs)) -> Vec<SlowLine> {
    if limit == 0 {
        return Vec::new();
    }
    let live = ledger.requests().map(Record::Live);
    let over = ledger.finished().map(Record::Over);
    let mut ranked: Vec<(Option<u64>, Record<'_>)> = live.chain(over).map(|r| (r.wait(to), r)).collect();
    let worst_first = |a: &(Option<u64>, Record<'_>), b: &(Option<u64>, Record<'_>)| {
        b.0.cmp(&a.0).then_with(|| a.1.rid().cmp(b.1.rid()))
    };
    if limit < ranked.len() {
        ranked.select_nth_unstable_by(limit, worst_first);
        ranked.truncate(limit);
    }
    ranked.sort_unstable_by(worst_first);
    let receives = ledger.observes_receives();
    ranked.iter().map(|(_, record)| record.line(from, receives)).collect()
}

/// A request, kept in full or as a summary.
enum Record<'l> {
    Live(&'l Request),
    Over(&'l Summary),
}

impl Record<'_> {
    fn rid(&self) -> &str {
        match self {
            Self::Live(request) => request.rid(),
            Self::Over(summary) => &summary.rid,
        }
    }

    fn wait(&self, to: MonoNs) -> Option<u64> {
        match self {
            Self::Live(request) => request.gap_ns().or_else(|| Some(to.since(request.waiting_since()?))),
            Self::Over(summary) => summary.gap_ns,
        }
    }

    fn line(&self, from: MonoNs, receives: bool) -> SlowLine {
        let after = |at: Option<MonoNs>| at.map(|at| at.since(from));
        match *self {
            Self::Live(request) => {
                let fates = request.fates();
                SlowLine {
                    rid: request.rid().to_owned(),
                    gap_ns: request.gap_ns(),
                    first_sent_ns: after(request.sent_first()),
                    first_received_ns: after(request.received_first()),
                    tokens_sent: request.tokens_sent().into(),
                    tokens_received: receives.then(|| request.tokens_received().into()),
                    chunks_sent: request.chunks_sent().into(),
                    first_delivered_ns: after(request.delivered_first()),
                    tokens_delivered: fates.map(|_| request.tokens_delivered().into()),
                    itl_ns: TokenItl::of(request.itl()),
                    dropped: fates.map(|f| f.dropped),
                    tokens_lost: fates.map(|f| f.tokens_lost),
                    finish: request.finish().map(|finish| finish.as_str().to_owned()),
                }
            }
            Self::Over(summary) => SlowLine {
                rid: summary.rid.to_string(),
                gap_ns: summary.gap_ns,
                first_sent_ns: after(summary.sent_first),
                first_received_ns: after(summary.received_first),
                tokens_sent: summary.tokens_sent.into(),
                tokens_received: receives.then(|| summary.tokens_received.into()),
                chunks_sent: summary.chunks_sent.into(),
                first_delivered_ns: after(summary.delivered_first),
                tokens_delivered: summary.tokens_delivered.map(u64::from),
                itl_ns: TokenItl::of(summary.itl),
                dropped: summary.dropped.map(u64::from),
                tokens_lost: summary.tokens_lost.map(u64::from),
                finish: summary.finish.map(|finish| finish.as_str().to_owned()),
            },
        }
    }
}
