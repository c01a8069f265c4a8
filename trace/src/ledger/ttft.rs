//! Time to first token, as the legs between the moments of a request that were observed.

use std::fmt;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::engine_silence::EngineSilences;
use super::limits::CountedLimits;
use super::prefill::{PrefillComparison, PrefillSpan, Prefills, SlowPrefill};
use super::request::{Request, RequestNumbers};
use super::{GAP_WARNING_NS, Ledger, OccurrenceTimes, WorstGap};
use crate::clock::MonoNs;
use crate::engine::Facts;
use crate::stats::{Distribution, DurationSum, Spread, Tally, WindowedSum};
use crate::words::names;

/// Moments of a request until its first tokens are accepted for its client, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TtftMoment {
    /// Its first bytes were in the server's socket.
    Arrived,
    /// The server had read its first bytes.
    Read,
    /// The tokenizer sent it to the scheduler.
    Dispatched,
    /// The scheduler received it.
    SchedulerReceived,
    /// It entered the scheduler's queue, by the engine's own clock.
    Queued,
    /// It first entered a batch, by the engine's own clock.
    BatchEntered,
    /// The scheduler sent its first token.
    FirstSent,
    /// The tokenizer received its first token.
    FirstReceived,
    /// The tokenizer had processed the message with its first token.
    Processed,
    /// Its first token was accepted for its client.
    FirstDelivered,
}

use TtftMoment::{
    Arrived, BatchEntered, Dispatched, FirstDelivered, FirstReceived, FirstSent, Processed, Queued, Read,
    SchedulerReceived,
};

names! {
    TtftMoment {
        Arrived = "arrived",
        Read = "read",
        Dispatched = "dispatched",
        SchedulerReceived = "scheduler_received",
        Queued = "queued",
        BatchEntered = "batch_entered",
        FirstSent = "first_sent",
        FirstReceived = "first_received",
        Processed = "processed",
        FirstDelivered = "first_delivered",
    }
}

const MOMENTS: usize = TtftMoment::ALL.len();
/// The leg that begins at each moment but the last.
const LEG_NAMES: [&str; MOMENTS - 1] =
    ["socket", "preparation", "dispatch", "intake", "queue", "prefill", "output", "processing", "delivery"];

impl TtftMoment {
    fn index(self) -> usize {
        self as usize
    }

    /// Describes it: `scheduler received the request`.
    pub fn describe(self, engine: &dyn Facts) -> String {
        let source = engine.source();
        let receiver = engine.receiver();
        match self {
            Arrived => "the request was in the server's socket".to_owned(),
            Read => format!("{receiver} read the request"),
            Dispatched => format!("{receiver} sent the request to the {source}"),
            SchedulerReceived => format!("{source} received the request"),
            Queued => format!("{source} queued the request"),
            BatchEntered => format!("{source} began its prefill"),
            FirstSent => format!("{source} sent its first token"),
            FirstReceived => format!("{receiver} received its first token"),
            Processed => format!("{receiver} processed its first token"),
            FirstDelivered => "first token accepted for the client".to_owned(),
        }
    }

    /// What lies before it, if it is not the first that exists.
    pub fn not_observed_before(self) -> Option<&'static str> {
        (self > Arrived).then_some("the time before the dispatch: arrival, reading, tokenisation")
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

    /// Describes it: `waiting for the scheduler`; the descriptions of its parts joined by ` + ` if it has several.
    pub fn describe(self, engine: &dyn Facts) -> String {
        let source = engine.source();
        let receiver = engine.receiver();
        let parts = (self.from.index()..self.to.index()).map(|index| match TtftMoment::ALL[index] {
            Arrived => "waiting in the server's socket".to_owned(),
            Read => format!("inside the {receiver}, until sent"),
            Dispatched => format!("waiting for the {source}"),
            SchedulerReceived => format!("{source}, until queued"),
            Queued => format!("{source}'s queue"),
            BatchEntered => "prefill".to_owned(),
            FirstSent => format!("output on its way to the {receiver}"),
            FirstReceived => format!("inside the {receiver}, until processed"),
            // No leg begins at the last moment; the arm only completes the match.
            Processed | FirstDelivered => format!("inside the {receiver}, until written"),
        });
        // The moments between are often absent.
        match (self.from, self.to) {
            (SchedulerReceived, FirstSent) => return format!("inside the {source}: queue, prefill"),
            (FirstReceived, FirstDelivered) => return format!("inside the {receiver}, until written"),
            _ => {}
        }
        parts.collect::<Vec<String>>().join(" + ")
    }
}

/// Its name: `socket`, `preparation`, `dispatch`, `intake`, `queue`, `prefill`, `output`, `processing` or `delivery`, joined by `+` if the moments between
/// them were not observed.
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

