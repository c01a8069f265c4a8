//! Spans of time, and searches in many of them.

use crate::clock::MonoNs;

/// A span of time, on the decode server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) from: MonoNs,
    pub(super) to: MonoNs,
}

impl Interval {
    /// One point in time.
    pub(super) fn at(moment: MonoNs) -> Self {
        Self { from: moment, to: moment }
    }

    pub(super) fn ns(self) -> u64 {
        self.to.since(self.from)
    }

    /// The part in both. Without one, its length is 0.
    fn overlap(self, other: Self) -> Self {
        Self { from: self.from.max(other.from), to: self.to.min(other.to) }
    }
}

/// Intervals that do not overlap, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Intervals {
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
    /// Builds a tree over these numbers, which become the second half of its nodes. Each node in the first half is the maximum of its two
    /// children, as in a heap.
    fn new(numbers: impl ExactSizeIterator<Item = u64>) -> Self {
        let count = numbers.len();
        let mut nodes = vec![0; count];
        nodes.extend(numbers);
        // Backwards, so that the children of a node are set before it.
        for node in (1..count).rev() {
            nodes[node] = nodes[2 * node].max(nodes[2 * node + 1]);
        }
        Self { nodes }
    }

    /// Maximum of the numbers from `from_index` to before `end_index`; 0 if the range is empty.
    fn maximum_of_range(&self, from_index: usize, end_index: usize) -> u64 {
        let count = self.nodes.len() / 2;
        let mut left = from_index + count;
        let mut right = end_index + count;
        let mut maximum = 0;
        // Node n has the children 2n and 2n + 1, and is their maximum. Each step goes up one level of the tree.
        while left < right {
            // The first node is a right child. Its parent also covers a node before the range, so it counts by itself.
            if left % 2 == 1 {
                maximum = maximum.max(self.nodes[left]);
                left += 1;
            }
            // The last node is a left child. Its parent also covers a node behind the range, so it counts by itself.
            if right % 2 == 1 {
                right -= 1;
                maximum = maximum.max(self.nodes[right]);
            }
            // All other nodes count by their parents.
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
    pub(super) fn pauses_between(steps: Vec<Interval>) -> Self {
        let mut pauses = Vec::new();
        let mut pause_from = MonoNs(0);
        for step in Self::merged_from(steps).list {
            pauses.push(Interval { from: pause_from, to: step.from });
            pause_from = step.to;
        }
        pauses.push(Interval { from: pause_from, to: MonoNs(u64::MAX) });
        // Removes empty pauses, such as the first one if a step begins at time 0.
        pauses.retain(|pause| pause.ns() > 0);
        Self::new(pauses)
    }

    /// Merges spans that overlap or touch. The result covers the same times.
    pub(super) fn merged_from(mut spans: Vec<Interval>) -> Self {
        spans.sort_unstable_by_key(|span| span.from);
        let mut covered: Vec<Interval> = Vec::new();
        for span in spans {
            if let Some(last) = covered.last_mut()
                && span.from <= last.to
            {
                last.to = last.to.max(span.to);
            } else {
                covered.push(span);
            }
        }
        Self::new(covered)
    }

    /// The times that both lists of intervals cover.
    pub(super) fn intersection_with(&self, other: &Self) -> Self {
        let mut common = Vec::new();
        // Both lists are in order of time, so the other list is read once. What lies before the current interval is removed from
        // `remaining`.
        let mut remaining = other.list.as_slice();
        for interval in &self.list {
            while let Some(next) = remaining.first() {
                let overlap = interval.overlap(*next);
                if overlap.ns() > 0 {
                    common.push(overlap);
                }
                if next.to > interval.to {
                    // `next` may also overlap the following interval, so it remains.
                    break;
                }
                remaining = &remaining[1..];
            }
        }
        Self::new(common)
    }

    /// Length of the longest interval in a span, in nanoseconds. Intervals that reach beyond the span are cut at its ends.
    pub(super) fn longest_within_ns(&self, span: Interval) -> u64 {
        // The list is in order, so the intervals that overlap the span follow each other.
        let first = self.list.partition_point(|interval| interval.to <= span.from);
        let end = self.list.partition_point(|interval| interval.from < span.to);
        let inside = self.list.get(first..end).unwrap_or_default();
        let (Some(first_inside), Some(last_inside)) = (inside.first(), inside.last()) else { return 0 };
        // Only the first and the last interval may reach beyond the span. All between them are inside the span.
        let longest_at_ends_ns = first_inside.overlap(span).ns().max(last_inside.overlap(span).ns());
        let longest_between_ns = self.lengths.maximum_of_range(first + 1, end - 1);
        longest_at_ends_ns.max(longest_between_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals(spans: &[(u64, u64)]) -> Vec<Interval> {
        spans.iter().map(|&(from, to)| Interval { from: MonoNs(from), to: MonoNs(to) }).collect()
    }

    #[test]
    fn stops_are_the_parts_of_pauses_with_something_to_do() {
        let pauses = Intervals::pauses_between([30, 10, 10, 50].map(MonoNs).map(Interval::at).to_vec());
        assert_eq!(pauses.list, intervals(&[(0, 10), (10, 30), (30, 50), (50, u64::MAX)]));
        let steady = Intervals::pauses_between(intervals(&[(5, 5), (10, 30), (20, 40), (50, 50)]));
        assert_eq!(steady.list, intervals(&[(0, 5), (5, 10), (40, 50), (50, u64::MAX)]));
        let tasks = Intervals::merged_from(intervals(&[(45, 60), (12, 14), (13, 20), (5, 8), (8, 9), (25, 35)]));
        assert_eq!(tasks.list, intervals(&[(5, 9), (12, 20), (25, 35), (45, 60)]));
        let stops = pauses.intersection_with(&tasks);
        assert_eq!(stops.list, intervals(&[(5, 9), (12, 20), (25, 30), (30, 35), (45, 50), (50, 60)]));
        assert_eq!(Intervals::default().intersection_with(&tasks).list, []);
    }

    #[test]
    fn the_longest_part_within_a_span_is_cut_at_its_ends() {
        let all = Intervals::new(intervals(&[(0, 10), (12, 30), (30, 34), (40, 90)]));
        let longest = |from, to| all.longest_within_ns(Interval { from: MonoNs(from), to: MonoNs(to) });
        assert_eq!([longest(0, 100), longest(0, 50), longest(28, 44), longest(15, 20)], [50, 18, 4, 5]);
        assert_eq!([longest(10, 12), longest(90, 95), longest(34, 34), longest(8, 13)], [0, 0, 0, 2]);
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
                    assert_eq!(all.longest_within_ns(span), longest_by_scan(&all.list, span), "{spans:?} {span:?}");
                }
            }
        }
    }

    /// A scan for each span would take minutes.
    #[test]
    fn a_hundred_thousand_overlapping_spans_are_searched_at_once() {
        const STEPS: u64 = 500_000;
        let pauses = Intervals::pauses_between((1..=STEPS).map(MonoNs).map(Interval::at).collect());
        let spans = (0..100_000).map(|from| Interval { from: MonoNs(from + 1), to: MonoNs(STEPS) });
        let began = std::time::Instant::now();
        assert!(spans.into_iter().all(|span| pauses.longest_within_ns(span) == 1));
        assert!(began.elapsed() < std::time::Duration::from_secs(20));
    }
}
