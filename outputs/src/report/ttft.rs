//! Where the time to first token goes, in the report.

use serde::{Deserialize, Serialize};
use trace::engine::Facts;
use trace::event::UnknownArrival;
use trace::ledger::{Ledger, LegLengths, TimedLeg, TtftGroup, TtftMoment};
use trace::stats::{DurationSum, Spread};
use trace::words::{percent, plural};

use super::bar::{self, Segment};

/// Times to first token of all streamed requests whose dispatch was observed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TtftReport {
    /// Requests with the same observed moments, most requests first.
    pub groups: Vec<TtftGroupLine>,
    /// Moments that requests of these groups lack, in order.
    #[serde(default)]
    pub absent: Vec<UnobservedMomentLine>,
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

/// A moment that was not observed of some requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnobservedMomentLine {
    /// The moment. Without the arrival, the read is unknown, too.
    pub moment: TtftMoment,
    /// Name of the moment in sentences: `the entry to the queue`.
    pub words: String,
    /// Number of requests.
    pub requests: u64,
    /// Why it is not known.
    pub reason: String,
}

impl UnobservedMomentLine {
    /// Whether the next moment is listed with this one: both are unknown of the same number of requests, for the same reason. Arrivals that
    /// are unknown for several reasons are listed one by one.
    fn is_listed_with(&self, next: &Self) -> bool {
        self.moment != TtftMoment::Arrived && self.requests == next.requests && self.reason == next.reason
    }

    /// A moment that is unknown of so many requests.
    fn new(moment: TtftMoment, requests: u64, reason: &str) -> Self {
        Self { moment, words: moment.describe_absence().to_owned(), requests, reason: reason.to_owned() }
    }
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
    /// A leg of a request with its length.
    pub(super) fn new(timed: TimedLeg) -> Self {
        Self { name: timed.leg.to_string(), ns: timed.ns }
    }
}

impl TtftReport {
    /// Times to first token so far; `None` if no message to the scheduler was observed.
    pub fn new(ledger: &Ledger) -> Option<Self> {
        let ttft = ledger.ttft();
        // The time begins with the message to the scheduler.
        let is_observed = ledger.groups().iter().any(|group| group.carries_requests);
        if !is_observed {
            return None;
        }
        let mut groups: Vec<TtftGroupLine> = ttft.groups().iter().map(|group| group_line(group, ledger)).collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.ns.count));
        Some(Self {
            groups,
            absent: list_unobserved_moments(ledger),
            not_streamed: ttft.not_streamed,
            others: ttft.others,
        })
    }

    /// The moments that were not observed, one text for each reason: `the entry to the queue, the entry to a batch of 3 requests: ..`.
    pub fn describe_absent_moments(&self) -> Vec<String> {
        let all_requests: u64 = self.groups.iter().map(|group| group.ns.count).sum();
        let mut lines = Vec::new();
        for group in self.absent.chunk_by(UnobservedMomentLine::is_listed_with) {
            let Some(first) = group.first() else { continue };
            let words: Vec<&str> = group.iter().map(|line| line.words.as_str()).collect();
            let concerns_all = first.requests == all_requests;
            // Their number is only of interest if others observed the moment.
            let of_requests =
                if concerns_all { String::new() } else { format!(" of {}", plural(first.requests, "request")) };
            lines.push(format!("{}{of_requests}: {}", words.join(", "), first.reason));
        }
        lines
    }

    /// The group with the most requests; `None` without any.
    pub fn into_main_group(self) -> Option<TtftGroupLine> {
        self.groups.into_iter().next()
    }

    /// The group with the most requests; `None` without any.
    pub fn main_group(&self) -> Option<&TtftGroupLine> {
        self.groups.first()
    }

    /// Why there is no group of requests.
    fn why_no_group(&self) -> &'static str {
        let has_unstreamed = self.not_streamed > 0;
        if has_unstreamed { "responses are not streamed" } else { "no time to first token was observed" }
    }

    /// The group of requests, all with the same observed moments, that has most of the streamed requests. `Err` says why no group has.
    pub(crate) fn group_of_most_requests(&self) -> Result<&TtftGroupLine, &'static str> {
        let Some(main) = self.main_group() else { return Err(self.why_no_group()) };
        // At least half of the streamed requests must be in the main group. `others` are requests of groups that are not kept.
        let streamed = self.groups.iter().map(|group| group.ns.count).sum::<u64>() + self.others;
        if self.not_streamed > streamed {
            Err("most responses are not streamed")
        } else if 2 * main.ns.count < streamed {
            Err("no group of requests with the same observed moments has most of them")
        } else {
            Ok(main)
        }
    }
}

/// How the text on a bottleneck begins that cannot be named.
pub(super) const UNKNOWN_BOTTLENECK: &str = "bottleneck unknown";

