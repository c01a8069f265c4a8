//! Time to first token, as the legs between the moments of a request that were observed.

use std::fmt;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::Ledger;
use super::request::{Request, RequestNumbers};
use crate::clock::MonoNs;
use crate::engine::Facts;
use crate::stats::{Distribution, DurationSum, Spread, Tally, WindowedSum};

/// Moments of a request until its first tokens are accepted for its client, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TtftMoment {
    /// The tokenizer sent it to the scheduler.
    Dispatched,
    /// The scheduler received it.
    SchedulerReceived,
    /// The scheduler sent its first token.
    FirstSent,
    /// The tokenizer received its first token.
    FirstReceived,
    /// Its first token was accepted for its client.
    FirstDelivered,
}

use TtftMoment::{Dispatched, FirstDelivered, FirstReceived, FirstSent, SchedulerReceived};

const MOMENTS: [TtftMoment; 5] = [Dispatched, SchedulerReceived, FirstSent, FirstReceived, FirstDelivered];
/// The leg that begins at each moment but the last.
const LEG_NAMES: [&str; MOMENTS.len() - 1] = ["dispatch", "scheduler", "output", "delivery"];

impl TtftMoment {
    fn index(self) -> usize {
        self as usize
    }

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Dispatched => "dispatched",
            SchedulerReceived => "scheduler_received",
            FirstSent => "first_sent",
            FirstReceived => "first_received",
            FirstDelivered => "first_delivered",
        }
    }
}

impl TtftMoment {
    /// Describes it: `scheduler received the request`.
    pub fn describe(self, engine: &dyn Facts) -> String {
        let (source, receiver) = (engine.source(), engine.receiver());
        match self {
            Dispatched => format!("{receiver} sent the request to the {source}"),
            SchedulerReceived => format!("{source} received the request"),
            FirstSent => format!("{source} sent its first token"),
            FirstReceived => format!("{receiver} received its first token"),
            FirstDelivered => "first token accepted for the client".to_owned(),
        }
    }

    /// What lies before it, if it is not the first that exists.
    pub fn not_observed_before(self) -> Option<&'static str> {
        (self == Dispatched).then_some("the time before the dispatch: arrival, reading, tokenisation")
    }

    /// What lies after it, if it is not the last that exists.
    pub fn not_observed_after(self) -> Option<&'static str> {
        (self < FirstDelivered).then_some("the time until the first token is written to the client")
    }
}

/// A part of the time to first token, between two moments. Moments between them were not observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TtftLeg {
    /// Its begin.
    pub from: TtftMoment,
    /// Its end.
    pub to: TtftMoment,
}

impl TtftLeg {
    /// Names of the legs between neighbouring moments that it is made of.
    fn parts(self) -> &'static [&'static str] {
        LEG_NAMES.get(self.from.index()..self.to.index()).unwrap_or_default()
    }
}

impl TtftLeg {
    /// Describes it: `waiting for the scheduler, inside the scheduler`.
    pub fn describe(self, engine: &dyn Facts) -> String {
        let (source, receiver) = (engine.source(), engine.receiver());
        let parts = (self.from.index()..self.to.index()).map(|index| match MOMENTS[index] {
            Dispatched => format!("waiting for the {source}"),
            SchedulerReceived => format!("inside the {source}"),
            FirstSent => format!("output on its way to the {receiver}"),
            FirstReceived | FirstDelivered => format!("inside the {receiver}, until written"),
        });
        parts.collect::<Vec<String>>().join(" + ")
    }
}

/// Its name: `dispatch`, `scheduler`, `output` or `delivery`, joined by `+` if the moments between them were not observed.
impl fmt::Display for TtftLeg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, part) in self.parts().iter().enumerate() {
            let separator = if number == 0 { "" } else { "+" };
            write!(f, "{separator}{part}")?;
        }
        Ok(())
    }
}

