//! Times to first token of all requests, in groups with the same observed moments.

use smallvec::SmallVec;

use super::Ledger;
use super::late_leg::LateLeg;
use super::late_legs::{JudgedRequests, LateLegs, SilencedRequests, SlowestPrefill};
use super::limits::CountedLimits;
use super::request::Request;
use super::ttft_path::{ObservedMoments, TimedLeg, TtftLeg, TtftMoment, TtftPath};
use crate::clock::MonoNs;
use crate::event::{ArrivalTimes, UnknownArrival};
use crate::stats::{Distribution, DurationSum, RunSeconds, Spread, Tally, WindowedSum};

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

    /// Exact sum and number of the window of current figures at `now`.
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
    /// A group without requests, for the observed moments of this path.
    fn new(path: &TtftPath, whole: TtftLeg, seconds: RunSeconds) -> Self {
        let legs = path.legs().map(|timed| LegLengths {
            leg: timed.leg,
            lengths: Tally::default(),
            sum: WindowedSum::with_seconds(seconds),
        });
        Self {
            observed: path.observed(),
            whole,
            times: Distribution::default(),
            sum: WindowedSum::with_seconds(seconds),
            legs: legs.collect(),
        }
    }

    /// Adds the times of a request whose path has the moments of the group.
    fn add_path_of_request(&mut self, path: &TtftPath, whole: TimedLeg) {
        let end = whole.end();
        self.times.record(whole.ns);
        self.sum.record_n(end, whole.ns, 1);
        let mut legs_ns = 0;
        for (leg, timed) in self.legs.iter_mut().zip(path.legs()) {
            leg.lengths.record(timed.ns, 1);
            leg.sum.record_n(end, timed.ns, 1);
            legs_ns += timed.ns;
        }
        debug_assert_eq!(legs_ns, whole.ns, "the legs of a request sum to its time");
    }

    /// Whether this moment was observed of its requests.
    pub fn observes(&self, moment: TtftMoment) -> bool {
        self.observed.has(moment)
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

    /// Exact sum and number of the window of current figures at `now`.
    pub fn recent_sum(&self, now: MonoNs) -> DurationSum {
        self.sum.recent(now)
    }

    /// The legs of the group's paths, in order. Their sums add up to [`Self::sum`].
    pub fn legs(&self) -> &[LegLengths] {
        &self.legs
    }
}

/// Maximum number of groups. Observation changes a few times in a run, so there are few.
const MAX_GROUPS: usize = 8;

/// Requests in groups whose arrival is not among their moments, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AbsentArrivals {
    by_reason: [u64; UnknownArrival::ALL.len()],
    /// Those of which neither an arrival nor a reason was observed.
    pub not_observed: u64,
    /// Those whose arrival contradicts their dispatch.
    pub contradictory: u64,
}

impl AbsentArrivals {
    /// Counts a request whose path has no arrival, by the reason.
    fn count_request_without_arrival(&mut self, arrival: Option<Result<ArrivalTimes, UnknownArrival>>) {
        let count = match arrival {
            None => &mut self.not_observed,
            // The path has left it out, because it contradicts the order of the other moments.
            Some(Ok(_)) => &mut self.contradictory,
            Some(Err(reason)) => &mut self.by_reason[reason as usize],
        };
        *count += 1;
    }

    /// Numbers of requests by reason, without those that no request has.
    pub fn by_reason(&self) -> impl Iterator<Item = (UnknownArrival, u64)> {
        UnknownArrival::ALL.iter().copied().zip(self.by_reason).filter(|(_, requests)| *requests > 0)
    }
}

/// Times to first token of all requests.
#[derive(Debug, Default)]
pub struct Ttft {
    /// Seconds of the window of current figures.
    pub(super) seconds: RunSeconds,
    groups: SmallVec<[TtftGroup; 1]>,
    pub(super) late_legs: LateLegs,
    /// Requests in groups without an observed arrival.
    pub absent_arrivals: AbsentArrivals,
    /// Requests that are not streamed: the response is one body, or its first chunk has several tokens.
    pub not_streamed: u64,
    /// Requests of further groups than are kept.
    pub others: u64,
}

impl Ttft {
    /// Records the time to first token of a request whose first token has been delivered, or that ends: in total, and by legs (the times
    /// between two observed moments). A second call for a request changes nothing.
    pub(super) fn record_ttft_of_request(&mut self, request: &mut Request, limits: &mut CountedLimits) {
        let Some(details) = &request.details else { return };
        // Nothing is judged unless a moment before the first token and the send of the first token are known.
        let has_time = details.has_early_moment() && request.sent_first.is_some();
        if !has_time || request.is_ttft_recorded {
            return;
        }
        let is_ambiguous = details.wait.is_some_and(|wait| wait.is_ambiguous);
        request.is_ttft_recorded = true;
        if is_ambiguous || request.is_shared() {
            // Its first chunk may be that of the other request with its rid.
            self.late_legs.judged.shared_rids += 1;
            return;
        }
        // The path uses neither the worker nor the received tokens, so these two arguments have no effect here.
        let worker = None;
        let observes_receives = true;
        let numbers = request.numbers(worker, observes_receives);
        let path = TtftPath::new(&numbers);
        self.late_legs.record_legs(request, &path, limits);
        if request.is_streamed() {
            let is_recorded = self.add_path_to_group(&path);
            if is_recorded && path.time_of(TtftMoment::Arrived).is_none() {
                self.absent_arrivals.count_request_without_arrival(numbers.arrival);
            }
        } else {
            self.not_streamed += 1;
        }
    }