impl TimedLeg {
    fn end(self) -> MonoNs {
        MonoNs(self.at.0 + self.ns)
    }
}

/// The observed moments of one request until its first token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TtftPath {
    times: [Option<MonoNs>; MOMENTS],
}

impl TtftPath {
    /// Moments of a request. One that contradicts the order of the others is left out.
    pub fn new(numbers: &RequestNumbers) -> Self {
        let dispatch = numbers.dispatch;
        let arrival = numbers.arrival.and_then(Result::ok);
        let engine = numbers.engine_times.unwrap_or_default();
        let path = Self {
            times: [
                arrival.map(|arrival| arrival.arrived),
                arrival.map(|arrival| arrival.read),
                dispatch.map(|dispatch| dispatch.sent),
                dispatch.and_then(|dispatch| dispatch.received),
                engine.queued,
                engine.batch_entered,
                numbers.sent_first,
                numbers.received_first,
                // Without a delivery, its time to first token ends with the receive.
                numbers.processed_first.filter(|_| numbers.delivered_first.is_some()),
                numbers.delivered_first,
            ],
        };
        // Messages and deliveries are observed, so they come first; the rest is related to them by a connection, the next call, or the
        // engine's own clock.
        let observed = [Dispatched, SchedulerReceived, FirstSent, FirstReceived, FirstDelivered];
        let related = [Arrived, Read, Queued, BatchEntered, Processed];
        let mut checked = Self::default();
        for moment in observed.into_iter().chain(related) {
            let index = moment.index();
            checked.times[index] = path.times[index].filter(|at| checked.allows(index, *at));
        }
        checked
    }

    /// Whether a moment at this time is neither before an earlier one nor behind a later one.
    fn allows(&self, index: usize, at: MonoNs) -> bool {
        let (before, after) = self.times.split_at(index);
        before.iter().flatten().all(|earlier| *earlier <= at) && after.iter().flatten().all(|later| at <= *later)
    }

    /// When a moment was; `None` if that is not known.
    pub fn time_of(&self, moment: TtftMoment) -> Option<MonoNs> {
        self.times[moment.index()]
    }

    /// The observed moments, in order.
    pub fn moments(&self) -> impl Iterator<Item = (TtftMoment, MonoNs)> {
        TtftMoment::ALL.iter().zip(self.times).filter_map(|(moment, time)| Some((*moment, time?)))
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
    pub(crate) fn leg_from(&self, moment: TtftMoment) -> Option<u64> {
        let end = *self.times.get(moment.index() + 1)?;
        Some(end?.since(self.times[moment.index()]?))
    }

    fn observed(&self) -> ObservedMoments {
        ObservedMoments(self.times.map(|time| time.is_some()))
    }
}

/// Which moments of a request were observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ObservedMoments([bool; MOMENTS]);

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

    /// Exact sum and number of the ten whole seconds before the one at `now`.
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
    fn new(path: &TtftPath, whole: TtftLeg, seconds_from: MonoNs) -> Self {
        let legs = path.legs().map(|timed| LegLengths {
            leg: timed.leg,
            lengths: Tally::default(),
            sum: WindowedSum::counting_from(seconds_from),
        });
        Self {
            observed: path.observed(),
            whole,
            times: Distribution::default(),
            sum: WindowedSum::counting_from(seconds_from),
            legs: legs.collect(),
        }
    }

    fn record(&mut self, path: &TtftPath, whole: TimedLeg) {
        let end = whole.end();
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

    /// Exact sum and number of the ten whole seconds before the one at `now`.
    pub fn recent_sum(&self, now: MonoNs) -> DurationSum {
        self.sum.recent(now)
    }

    /// Its legs, in order. The sums of all are [`Self::sum`].
    pub fn legs(&self) -> &[LegLengths] {
        &self.legs
    }
}

/// Requests that spent a second or more on a leg between neighbouring moments; on the prefill, only those that are slow beside others.
#[derive(Clone, Debug, Default)]
pub struct LateLeg {
    /// Number of such requests.
    pub requests: u64,
    /// Their time on the leg.
    pub ns: u128,
    /// Their whole time to first token.
    pub whole_ns: u128,
    /// The longest; `None` without any.
    pub(crate) worst: Option<WorstGap>,
    /// Begin of the first leg and end of the last one.
    pub(crate) times: OccurrenceTimes,
}

impl LateLeg {
    fn record(&mut self, rid: &str, ns: u64, end: MonoNs, ttft_ns: u64) {
        self.requests += 1;
        self.ns += u128::from(ns);
        self.whole_ns += u128::from(ttft_ns);
        self.worst.get_or_insert_default().keep_longest(end, rid, ns);
        self.times.record_span(MonoNs(end.0.saturating_sub(ns)), end);
    }