/// A leg of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedLeg {
    /// Which one.
    pub leg: TtftLeg,
    /// When it began.
    pub at: MonoNs,
    /// Its length in nanoseconds.
    pub ns: u64,
}

/// The observed moments of one request until its first token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TtftPath {
    times: [Option<MonoNs>; MOMENTS.len()],
}

impl TtftPath {
    /// Moments of a request. One that is earlier than the moment before it is left out.
    pub fn new(numbers: &RequestNumbers) -> Self {
        let dispatch = numbers.dispatch;
        let mut path = Self {
            times: [
                dispatch.map(|dispatch| dispatch.sent),
                dispatch.and_then(|dispatch| dispatch.received),
                numbers.sent_first,
                numbers.received_first,
                numbers.delivered_first,
            ],
        };
        let mut latest = MonoNs(0);
        for time in &mut path.times {
            *time = time.filter(|at| *at >= latest);
            latest = time.unwrap_or(latest);
        }
        path
    }

    /// When the moment was; `None` if that was not observed.
    pub fn time_of(&self, moment: TtftMoment) -> Option<MonoNs> {
        self.times[moment.index()]
    }

    /// The observed moments, in order.
    pub fn moments(&self) -> impl Iterator<Item = (TtftMoment, MonoNs)> {
        MOMENTS.into_iter().zip(self.times).filter_map(|(moment, time)| Some((moment, time?)))
    }

    /// The legs between the observed moments, in order. Their lengths sum to [`Self::whole`].
    pub fn legs(&self) -> impl Iterator<Item = TimedLeg> {
        let next = self.moments().skip(1);
        self.moments().zip(next).map(|((from, at), (to, end))| TimedLeg {
            leg: TtftLeg { from, to },
            at,
            ns: end.since(at),
        })
    }

    /// From the first observed moment to the last: the whole time to first token if those are the first and the last that exist. `None`
    /// unless two were observed.
    pub fn whole(&self) -> Option<TimedLeg> {
        let (from, at) = self.moments().next()?;
        let (to, end) = self.moments().last()?;
        (from < to).then(|| TimedLeg { leg: TtftLeg { from, to }, at, ns: end.since(at) })
    }

    /// The time to first token; `None` unless a moment before its first send, and its first receive or delivery were observed.
    pub fn ttft_ns(&self) -> Option<u64> {
        let whole = self.whole()?;
        (whole.leg.from < FirstSent && whole.leg.to > FirstSent).then_some(whole.ns)
    }

    /// Length of the leg between this moment and the next one that exists; `None` unless both were observed.
    pub fn leg_from(&self, moment: TtftMoment) -> Option<u64> {
        let end = *self.times.get(moment.index() + 1)?;
        Some(end?.since(self.time_of(moment)?))
    }

    fn observed(&self) -> ObservedMoments {
        ObservedMoments(self.times.map(|time| time.is_some()))
    }
}

/// Which moments of a request were observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ObservedMoments([bool; MOMENTS.len()]);

/// Lengths of a leg over requests.
#[derive(Clone, Debug)]
pub struct LegLengths {
    /// Which leg.
    pub leg: TtftLeg,
    lengths: Tally,
    sum: WindowedSum,
}

impl LegLengths {
    /// Summary, with quantiles accurate to 6 %.
    pub fn spread(&self) -> Spread {
        Spread::of_tally(&self.lengths).unwrap_or_default()
    }

    /// Exact sum and number.
    pub fn sum(&self) -> DurationSum {
        self.sum.whole()
    }

    /// Exact sum and number of the last ten seconds before `now`.
    pub fn recent_sum(&self, now: MonoNs) -> DurationSum {
        self.sum.recent(now)
    }

    /// Cumulative counts for rising `bounds`, to an eighth.
    pub fn cumulative_counts(&self, bounds: &[u64]) -> Vec<u64> {
        self.lengths.cumulative_counts(bounds)
    }
}