/// Names the leg that takes most of the time to first token, and shares of that time: `bottleneck: prefill (62 % of TTFT, 70 % in the last
/// 10 s)`. If the time was not observed (`None`), the bottleneck is unknown. The text then gives no reason, because the list of faults that
/// were not judged has it.
pub fn describe_bottleneck(ttft: Option<&TtftReport>) -> String {
    let Some(ttft) = ttft else { return String::from(UNKNOWN_BOTTLENECK) };
    let main_group = match ttft.group_of_most_requests() {
        Ok(main_group) => main_group,
        Err(reason) => return format!("{UNKNOWN_BOTTLENECK} ({reason})"),
    };
    let Some(leg) = main_group.longest_leg() else {
        return format!("{UNKNOWN_BOTTLENECK} (first tokens took no time)");
    };
    format!("bottleneck: {} ({})", leg.words, main_group.describe_shares_of_longest_leg(leg))
}

impl TtftGroupLine {
    /// The leg with the largest share over the run; `None` if the requests took no time.
    pub fn longest_leg(&self) -> Option<&TtftLegLine> {
        let longest = self.legs.iter().max_by(|left, right| left.share.total_cmp(&right.share));
        longest.filter(|leg| leg.share > 0.0)
    }

    /// The leg with the largest share in the last ten seconds, and that share; `None` if no first token fell into them.
    fn longest_recent_leg(&self) -> Option<(&TtftLegLine, f64)> {
        let recent = self.legs.iter().filter_map(|leg| Some((leg, leg.recent_share?)));
        recent.max_by(|(_, left), (_, right)| left.total_cmp(right))
    }

    /// Describes two shares of the time to first token. One is that of `longest`, the longest leg of the run. The other one is that of the
    /// longest leg of the last ten seconds, which may be another leg.
    fn describe_shares_of_longest_leg(&self, longest: &TtftLegLine) -> String {
        let share = percent(longest.share);
        let Some((leg, recent_share)) = self.longest_recent_leg() else {
            return format!("{share} of TTFT, no first token in the last 10 s");
        };
        let recent_share = percent(recent_share);
        if leg.name != longest.name {
            format!("{share} of TTFT; in the last 10 s: {}, {recent_share}", leg.words)
        } else if recent_share == share {
            format!("{share} of TTFT, run and last 10 s")
        } else {
            format!("{share} of TTFT, {recent_share} in the last 10 s")
        }
    }

    /// Shares of its legs that are large enough for a segment of a bar.
    pub fn segments(&self) -> Vec<Segment> {
        bar::merge_small_segments(self.legs.iter().map(|leg| Segment { name: leg.words.clone(), share: leg.share }))
    }
}

/// Moments that were not observed of some requests, each with the number of these requests and the reason.
fn list_unobserved_moments(ledger: &Ledger) -> Vec<UnobservedMomentLine> {
    let mut lines = list_unknown_arrivals(ledger);
    // The moments behind the arrival and the read, whose reasons are listed already.
    for moment in TtftMoment::ALL.iter().copied().filter(|moment| *moment > TtftMoment::Read) {
        let without = ledger.ttft().groups().iter().filter(|group| !group.observes(moment));
        let requests: u64 = without.map(|group| group.times().count()).sum();
        if requests > 0 {
            lines.push(UnobservedMomentLine::new(moment, requests, why_moment_is_unobserved(moment, ledger)));
        }
    }
    lines
}

/// Requests whose arrival is unknown, one line for each reason.
fn list_unknown_arrivals(ledger: &Ledger) -> Vec<UnobservedMomentLine> {
    let arrivals = &ledger.ttft().absent_arrivals;
    let mut requests_by_reason: Vec<(u64, &str)> = Vec::new();
    for (why, requests) in arrivals.by_reason() {
        requests_by_reason.push((requests, describe_unknown_arrival(why)));
    }
    requests_by_reason.push((arrivals.not_observed, "arrivals on their connections are not observed"));
    requests_by_reason.push((arrivals.contradictory, "their arrival contradicts their dispatch"));
    let mut lines = Vec::new();
    for (requests, reason) in requests_by_reason {
        if requests > 0 {
            lines.push(UnobservedMomentLine::new(TtftMoment::Arrived, requests, reason));
        }
    }
    lines
}

/// Why it is unknown when a request arrived.
fn describe_unknown_arrival(why: UnknownArrival) -> &'static str {
    match why {
        UnknownArrival::Http2 => "HTTP/2 interleaves the requests of a connection",
        UnknownArrival::Tls => "the connection is encrypted (TLS)",
        UnknownArrival::Pipelined => "the client sends requests before the response to the one before has ended",
        UnknownArrival::Protocol => "the server opens the connection itself",
        UnknownArrival::Missed => "the connection is older than the attach, or an observation was missed",
    }
}