    /// Share of the leg in the time to first token of these requests, from 0 to 1.
    pub fn share(&self) -> f64 {
        if self.whole_ns == 0 { 0.0 } else { self.ns as f64 / self.whole_ns as f64 }
    }
}

/// End of a prefill. On the servers of a pair, the transfer of the cache lies between it and the first token, so there it is known only from
/// the engine.
fn prefill_end(request: &Request, leg: TimedLeg) -> Option<MonoNs> {
    let finished = request.engine_times().and_then(|times| times.prefill_finished);
    // Only the dispatch tells which requests are those of a pair.
    let may_be_of_pair = request.dispatch().is_none_or(|dispatch| dispatch.room.is_some());
    match finished.filter(|at| (leg.at..=leg.end()).contains(at)) {
        None if may_be_of_pair => None,
        finished => Some(finished.unwrap_or(leg.end())),
    }
}

/// Maximum number of groups. Observation changes a few times in a run, so there are few.
const MAX_GROUPS: usize = 8;

/// Times to first token of all requests.
#[derive(Debug, Default)]
pub struct Ttft {
    groups: SmallVec<[TtftGroup; 1]>,
    /// Start of a second of the window of current figures.
    pub(super) seconds_from: MonoNs,
    /// By the moment at which the leg begins.
    late_legs: [LateLeg; LEG_NAMES.len()],
    pub(super) prefills: Prefills,
    slowest_prefill: Option<PrefillComparison>,
    /// Requests that are not streamed: the response is one body, or its first chunk has several tokens.
    pub not_streamed: u64,
    /// Requests of further groups than are kept.
    pub others: u64,
}

impl Ttft {
    /// Enters a request whose first token has been delivered, or that ends.
    pub(super) fn record_request(
        &mut self,
        request: &mut Request,
        silences: &EngineSilences,
        limits: &mut CountedLimits,
    ) {
        let has_early_moment = request.details.as_ref().is_some_and(|details| details.has_early_moment());
        if !has_early_moment || request.sent_first.is_none() || request.is_ttft_recorded {
            return;
        }
        request.is_ttft_recorded = true;
        if request.is_streamed() {
            let path = TtftPath::new(&request.numbers(None, true));
            self.record_late_legs(request, &path, silences, limits);
            self.record_path(&path);
        } else {
            self.not_streamed += 1;
        }
    }

    fn record_late_legs(
        &mut self,
        request: &Request,
        path: &TtftPath,
        silences: &EngineSilences,
        limits: &mut CountedLimits,
    ) {
        let Some(ttft_ns) = path.ttft_ns() else { return };
        for timed in path.legs().filter(|timed| timed.leg.parts().len() == 1) {
            if timed.leg.from == BatchEntered {
                let Some(end) = prefill_end(request, timed) else { continue };
                let span = PrefillSpan { from: timed.at, to: end };
                if self.prefills.add_unjudged(request, span, ttft_ns, limits.prefills) {
                    limits.count_reached("prefills");
                }
                continue;
            }
            // While the engine is silent, no request goes on: that is another finding.
            let waits_for_engine = matches!(timed.leg.from, Dispatched | Queued);
            if timed.ns >= GAP_WARNING_NS && !(waits_for_engine && silences.explains(timed.at, timed.end())) {
                self.late_legs[timed.leg.from.index()].record(&request.rid, timed.ns, timed.end(), ttft_ns);
            }
        }
    }

    fn record_path(&mut self, path: &TtftPath) {
        // From the first send on, the gap and the wait for delivery are the legs.
        let (Some(whole), Some(_)) = (path.whole(), path.ttft_ns()) else { return };
        let observed = path.observed();
        let index = match self.groups.iter().position(|group| group.observed == observed) {
            Some(index) => index,
            None if self.groups.len() < MAX_GROUPS => {
                self.groups.push(TtftGroup::new(path, whole.leg, self.seconds_from));
                self.groups.len() - 1
            }
            None => {
                self.others += 1;
                return;
            }
        };
        self.groups[index].record(path, whole);
    }

    pub(super) fn record_slow_prefill(&mut self, slow: &SlowPrefill) {
        let late = &mut self.late_legs[BatchEntered.index()];
        let ns = slow.span.to.since(slow.span.from);
        if late.worst.as_ref().is_none_or(|worst| worst.ns <= ns) {
            self.slowest_prefill = Some(slow.comparison);
        }
        late.record(&slow.rid, ns, slow.span.to, slow.ttft_ns);
    }

    /// Comparison of the slowest prefill that is slow beside others; `None` without any.
    pub(crate) fn slowest_prefill(&self) -> Option<PrefillComparison> {
        self.slowest_prefill
    }

    /// Groups of requests, in the order of their first one.
    pub fn groups(&self) -> &[TtftGroup] {
        &self.groups
    }