/// Requests of which the same moments were observed, so that the sums of their legs add up to the sum of their times.
#[derive(Debug)]
pub struct TtftGroup {
    observed: ObservedMoments,
    whole: TtftLeg,
    times: Distribution,
    sum: WindowedSum,
    legs: Vec<LegLengths>,
}

impl TtftGroup {
    fn new(path: &TtftPath, whole: TtftLeg) -> Self {
        let legs = path.legs().map(|timed| LegLengths {
            leg: timed.leg,
            lengths: Tally::default(),
            sum: WindowedSum::default(),
        });
        Self {
            observed: path.observed(),
            whole,
            times: Distribution::default(),
            sum: WindowedSum::default(),
            legs: legs.collect(),
        }
    }

    fn record(&mut self, path: &TtftPath, whole: TimedLeg) {
        let end = MonoNs(whole.at.0 + whole.ns);
        self.times.record(end, whole.ns);
        self.sum.record_n(end, whole.ns, 1);
        let mut legs_ns = 0;
        for (lengths, timed) in self.legs.iter_mut().zip(path.legs()) {
            lengths.lengths.record(timed.ns, 1);
            lengths.sum.record_n(end, timed.ns, 1);
            legs_ns += timed.ns;
        }
        debug_assert_eq!(legs_ns, whole.ns, "the legs of a request sum to its time");
    }

    /// First and last of its moments.
    pub fn whole(&self) -> TtftLeg {
        self.whole
    }

    /// Time from its first to its last moment, over requests.
    pub fn times(&self) -> &Distribution {
        &self.times
    }

    /// Exact sum and number of those times.
    pub fn sum(&self) -> DurationSum {
        self.sum.whole()
    }

    /// Exact sum and number of the last ten seconds before `now`.
    pub fn recent_sum(&self, now: MonoNs) -> DurationSum {
        self.sum.recent(now)
    }

    /// Its legs, in order. The sums of all are [`Self::sum`].
    pub fn legs(&self) -> &[LegLengths] {
        &self.legs
    }
}

/// Maximum number of groups. Observation changes a few times in a run, so there are few.
const MAX_GROUPS: usize = 8;

/// Times to first token of all requests.
#[derive(Debug, Default)]
pub struct Ttft {
    groups: SmallVec<[TtftGroup; 1]>,
    /// Requests that are not streamed: the response is one body, or its first chunk has several tokens.
    pub not_streamed: u64,
    /// Requests of further groups than are kept.
    pub others: u64,
}

impl Ttft {
    fn record(&mut self, path: &TtftPath) {
        // From the first send on, the gap and the wait for delivery are the legs.
        let (Some(whole), Some(_)) = (path.whole(), path.ttft_ns()) else { return };
        let observed = path.observed();
        let index = match self.groups.iter().position(|group| group.observed == observed) {
            Some(index) => index,
            None if self.groups.len() < MAX_GROUPS => {
                self.groups.push(TtftGroup::new(path, whole.leg));
                self.groups.len() - 1
            }
            None => {
                self.others += 1;
                return;
            }
        };
        self.groups[index].record(path, whole);
    }

    /// Groups of requests, in the order of their first one.
    pub fn groups(&self) -> &[TtftGroup] {
        &self.groups
    }

    /// The group with the most requests; `None` without any.
    pub fn main_group(&self) -> Option<&TtftGroup> {
        self.groups.iter().max_by_key(|group| group.times.count())
    }

    /// Requests in all groups.
    pub fn requests(&self) -> u64 {
        self.groups.iter().map(|group| group.times.count()).sum()
    }
}

impl Ledger {
    /// Times to first token of all requests whose dispatch was observed.
    pub fn ttft(&self) -> &Ttft {
        &self.ttft
    }

