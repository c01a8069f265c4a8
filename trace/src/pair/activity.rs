//! When the schedulers of a pair did nothing, and when they stopped: an idle scheduler is not a stopped one.

use super::PairSide;
use super::clock::ClockUse;
use super::join::Pair;
use super::moment::PairMoment;
use super::request::ServerRequest;
use crate::clock::MonoNs;

use PairMoment::{
    Allocated, DecodeBatch, DecodeFrame, DecodeQueued, DecodeReceived, DecodeRequest, PrefillEnded, PrefillFrame,
    PrefillQueued, PrefillReceived, PrefillRequest, PrefillStarted,
};

/// A span of time, on the decode server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) from: MonoNs,
    pub(super) to: MonoNs,
}

impl Interval {
    pub(super) fn ns(self) -> u64 {
        self.to.since(self.from)
    }

    fn overlap(self, other: Self) -> Self {
        Self { from: self.from.max(other.from), to: self.to.min(other.to) }
    }
}

/// Intervals that do not overlap, in order.
#[derive(Clone, Debug, Default)]
struct Intervals {
    list: Vec<Interval>,
    lengths: MaximumTree,
}

/// Maxima of ranges of numbers, each found in logarithmic time.
#[derive(Clone, Debug, Default)]
struct MaximumTree {
    /// The numbers are the second half. Before them, each node is the maximum of the two at twice its index.
    nodes: Vec<u64>,
}

impl MaximumTree {
    fn new(numbers: impl ExactSizeIterator<Item = u64>) -> Self {
        let count = numbers.len();
        let mut nodes = vec![0; count];
        nodes.extend(numbers);
        for node in (1..count).rev() {
            nodes[node] = nodes[2 * node].max(nodes[2 * node + 1]);
        }
        Self { nodes }
    }

    /// Maximum of the numbers from one index to before another; 0 without any.
    fn of_range(&self, from: usize, to: usize) -> u64 {
        let count = self.nodes.len() / 2;
        let mut left = from + count;
        let mut right = to + count;
        let mut maximum = 0;
        while left < right {
            // The parent of an odd first node, or of the node before an odd end, has a child outside of the range.
            if left % 2 == 1 {
                maximum = maximum.max(self.nodes[left]);
                left += 1;
            }
            if right % 2 == 1 {
                right -= 1;
                maximum = maximum.max(self.nodes[right]);
            }
            left /= 2;
            right /= 2;
        }
        maximum
    }
}

impl Intervals {
    fn new(list: Vec<Interval>) -> Self {
        let lengths = MaximumTree::new(list.iter().map(|interval| interval.ns()));
        Self { list, lengths }
    }

    /// The times between steps, and those before the first and behind the last one.
    fn between(mut steps: Vec<MonoNs>) -> Self {
        steps.sort_unstable();
        let begins = std::iter::once(MonoNs(0)).chain(steps.iter().copied());
        let ends = steps.iter().copied().chain(std::iter::once(MonoNs(u64::MAX)));
        let pauses = begins.zip(ends).map(|(from, to)| Interval { from, to });
        Self::new(pauses.filter(|pause| pause.ns() > 0).collect())
    }

    /// The times covered by any of these spans.
    fn covered_by(mut spans: Vec<Interval>) -> Self {
        spans.sort_unstable_by_key(|span| span.from);
        let mut covered: Vec<Interval> = Vec::new();
        for span in spans {
            match covered.last_mut().filter(|last| span.from <= last.to) {
                Some(last) => last.to = last.to.max(span.to),
                None => covered.push(span),
            }
        }
        Self::new(covered)
    }

    /// The times in both.
    fn common_with(&self, other: &Self) -> Self {
        let mut common = Vec::new();
        let mut rest = other.list.as_slice();
        for interval in &self.list {
            while let Some(next) = rest.first() {
                let both = interval.overlap(*next);
                if both.ns() > 0 {
                    common.push(both);
                }
                if next.to > interval.to {
                    break;
                }
                rest = &rest[1..];
            }
        }
        Self::new(common)
    }

    /// Length of the longest part of an interval in a span, in nanoseconds.
    fn longest_within(&self, span: Interval) -> u64 {
        let first = self.list.partition_point(|interval| interval.to <= span.from);
        let end = self.list.partition_point(|interval| interval.from < span.to);
        // Only the first and the last one may reach beyond the span.
        let Some([outermost_first, .., outermost_last]) = self.list.get(first..end).filter(|inside| inside.len() > 1)
        else {
            return self.list.get(first).map_or(0, |only| only.overlap(span).ns());
        };
        let outer_ns = outermost_first.overlap(span).ns().max(outermost_last.overlap(span).ns());
        outer_ns.max(self.lengths.of_range(first + 1, end - 1))
    }
}

