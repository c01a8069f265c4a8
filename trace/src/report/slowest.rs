//! The requests that waited longest, by rid, so that the worst can be looked up in the engine's own logs.

use serde::{Deserialize, Serialize};

use super::Spread;
use crate::clock::MonoNs;
use crate::event::Finish;
use crate::ledger::{Ledger, Paces, Request, Summary, TokenPace};

/// One request of those listed. Times count from the start of the capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowLine {
    /// SGLang's request id.
    pub rid: String,
    /// First take at the tokenizer minus first send by the scheduler; `null` while either is unseen.
    pub gap_ns: Option<u64>,
    /// When the scheduler sent its first chunk.
    pub first_sent_ns: Option<u64>,
    /// When the tokenizer took its first chunk.
    pub first_taken_ns: Option<u64>,
    /// Tokens sent by the scheduler.
    pub tokens_sent: u64,
    /// Tokens taken by the tokenizer.
    pub tokens_taken: Option<u64>,
    /// Chunks sent by the scheduler.
    pub chunks_sent: u64,
    /// When its first tokens were accepted for its client.
    #[serde(default)]
    pub first_delivered_ns: Option<u64>,
    /// Tokens delivered; `null` where deliveries are not seen.
    #[serde(default)]
    pub tokens_delivered: Option<u64>,
    /// Its inter-token latency at both ends, by token; the quantiles are right to 6 %.
    #[serde(default)]
    pub itl_ns: TokenItl,
    /// Chunks proven lost between the tokenizer and its client.
    pub dropped: Option<u64>,
    /// Tokens in those.
    pub tokens_lost: Option<u64>,
    /// Why it ended: `length`, `stop`, `abort` or `other`; `null` when it did not, as far as frames say.
    pub finish: Option<String>,
}

/// Inter-token latency: time between chunks that carry tokens, divided by the tokens of the later one, once for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenItl {
    /// As the scheduler sent.
    pub sent: Option<Spread>,
    /// As the client was given.
    pub delivered: Option<Spread>,
}

impl TokenItl {
    fn of(paces: Paces) -> Self {
        let spread = |pace: TokenPace| Spread {
            count: pace.count,
            p50: pace.p50,
            p90: pace.p90,
            p99: pace.p99,
            max: pace.max,
        };
        Self {
            sent: paces.sent.map(spread),
            delivered: paces.delivered.map(spread),
        }
    }
}

/// The `most` slowest of the requests that the ledger remembers, the worst gap first. One whose first token still waits
/// ranks by its wait until `to`, those of unknown gap come last.
pub(super) fn slowest(ledger: &Ledger, most: usize, (from, to): (MonoNs, MonoNs)) -> Vec<SlowLine> {
    if most == 0 {
        return Vec::new();
    }
    let live = ledger.requests().map(Record::Live);
    let over = ledger.finished().map(Record::Over);
    let mut ranked: Vec<(Option<u64>, Record<'_>)> = live.chain(over).map(|r| (r.wait(to), r)).collect();
    let worst_first = |a: &(Option<u64>, Record<'_>), b: &(Option<u64>, Record<'_>)| {
        b.0.cmp(&a.0).then_with(|| a.1.rid().cmp(b.1.rid()))
    };
    if most < ranked.len() {
        ranked.select_nth_unstable_by(most, worst_first);
        ranked.truncate(most);
    }
    ranked.sort_unstable_by(worst_first);
    let takes = ledger.sees_takes();
    ranked.iter().map(|(_, record)| record.line(from, takes)).collect()
}

/// A request, remembered whole or in summary.
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

    fn line(&self, from: MonoNs, takes: bool) -> SlowLine {
        let after = |at: Option<MonoNs>| at.map(|at| at.since(from));
        match *self {
            Self::Live(request) => {
                let fates = request.fates();
                SlowLine {
                    rid: request.rid().to_owned(),
                    gap_ns: request.gap_ns(),
                    first_sent_ns: after(request.sent_first()),
                    first_taken_ns: after(request.taken_first()),
                    tokens_sent: request.tokens_sent().into(),
                    tokens_taken: takes.then(|| request.tokens_taken().into()),
                    chunks_sent: request.chunks_sent().into(),
                    first_delivered_ns: after(request.delivered_first()),
                    tokens_delivered: fates.map(|_| request.tokens_delivered().into()),
                    itl_ns: TokenItl::of(request.paces()),
                    dropped: fates.map(|f| f.dropped),
                    tokens_lost: fates.map(|f| f.tokens_lost),
                    finish: request.finish().map(word),
                }
            }
            Self::Over(summary) => SlowLine {
                rid: summary.rid.to_string(),
                gap_ns: summary.gap_ns,
                first_sent_ns: after(summary.sent_first),
                first_taken_ns: after(summary.taken_first),
                tokens_sent: summary.tokens_sent.into(),
                tokens_taken: takes.then(|| summary.tokens_taken.into()),
                chunks_sent: summary.chunks_sent.into(),
                first_delivered_ns: after(summary.delivered_first),
                tokens_delivered: summary.tokens_delivered.map(u64::from),
                itl_ns: TokenItl::of(summary.paces),
                dropped: summary.dropped.map(u64::from),
                tokens_lost: summary.tokens_lost.map(u64::from),
                finish: summary.finish.map(word),
            },
        }
    }
}

pub(super) fn word(finish: Finish) -> String {
    let word = match finish {
        Finish::Length => "length",
        Finish::Stop => "stop",
        Finish::Abort => "abort",
        Finish::Other => "other",
    };
    word.to_owned()
}