/// Why a moment behind the arrival was not observed of some requests. If the run does not observe the moment of any request, that is the
/// reason.
fn why_moment_is_unobserved(moment: TtftMoment, ledger: &Ledger) -> &'static str {
    let mut request_hops = ledger.hops().iter().filter(|hop| hop.carries_requests);
    match moment {
        TtftMoment::Queued | TtftMoment::BatchEntered => ledger.reasons_for_absent_engine_times().entries,
        TtftMoment::SchedulerReceived if !request_hops.any(|hop| hop.capabilities().received) => {
            "receives of requests are not observed"
        }
        TtftMoment::FirstReceived if !ledger.observes_receives() => "receives are not observed",
        // The end of the processing is the time of the delivery.
        TtftMoment::FirstDelivered | TtftMoment::Processed if !ledger.observes_deliveries() => {
            "deliveries are not observed"
        }
        // The run observes the moment, so it is missing for single requests only.
        TtftMoment::FirstDelivered => "no counted delivery, or not before the end of the request",
        TtftMoment::Processed => "the call that shows it was not observed",
        _ => "its message was missed, or its time contradicts the others",
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

/// Length of a leg, which is a part of the time to first token, and the leg's shares of the whole time. `whole` is that time over the run,
/// and `recent_whole` over the last ten seconds before `now`.
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

/// Share of `part` in `whole`; `None` if `whole` took no time.
fn share(part: DurationSum, whole: DurationSum) -> Option<f64> {
    if whole.ns == 0 { None } else { Some(part.ns as f64 / whole.ns as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leg with its shares of the run and of the last ten seconds.
    fn leg(name: &str, share: f64, recent_share: Option<f64>) -> TtftLegLine {
        TtftLegLine {
            name: name.to_owned(),
            words: format!("the {name}"),
            from: TtftMoment::Arrived,
            to: TtftMoment::FirstDelivered,
            ns: Spread::default(),
            mean_ns: 0,
            share,
            recent_share,
        }
    }

    fn group(requests: u64, legs: Vec<TtftLegLine>) -> TtftGroupLine {
        TtftGroupLine {
            from: TtftMoment::Arrived,
            to: TtftMoment::FirstDelivered,
            ns: Spread { count: requests, ..Spread::default() },
            mean_ns: 0,
            recent_mean_ns: None,
            legs,
        }
    }

    fn bottleneck(groups: Vec<TtftGroupLine>, not_streamed: u64) -> String {
        describe_bottleneck(Some(&TtftReport { groups, absent: Vec::new(), not_streamed, others: 0 }))
    }

    #[test]
    fn the_bottleneck_is_the_longest_leg_of_the_run_and_of_the_last_ten_seconds() {
        let of = |[queue, prefill]: [f64; 2], recent: [Option<f64>; 2]| {
            bottleneck(vec![group(9, vec![leg("queue", queue, recent[0]), leg("prefill", prefill, recent[1])])], 0)
        };
        let run = [0.38, 0.62];
        assert_eq!(of(run, [Some(0.3), Some(0.7)]), "bottleneck: the prefill (62 % of TTFT, 70 % in the last 10 s)");
        assert_eq!(of(run, run.map(Some)), "bottleneck: the prefill (62 % of TTFT, run and last 10 s)");
        assert_eq!(
            of(run, [Some(0.8), Some(0.2)]),
            "bottleneck: the prefill (62 % of TTFT; in the last 10 s: the queue, 80 %)"
        );
        assert_eq!(of(run, [None, None]), "bottleneck: the prefill (62 % of TTFT, no first token in the last 10 s)");
        assert_eq!(of([0.0, 0.0], [None, None]), "bottleneck unknown (first tokens took no time)");
    }

    #[test]
    fn a_bottleneck_that_is_not_known_of_most_requests_is_unknown() {
        let of = |requests| group(requests, vec![leg("queue", 1.0, None)]);
        assert_eq!(describe_bottleneck(None), "bottleneck unknown");
        assert_eq!(bottleneck(Vec::new(), 0), "bottleneck unknown (no time to first token was observed)");
        assert_eq!(bottleneck(Vec::new(), 2), "bottleneck unknown (responses are not streamed)");
        assert_eq!(bottleneck(vec![of(9)], 10), "bottleneck unknown (most responses are not streamed)");
        let differ = "bottleneck unknown (no group of requests with the same observed moments has most of them)";
        assert_eq!(bottleneck(vec![of(4), of(3), of(3)], 0), differ);
        assert!(bottleneck(vec![of(5), of(3), of(2)], 10).starts_with("bottleneck: the queue"));
    }
}