    /// Adds the path of a request to the group of paths with the same observed moments. Returns false if it has no time to first token, or
    /// no group is free.
    fn add_path_to_group(&mut self, path: &TtftPath) -> bool {
        // A path that begins with the first send has no time to first token. The gap and the wait for delivery are recorded elsewhere.
        if path.ttft_ns().is_none() {
            return false;
        }
        let Some(whole) = path.whole_leg() else { return false };
        let observed = path.observed();
        if let Some(group) = self.groups.iter_mut().find(|group| group.observed == observed) {
            group.add_path_of_request(path, whole);
        } else if self.groups.len() < MAX_GROUPS {
            let mut group = TtftGroup::new(path, whole.leg, self.seconds);
            group.add_path_of_request(path, whole);
            self.groups.push(group);
        } else {
            self.others += 1;
            return false;
        }
        true
    }

    /// The slowest prefill that is slow beside others; `None` without any.
    pub(crate) fn slowest_prefill(&self) -> Option<SlowestPrefill> {
        self.late_legs.slowest_prefill()
    }

    /// Requests that spent long on the leg between this moment and the next one that exists.
    pub(crate) fn late_leg(&self, from: TtftMoment) -> Option<&LateLeg> {
        self.late_legs().iter().find(|late| late.leg.from == from && late.leg.parts().len() == 1)
    }

    /// Legs on which requests spent long, in the order of their first late requests.
    pub(crate) fn late_legs(&self) -> &[LateLeg] {
        self.late_legs.list()
    }

    /// Share of a leg in all times to first token of the run.
    pub(crate) fn share_of_all(&self, late: &LateLeg) -> f64 {
        self.late_legs.share_of_all(late)
    }

    /// Greatest share of a leg in all times to first token of ten to twenty seconds.
    pub(crate) fn window_share(&self, late: &LateLeg) -> f64 {
        self.late_legs.window_share(late)
    }

    /// Late requests during whose wait the engine was silent.
    pub(crate) fn silenced(&self) -> &SilencedRequests {
        &self.late_legs.silenced
    }

    /// Requests whose legs were judged.
    pub fn judged(&self) -> JudgedRequests {
        self.late_legs.judged
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
    /// Times to first token of all requests whose arrival or dispatch was observed.
    pub fn ttft(&self) -> &Ttft {
        &self.ttft
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ArrivalTimes;
    use crate::ledger::RequestNumbers;
    use crate::ledger::ttft_path::test_paths::{numbers_of, path_of};

    #[test]
    fn requests_with_the_same_moments_are_a_group_whose_legs_sum_to_its_times() {
        let mut ttft = Ttft::default();
        ttft.add_path_to_group(&path_of([Some(100), Some(130), Some(400), Some(450), Some(470)]));
        ttft.add_path_to_group(&path_of([Some(200), Some(210), Some(900), Some(950), Some(990)]));
        ttft.add_path_to_group(&path_of([Some(200), None, Some(900), Some(950), Some(990)]));
        // Without a moment before the first send there is no time to first token.
        ttft.add_path_to_group(&path_of([None, None, Some(900), Some(950), Some(990)]));
        assert_eq!((ttft.groups().len(), ttft.requests()), (2, 3));
        let main = ttft.main_group().expect("recorded");
        assert_eq!((main.sum().count, main.sum().ns, main.times().max()), (2, 370 + 790, Some(790)));
        let sums: Vec<u128> = main.legs().iter().map(|lengths| lengths.sum().ns).collect();
        assert_eq!(sums, [40, 960, 100, 60]);
        assert_eq!(main.legs()[1].spread().max, 690);
        assert_eq!([990, 9_999_999_999, 10_000_000_000].map(|now| main.recent_sum(MonoNs(now)).count), [2, 2, 0]);
    }

    #[test]
    fn groups_are_bounded() {
        let mut ttft = Ttft::default();
        for observed in 0..16_u64 {
            let time = |bit: u64, at| (observed >> bit & 1 == 1).then_some(at);
            let times = ArrivalTimes { arrived: MonoNs(50), read: MonoNs(70), connection: None };
            let numbers = RequestNumbers {
                arrival: time(3, 0).map(|_| Ok(times)),
                ..numbers_of([Some(100), time(0, 200), Some(300), time(1, 400), time(2, 500)])
            };
            ttft.add_path_to_group(&TtftPath::new(&numbers));
        }
        // Four of the requests ended before their first token was received or delivered.
        assert_eq!((ttft.groups().len(), ttft.requests(), ttft.others), (MAX_GROUPS, 8, 4));
    }
}