/// Something that a scheduler has to do for a request.
struct Task {
    from: PairMoment,
    /// It ends at the first of these that is known.
    until: &'static [PairMoment],
    /// It lasts while its end is not known and its request has not ended.
    may_last: bool,
}

impl Task {
    fn span(&self, request: &ServerRequest<'_>, clock: ClockUse) -> Option<Interval> {
        let from = time_of(request, clock, self.from)?;
        let end = self.until.iter().find_map(|moment| time_of(request, clock, *moment));
        let to = end.or((self.may_last && request.is_open).then_some(MonoNs(u64::MAX)))?;
        Some(Interval { from, to }).filter(|span| span.ns() > 0)
    }
}

/// What shows the activity of a scheduler.
struct SchedulerSigns {
    steps: &'static [PairMoment],
    tasks: &'static [Task],
}

const PREFILL_SIGNS: SchedulerSigns = SchedulerSigns {
    steps: &[PrefillReceived, PrefillQueued, PrefillStarted, PrefillEnded, PrefillFrame],
    tasks: &[
        Task {
            from: PrefillRequest,
            until: &[PrefillReceived, PrefillQueued, PrefillStarted, PrefillEnded, PrefillFrame],
            may_last: true,
        },
        // Before its queue a request waits for the decode server's memory.
        Task { from: PrefillQueued, until: &[PrefillEnded, PrefillFrame], may_last: true },
    ],
};

const DECODE_SIGNS: SchedulerSigns = SchedulerSigns {
    steps: &[DecodeReceived, Allocated, DecodeQueued, DecodeBatch, DecodeFrame],
    tasks: &[
        Task {
            from: DecodeRequest,
            until: &[DecodeReceived, Allocated, DecodeQueued, DecodeBatch, DecodeFrame],
            may_last: true,
        },
        // Without an observed allocation it is not known when the request began to wait for the prefill server.
        Task { from: DecodeReceived, until: &[Allocated], may_last: false },
        Task { from: DecodeQueued, until: &[DecodeFrame, DecodeBatch], may_last: true },
    ],
};

/// A moment of a request on the decode server's clock, of a prefill server with this clock.
fn time_of(request: &ServerRequest<'_>, clock: ClockUse, moment: PairMoment) -> Option<MonoNs> {
    if moment.is_of_prefill() {
        request.prefill_time(moment).and_then(|at| clock.on_decode_clock(at))
    } else {
        request.decode_time(moment)
    }
}

/// When one scheduler did nothing for any request.
#[derive(Debug, Default)]
struct SchedulerActivity {
    pauses: Intervals,
    /// Parts of the pauses in which it had something to do.
    stops: Intervals,
}

impl SchedulerActivity {
    fn new(requests: &[ServerRequest<'_>], clock: ClockUse, signs: &SchedulerSigns) -> Self {
        let mut steps = Vec::new();
        let mut tasks = Vec::new();
        for request in requests {
            steps.extend(signs.steps.iter().filter_map(|moment| time_of(request, clock, *moment)));
            tasks.extend(signs.tasks.iter().filter_map(|task| task.span(request, clock)));
        }
        // Nothing shows that a scheduler without any step, or with times that cannot be compared, went on.
        let is_unknown = steps.is_empty();
        let pauses = Intervals::between(steps);
        let stops = if is_unknown { pauses.clone() } else { pauses.common_with(&Intervals::covered_by(tasks)) };
        Self { pauses, stops }
    }
}

/// The activity of all schedulers of a pair.
pub(super) struct PairActivity {
    decode: SchedulerActivity,
    prefill: Vec<SchedulerActivity>,
}

impl PairActivity {
    pub(super) fn new(pair: &Pair<'_>) -> Self {
        let limit = pair.finished_limit();
        let decode = ServerRequest::list(pair.decode_ledger(), limit);
        let prefill = pair
            .prefill_ledgers()
            .zip(pair.clock_uses())
            .map(|(ledger, clock)| SchedulerActivity::new(&ServerRequest::list(ledger, limit), *clock, &PREFILL_SIGNS));
        Self { decode: SchedulerActivity::new(&decode, ClockUse::Same, &DECODE_SIGNS), prefill: prefill.collect() }
    }

