//! Requests that lost tokens, with the lost positions. Losses proven by deliveries and losses predicted from receives are separate lists.

use serde::{Deserialize, Serialize};

use trace::MonoNs;
use trace::ledger::{self, Ledger, LostRange, Request};
use trace::words::known_or_dash;

use super::Clock;

/// Maximum number of requests listed, worst first.
const LIMIT: usize = 1_000;

/// Both lists. `null` means not observable with the attached sources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// Proven by deliveries.
    pub confirmed: Option<LossList>,
    /// Predicted from chunks that share a wakeup and the known behaviour of the release; never a proof.
    pub predicted: Option<LossList>,
}

/// Requests that lost tokens, as far as the ledger keeps them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossList {
    /// Number of requests, including those not listed.
    pub requests: u64,
    /// Worst first, at most a thousand.
    pub lines: Vec<LossLine>,
}

/// Losses of one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossLine {
    /// The engine's request id.
    pub rid: String,
    /// Tokens sent by the scheduler.
    pub tokens_sent: u64,
    /// Tokens delivered; `null` if deliveries are not observed.
    pub tokens_delivered: Option<u64>,
    /// Tokens lost.
    pub tokens: u64,
    /// Chunks lost.
    pub chunks: u64,
    /// First loss; `null` if only chunks without tokens are lost.
    #[serde(default)]
    pub at_ns: Option<u64>,
    /// Last loss.
    #[serde(default)]
    pub last_at_ns: Option<u64>,
    /// End of the losses; `null` while the request is unfinished and may lose more.
    #[serde(default)]
    pub ended_at_ns: Option<u64>,
    /// Time from the first loss to the last.
    #[serde(default)]
    pub duration_ns: Option<u64>,
    /// Missing positions in the output.
    pub ranges: Vec<LostRange>,
    /// Part of `tokens` in none of the ranges, because the number of ranges is limited.
    pub tokens_unlisted: u64,
    /// Finish reason; `null` if no frame has one.
    pub finish: Option<String>,
}

/// Converts the losses kept by the ledger.
pub(super) fn losses(ledger: &Ledger, from: MonoNs) -> Losses {
    let totals = ledger.totals();
    let deliveries = ledger.observes_deliveries();
    let predicts = ledger.dropped_predicted().is_some();
    Losses {
        confirmed: deliveries.then(|| LossList {
            requests: totals.drops.rids,
            lines: list(ledger, from, Request::losses, |l| l.confirmed.as_deref()),
        }),
        predicted: predicts.then(|| LossList {
            requests: totals.predicted_drops.rids,
            lines: list(ledger, from, Request::predicted, |l| l.predicted.as_deref()),
        }),
    }
}

fn list(
    ledger: &Ledger,
    from: MonoNs,
    live: fn(&Request) -> Option<&ledger::Losses>,
    over: fn(&ledger::Lossy) -> Option<&ledger::Losses>,
) -> Vec<LossLine> {
    let deliveries = ledger.observes_deliveries();
    let open = ledger.requests().filter_map(|r| {
        let delivered = deliveries.then_some(r.tokens_delivered);
        Some((live(r)?, &r.rid, r.tokens_sent, delivered, r.finish, r.finish.is_some()))
    });
    let closed = ledger
        .lossy_requests()
        .filter_map(|r| Some((over(r)?, &r.rid, r.tokens_sent, r.tokens_delivered, r.finish, true)));
    let mut all: Vec<_> = open.chain(closed).collect();
    all.sort_unstable_by(|a, b| (b.0.tokens, a.1).cmp(&(a.0.tokens, b.1)));
    let worst = all.into_iter().take(LIMIT);
    worst
        .map(|(lost, rid, tokens_sent, tokens_delivered, finish, is_over)| LossLine {
            rid: rid.to_string(),
            tokens_sent: tokens_sent.into(),
            tokens_delivered: tokens_delivered.map(u64::from),
            tokens: lost.tokens,
            chunks: lost.chunks,
            at_ns: lost.since.map(|at| at.since(from)),
            last_at_ns: lost.last_at.map(|at| at.since(from)),
            ended_at_ns: lost.last_at.filter(|_| is_over).map(|at| at.since(from)),
            duration_ns: lost.last_at.zip(lost.since).map(|(last, first)| last.since(first)),
            ranges: lost.ranges.clone(),
            tokens_unlisted: lost.unlisted,
            finish: finish.map(|finish| finish.as_str().to_owned()),
        })
        .collect()
}

impl LossLine {
    /// Times of the first and the last loss: `07:20:03.120 to 07:20:05.320`.
    pub(super) fn span(&self, clock: &Clock) -> String {
        let times = self.at_ns.zip(self.last_at_ns);
        known_or_dash(times, |(first, last)| format!("{} to {}", clock.moment(first), clock.moment(last)))
    }

    /// Formats the positions as `3, 7-9`, with at most `limit` ranges.
    pub fn places(&self, limit: usize) -> String {
        let ranges = self.ranges.iter().map(|range| range.tokens);
        places(ranges, limit, self.tokens_unlisted)
    }

    /// Ids of the first `limit` lost tokens; empty if unknown.
    pub fn ids(&self, limit: usize) -> String {
        ids(self.ranges.iter().flat_map(|range| &range.ids), limit)
    }
}

/// Formats positions: `3, 7-9, ...`.
pub fn places(ranges: impl ExactSizeIterator<Item = [u32; 2]>, limit: usize, unlisted: u64) -> String {
    let more = if ranges.len() > limit || unlisted > 0 { ", ..." } else { "" };
    let shown: Vec<String> = ranges.take(limit).map(range).collect();
    shown.join(", ") + more
}

fn range([first, last]: [u32; 2]) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// Formats ids: `13, 14, ...`.
pub fn ids<'i>(ids: impl Iterator<Item = &'i i64>, limit: usize) -> String {
    let mut ids = ids.peekable();
    let shown: Vec<String> = ids.by_ref().take(limit).map(i64::to_string).collect();
    shown.join(", ") + if ids.peek().is_some() { ", ..." } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_positions_and_ids_end_with_an_ellipsis() {
        let ranges = [[1, 1], [3, 5], [7, 7]];
        assert_eq!(places(ranges.into_iter(), 9, 0), "1, 3-5, 7");
        assert_eq!(places(ranges.into_iter(), 2, 0), "1, 3-5, ...");
        assert_eq!(places(ranges.into_iter(), 9, 4), "1, 3-5, 7, ...");
        assert_eq!((ids([9, 8].iter(), 2), ids([9, 8].iter(), 1)), ("9, 8".into(), "9, ...".into()));
    }
}