    /// The group with the most requests; `None` without any.
    pub fn main_group(&self) -> Option<&TtftGroup> {
        self.groups.iter().max_by_key(|group| group.times.count())
    }

    /// Requests that spent long on the leg that begins at this moment.
    pub(crate) fn late_leg(&self, from: TtftMoment) -> Option<&LateLeg> {
        self.late_legs.get(from.index())
    }

    /// Requests in all groups.
    pub fn requests(&self) -> u64 {
        self.groups.iter().map(|group| group.times.count()).sum()
    }
}

impl Ledger {
    /// Times to first token of all requests whose arrival or dispatch was observed.
    pub fn ttft(&self) -> &Ttft {
        &self.ttft
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ArrivalTimes;
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
        let expected = [("dispatch", 30), ("intake+queue+prefill", 270), ("output", 50), ("processing+delivery", 20)];
        assert_eq!(legs(&all), expected.map(|(name, ns)| (name.to_owned(), ns)));
        assert_eq!(all.whole().map(|whole| whole.ns), Some(370));
        let some = path([Some(100), None, Some(400), None, Some(470)]);
        let expected = [("dispatch+intake+queue+prefill", 300), ("output+processing+delivery", 70)];
        assert_eq!(legs(&some), expected.map(|(name, ns)| (name.to_owned(), ns)));
        assert_eq!(path([None, None, Some(400), None, None]).whole(), None);
    }

    #[test]
    fn an_arrival_behind_the_dispatch_is_left_out() {
        let times = |arrived, read| ArrivalTimes { arrived: MonoNs(arrived), read: MonoNs(read), connection: None };
        let with_arrival = |arrived, read| RequestNumbers {
            arrival: Some(Ok(times(arrived, read))),
            ..numbers([Some(100), None, Some(400), None, None])
        };
        let expected = [("socket", 20), ("preparation", 30), ("dispatch+intake+queue+prefill", 300)];
        let right = TtftPath::new(&with_arrival(50, 70));
        assert_eq!(legs(&right), expected.map(|(name, ns)| (name.to_owned(), ns)));
        let wrong = TtftPath::new(&with_arrival(150, 170));
        assert_eq!(wrong.moments().next(), Some((Dispatched, MonoNs(100))));
    }

    #[test]
    fn a_moment_before_the_previous_one_is_left_out() {
        let skewed = path([Some(100), Some(90), Some(400), Some(450), None]);
        let expected = [("dispatch+intake+queue+prefill", 300), ("output", 50)];
        assert_eq!(legs(&skewed), expected.map(|(name, ns)| (name.to_owned(), ns)));
    }

    #[test]
    fn requests_with_the_same_moments_are_a_group_whose_legs_sum_to_its_times() {
        let mut ttft = Ttft::default();
        ttft.record_path(&path([Some(100), Some(130), Some(400), Some(450), Some(470)]));
        ttft.record_path(&path([Some(200), Some(210), Some(900), Some(950), Some(990)]));
        ttft.record_path(&path([Some(200), None, Some(900), Some(950), Some(990)]));
        // Without a moment before the first send there is no time to first token.
        ttft.record_path(&path([None, None, Some(900), Some(950), Some(990)]));
        assert_eq!((ttft.groups().len(), ttft.requests()), (2, 3));
        let main = ttft.main_group().expect("recorded");
        assert_eq!((main.sum().count, main.sum().ns, main.times().max()), (2, 370 + 790, Some(790)));
        let sums: Vec<u128> = main.legs().iter().map(|lengths| lengths.sum().ns).collect();
        assert_eq!(sums, [40, 960, 100, 60]);
        assert_eq!(main.legs()[1].spread().max, 690);
        assert_eq!([999_999_999, 1_000_000_000].map(|now| main.recent_sum(MonoNs(now)).count), [0, 2]);
        assert_eq!(main.recent_sum(MonoNs(60_000_000_000)).count, 0);
    }

    #[test]
    fn groups_are_bounded() {
        let mut ttft = Ttft::default();
        for observed in 0..16_u64 {
            let time = |bit: u64, at| (observed >> bit & 1 == 1).then_some(at);
            let times = ArrivalTimes { arrived: MonoNs(50), read: MonoNs(70), connection: None };
            let numbers = RequestNumbers {
                arrival: time(3, 0).map(|_| Ok(times)),
                ..numbers([Some(100), time(0, 200), Some(300), time(1, 400), time(2, 500)])
            };
            ttft.record_path(&TtftPath::new(&numbers));
        }
        // Four of the requests ended before their first token was received or delivered.
        assert_eq!((ttft.groups().len(), ttft.requests(), ttft.others), (MAX_GROUPS, 8, 4));
    }
}