    fn of_side(&self, side: PairSide, prefill_server: usize) -> Option<&SchedulerActivity> {
        match side {
            PairSide::Prefill => self.prefill.get(prefill_server),
            PairSide::Decode => Some(&self.decode),
        }
    }

    /// Whether the scheduler of this side did nothing for more than half of a span although it had something to do.
    pub(super) fn has_stopped(&self, side: PairSide, prefill_server: usize, span: Interval) -> bool {
        self.of_side(side, prefill_server).is_none_or(|activity| takes_most(&activity.stops, span))
    }

    /// Whether it did nothing for more than half of a span.
    pub(super) fn has_paused(&self, side: PairSide, prefill_server: usize, span: Interval) -> bool {
        self.of_side(side, prefill_server).is_none_or(|activity| takes_most(&activity.pauses, span))
    }
}

fn takes_most(intervals: &Intervals, span: Interval) -> bool {
    intervals.longest_within(span) > span.ns() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals(spans: &[(u64, u64)]) -> Vec<Interval> {
        spans.iter().map(|&(from, to)| Interval { from: MonoNs(from), to: MonoNs(to) }).collect()
    }

    #[test]
    fn stops_are_the_parts_of_pauses_with_something_to_do() {
        let pauses = Intervals::between([30, 10, 10, 50].map(MonoNs).to_vec());
        assert_eq!(pauses.list, intervals(&[(0, 10), (10, 30), (30, 50), (50, u64::MAX)]));
        let tasks = Intervals::covered_by(intervals(&[(45, 60), (12, 14), (13, 20), (5, 8), (8, 9), (25, 35)]));
        assert_eq!(tasks.list, intervals(&[(5, 9), (12, 20), (25, 35), (45, 60)]));
        let stops = pauses.common_with(&tasks);
        assert_eq!(stops.list, intervals(&[(5, 9), (12, 20), (25, 30), (30, 35), (45, 50), (50, 60)]));
        assert_eq!(Intervals::default().common_with(&tasks).list, []);
    }

    #[test]
    fn the_longest_part_within_a_span_is_cut_at_its_ends() {
        let all = Intervals::new(intervals(&[(0, 10), (12, 30), (30, 34), (40, 90)]));
        let longest = |from, to| all.longest_within(Interval { from: MonoNs(from), to: MonoNs(to) });
        assert_eq!([longest(0, 100), longest(0, 50), longest(28, 44), longest(15, 20)], [50, 18, 4, 5]);
        assert_eq!([longest(10, 12), longest(90, 95), longest(34, 34), longest(8, 13)], [0, 0, 0, 2]);
    }

    #[test]
    fn a_scheduler_without_steps_is_not_known_to_go_on() {
        let activity = SchedulerActivity::new(&[], ClockUse::Drifting { by_ns: 1 }, &PREFILL_SIGNS);
        assert!(takes_most(&activity.stops, Interval { from: MonoNs(5), to: MonoNs(9) }));
    }

    /// The same by a scan.
    fn longest_by_scan(intervals: &[Interval], span: Interval) -> u64 {
        intervals.iter().map(|interval| interval.overlap(span).ns()).max().unwrap_or_default()
    }

    #[test]
    fn the_longest_part_is_that_of_a_scan() {
        for count in 0..20 {
            // Lengths and distances repeat after 7 and 5.
            let spans: Vec<(u64, u64)> = (0..count).map(|n| (20 * n + n % 5, 20 * n + 6 + 3 * n % 7)).collect();
            let all = Intervals::new(intervals(&spans));
            for from in 0..20 * count {
                for to in from..20 * count + 10 {
                    let span = Interval { from: MonoNs(from), to: MonoNs(to) };
                    assert_eq!(all.longest_within(span), longest_by_scan(&all.list, span), "{spans:?} {span:?}");
                }
            }
        }
    }

    /// A scan for each span would take minutes.
    #[test]
    fn a_hundred_thousand_overlapping_spans_are_searched_at_once() {
        const STEPS: u64 = 500_000;
        let pauses = Intervals::between((1..=STEPS).map(MonoNs).collect());
        let spans = (0..100_000).map(|from| Interval { from: MonoNs(from + 1), to: MonoNs(STEPS) });
        let began = std::time::Instant::now();
        assert!(spans.into_iter().all(|span| pauses.longest_within(span) == 1));
        assert!(began.elapsed() < std::time::Duration::from_secs(20));
    }
}
