//! Where the time to first token goes, in the report.

use serde::{Deserialize, Serialize};
use trace::engine::Facts;
use trace::ledger::{Ledger, LegLengths, TimedLeg, TtftGroup, TtftMoment};
use trace::stats::{DurationSum, Spread};

use super::bar::{self, Segment};

/// Times to first token of all streamed requests whose dispatch was observed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TtftReport {
    /// Requests with the same observed moments, most requests first.
    pub groups: Vec<TtftGroupLine>,
    /// Requests that are not streamed, in no group.
    pub not_streamed: u64,
    /// Requests beyond the number of groups that are kept.
    pub others: u64,
}

/// Requests of which the same moments were observed. The means of its legs sum to its mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TtftGroupLine {
    /// First observed moment.
    pub from: TtftMoment,
    /// Last observed moment.
    pub to: TtftMoment,
    /// Time between them, over requests.
    pub ns: Spread,
    /// Mean of that time.
    pub mean_ns: u64,
    /// Mean over the last ten seconds of the run; `null` if no first token fell into them.
    pub recent_mean_ns: Option<u64>,
    /// Its parts, in order.
    pub legs: Vec<TtftLegLine>,
}

/// A part of the time to first token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TtftLegLine {
    /// Its name; several joined by `+` if the moments between them were not observed.
    pub name: String,
    /// The same in words.
    pub words: String,
    /// Moment at which it begins.
    pub from: TtftMoment,
    /// Moment at which it ends.
    pub to: TtftMoment,
    /// Its length over requests; quantiles are accurate to 6 %.
    pub ns: Spread,
    /// Mean length.
    pub mean_ns: u64,
    /// Share of the time of all requests of the group, from 0 to 1.
    pub share: f64,
    /// The same over the last ten seconds of the run; `null` if no first token fell into them.
    pub recent_share: Option<f64>,
}

/// A part of one request's time to first token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestLegLine {
    /// Its name, as in [`TtftLegLine`].
    pub name: String,
    /// Its length.
    pub ns: u64,
}

impl RequestLegLine {
    pub(super) fn new(timed: TimedLeg) -> Self {
        Self { name: timed.leg.to_string(), ns: timed.ns }
    }
}

impl TtftReport {
    /// Times so far; `None` if no request's dispatch was observed.
    pub fn new(ledger: &Ledger) -> Option<Self> {
        let ttft = ledger.ttft();
        // The time begins with the message to the scheduler.
        let is_observed = ledger.groups().iter().any(|group| group.carries_requests);
        if !is_observed {
            return None;
        }
        let mut groups: Vec<TtftGroupLine> = ttft.groups().iter().map(|group| group_line(group, ledger)).collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.ns.count));
        Some(Self { groups, not_streamed: ttft.not_streamed, others: ttft.others })
    }

    /// The group with the most requests; `None` without any.
    pub fn into_main_group(self) -> Option<TtftGroupLine> {
        self.groups.into_iter().next()
    }

    /// The group with the most requests; `None` without any.
    pub fn main_group(&self) -> Option<&TtftGroupLine> {
        self.groups.first()
    }
}

impl TtftGroupLine {
    /// Shares of its legs that are large enough for a segment of a bar.
    pub fn segments(&self) -> Vec<Segment> {
        bar::merge_small_segments(self.legs.iter().map(|leg| Segment { name: leg.words.clone(), share: leg.share }))
    }
}

/// Times of a group of requests, over the run and over the last ten seconds.
fn group_line(group: &TtftGroup, ledger: &Ledger) -> TtftGroupLine {
    let now = ledger.now();
    let recent = group.recent_sum(now);
    let legs = group.legs().iter().map(|lengths| leg_line(lengths, ledger.engine().facts(), group.sum(), recent, now));
    TtftGroupLine {
        from: group.whole().from,
        to: group.whole().to,
        ns: Spread::of_distribution(group.times()).unwrap_or_default(),
        mean_ns: group.sum().mean().unwrap_or(0),
        recent_mean_ns: recent.mean(),
        legs: legs.collect(),
    }
}

/// Length of a leg, and its share of the whole time, over the run and over the last ten seconds.
fn leg_line(
    lengths: &LegLengths,
    engine: &dyn Facts,
    whole: DurationSum,
    recent_whole: DurationSum,
    now: trace::clock::MonoNs,
) -> TtftLegLine {
    let leg = lengths.leg;
    TtftLegLine {
        name: leg.to_string(),
        words: leg.describe(engine),
        from: leg.from,
        to: leg.to,
        ns: lengths.spread(),
        mean_ns: lengths.sum().mean().unwrap_or(0),
        share: share(lengths.sum(), whole).unwrap_or(0.0),
        recent_share: share(lengths.recent_sum(now), recent_whole),
    }
}

/// Share of `whole`; `None` if that is nothing.
fn share(part: DurationSum, whole: DurationSum) -> Option<f64> {
    if whole.ns == 0 { None } else { Some(part.ns as f64 / whole.ns as f64) }
}