    /// Enters a request whose first token has been delivered, or that ends.
    pub(super) fn record_ttft(ttft: &mut Ttft, request: &mut Request) {
        if request.dispatch.is_none() || request.sent_first.is_none() || request.is_ttft_recorded {
            return;
        }
        request.is_ttft_recorded = true;
        if request.starts_with_one_token && !request.has_one_body {
            ttft.record(&TtftPath::new(&request.numbers(None, true)));
        } else {
            ttft.not_streamed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::RequestDispatch;

    fn numbers(times: [Option<u64>; 5]) -> RequestNumbers {
        let [sent, received, first_sent, first_received, delivered] = times.map(|time| time.map(MonoNs));
        let dispatch =
            sent.map(|sent| RequestDispatch { sent, received, prompt_tokens: None, room: None, arrived_unix_ns: None });
        RequestNumbers {
            dispatch,
            sent_first: first_sent,
            received_first: first_received,
            delivered_first: delivered,
            ..RequestNumbers::default()
        }
    }

    fn path(times: [Option<u64>; 5]) -> TtftPath {
        TtftPath::new(&numbers(times))
    }

    fn legs(path: &TtftPath) -> Vec<(String, u64)> {
        path.legs().map(|timed| (timed.leg.to_string(), timed.ns)).collect()
    }

    #[test]
    fn legs_lie_between_the_observed_moments_and_sum_to_the_whole() {
        let all = path([Some(100), Some(130), Some(400), Some(450), Some(470)]);
        let expected = [("dispatch", 30), ("scheduler", 270), ("output", 50), ("delivery", 20)];
        assert_eq!(legs(&all), expected.map(|(name, ns)| (name.to_owned(), ns)));
        assert_eq!(all.whole().map(|whole| whole.ns), Some(370));
        let some = path([Some(100), None, Some(400), None, Some(470)]);
        let expected = [("dispatch+scheduler", 300), ("output+delivery", 70)];
        assert_eq!(legs(&some), expected.map(|(name, ns)| (name.to_owned(), ns)));
        assert_eq!(path([None, None, Some(400), None, None]).whole(), None);
    }

    #[test]
    fn a_moment_before_the_previous_one_is_left_out() {
        let skewed = path([Some(100), Some(90), Some(400), Some(450), None]);
        let expected = [("dispatch+scheduler", 300), ("output", 50)];
        assert_eq!(legs(&skewed), expected.map(|(name, ns)| (name.to_owned(), ns)));
    }

    #[test]
    fn requests_with_the_same_moments_are_a_group_whose_legs_sum_to_its_times() {
        let mut ttft = Ttft::default();
        ttft.record(&path([Some(100), Some(130), Some(400), Some(450), Some(470)]));
        ttft.record(&path([Some(200), Some(210), Some(900), Some(950), Some(990)]));
        ttft.record(&path([Some(200), None, Some(900), Some(950), Some(990)]));
        // Without a moment before the first send there is no time to first token.
        ttft.record(&path([None, None, Some(900), Some(950), Some(990)]));
        assert_eq!((ttft.groups().len(), ttft.requests()), (2, 3));
        let main = ttft.main_group().expect("recorded");
        assert_eq!((main.sum().count, main.sum().ns, main.times().max()), (2, 370 + 790, Some(790)));
        let sums: Vec<u128> = main.legs().iter().map(|lengths| lengths.sum().ns).collect();
        assert_eq!(sums, [40, 960, 100, 60]);
        assert_eq!(main.legs()[1].spread().max, 690);
        assert_eq!(main.recent_sum(MonoNs(1_000)).count, 2);
        assert_eq!(main.recent_sum(MonoNs(60_000_000_000)).count, 0);
    }

    #[test]
    fn groups_are_bounded() {
        let mut ttft = Ttft::default();
        for observed in 0..16_u64 {
            let time = |bit: u64, at| (observed >> bit & 1 == 1).then_some(at);
            ttft.record(&path([Some(100), time(0, 200), Some(300), time(1, 400), time(2, 500)]));
        }
        assert_eq!((ttft.groups().len(), ttft.others), (MAX_GROUPS, 0));
    }
}
