//! A thread's time use as running sums at the end of each sample. The use in an interval is the difference of two sums.

use std::collections::VecDeque;

use crate::clock::MonoNs;
use crate::event::CpuSample;

/// Time use of a thread over an interval, in nanoseconds. `None`: not observable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeUse {
    /// Length of the interval, as far as samples cover it.
    pub interval_ns: u64,
    /// On a CPU.
    pub on_ns: u64,
    /// Waiting for a CPU, with time throttled by a quota.
    pub wait_ns: Option<u64>,
    /// Throttled time of its cgroup, summed over CPUs.
    pub throttled_ns: Option<u64>,
    /// From receiving a frame to asking for the next one.
    pub processing_ns: u64,
}

impl From<&CpuSample<'_>> for TimeUse {
    fn from(sample: &CpuSample<'_>) -> Self {
        let CpuSample { interval_ns, on_ns, wait_ns, throttled_ns, .. } = *sample;
        Self { interval_ns, on_ns, wait_ns, throttled_ns, processing_ns: 0 }
    }
}

impl TimeUse {
    /// `ns` as a share of the interval, from 0 to 1.
    pub fn share(&self, ns: u64) -> f64 {
        (ns as f64 / self.interval_ns.max(1) as f64).min(1.0)
    }

    /// Time throttled by the quota. Capped at the thread's own wait, because the cgroup's sum includes other CPUs.
    pub fn throttled_ns(&self) -> Option<u64> {
        let max = self.wait_ns.unwrap_or(self.interval_ns.saturating_sub(self.on_ns));
        self.throttled_ns.map(|throttled| throttled.min(max))
    }

    /// Time waiting for a CPU and not throttled.
    pub fn starved_ns(&self) -> Option<u64> {
        self.wait_ns.map(|wait| wait - self.throttled_ns().unwrap_or(0))
    }

    /// Time asleep: in its poll, on a lock, in I/O.
    pub fn blocked_ns(&self) -> Option<u64> {
        self.wait_ns.map(|_| self.interval_ns.saturating_sub(self.wanted_ns()))
    }

    /// Time on a CPU or, if known, waiting for one.
    pub fn wanted_ns(&self) -> u64 {
        self.on_ns.saturating_add(self.wait_ns.unwrap_or(0))
    }

    /// Sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.combine_with(other, u64::saturating_add)
    }

    pub(crate) fn minus(self, earlier: Self) -> Self {
        self.combine_with(earlier, u64::saturating_sub)
    }

    /// The times of both, each combined with its counterpart by this function.
    fn combine_with(self, other: Self, combine: fn(u64, u64) -> u64) -> Self {
        Self {
            interval_ns: combine(self.interval_ns, other.interval_ns),
            on_ns: combine(self.on_ns, other.on_ns),
            wait_ns: combine_known(self.wait_ns, other.wait_ns, combine),
            throttled_ns: combine_known(self.throttled_ns, other.throttled_ns, combine),
            processing_ns: combine(self.processing_ns, other.processing_ns),
        }
    }

    /// Each time multiplied by this share.
    fn scaled_by(self, share: f64) -> Self {
        Self {
            interval_ns: scale_ns(self.interval_ns, share),
            on_ns: scale_ns(self.on_ns, share),
            wait_ns: self.wait_ns.map(|ns| scale_ns(ns, share)),
            throttled_ns: self.throttled_ns.map(|ns| scale_ns(ns, share)),
            processing_ns: scale_ns(self.processing_ns, share),
        }
    }
}

/// Combines two times; `None` if neither is known. One that is known on one side only counts as 0 on the other: a quota may be set during
/// the run.
fn combine_known(first_ns: Option<u64>, second_ns: Option<u64>, combine: fn(u64, u64) -> u64) -> Option<u64> {
    if first_ns.is_none() && second_ns.is_none() {
        return None;
    }
    Some(combine(first_ns.unwrap_or(0), second_ns.unwrap_or(0)))
}

fn scale_ns(ns: u64, share: f64) -> u64 {
    (ns as f64 * share) as u64
}

/// Running sums, oldest first. The first mark is the start of the first sample.
#[derive(Clone, Debug, Default)]
pub(crate) struct TimeUseTimeline {
    marks: VecDeque<TimeUseMark>,
}

/// Sums of all samples up to a time.
#[derive(Clone, Copy, Debug)]
struct TimeUseMark {
    at: MonoNs,
    sums: TimeUse,
}

impl TimeUseTimeline {
    /// Adds a mark: the sums at the end of a sample, which began at the previous mark. Removes samples that ended more than `kept_ns` ago,
    /// and the oldest ones beyond `max_samples`.
    pub(crate) fn push_sums(&mut self, at: MonoNs, sums: TimeUse, kept_ns: u64, max_samples: usize) {
        if self.marks.back().is_some_and(|last| last.at >= at) {
            // Out of order. The sums of the next sample include this one.
            return;
        }
        // The oldest sample begins with the first mark and ends with the second one.
        while let Some(first_end) = self.marks.get(1).map(|mark| mark.at) {
            let is_full = self.marks.len() > max_samples.max(1);
            if !is_full && at.since(first_end) <= kept_ns {
                break;
            }
            self.marks.pop_front();
        }
        self.marks.push_back(TimeUseMark { at, sums });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    pub(crate) fn last_sample_end(&self) -> Option<MonoNs> {
        self.marks.back().map(|mark| mark.at)
    }

    /// How the thread spent the time between two instants, as far as samples cover it; `None` if they cover nothing. Within a sample, time
    /// is assumed to be spent evenly.
    pub(crate) fn use_between(&self, from: MonoNs, to: MonoNs) -> Option<TimeUse> {
        if from >= to {
            return None;
        }
        let spent = self.sums_at(to)?.minus(self.sums_at(from)?);
        (spent.interval_ns > 0).then_some(spent)
    }

    /// Sums at any time. Within a sample, the thread is assumed to have run evenly. Outside of the kept samples, the nearest known sums.
    /// `None` without samples.
    fn sums_at(&self, at: MonoNs) -> Option<TimeUse> {
        let next = self.marks.partition_point(|mark| mark.at <= at);
        let Some(before) = next.checked_sub(1).and_then(|index| self.marks.get(index)) else {
            // Before the first sample.
            return self.marks.front().map(|mark| mark.sums);
        };
        let Some(after) = self.marks.get(next) else {
            // After the last one.
            return Some(before.sums);
        };
        let interval_ns = after.at.since(before.at).max(1);
        let elapsed_share = at.since(before.at) as f64 / interval_ns as f64;
        let whole_sample = after.sums.minus(before.sums);
        Some(before.sums.plus(whole_sample.scaled_by(elapsed_share)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn line(shares: &[u64]) -> TimeUseTimeline {
        let mut line = TimeUseTimeline::default();
        let mut sums = TimeUse { wait_ns: Some(0), ..TimeUse::default() };
        line.push_sums(MonoNs(0), sums, u64::MAX, usize::MAX);
        for (n, on) in shares.iter().enumerate() {
            sums.interval_ns += 100 * MS;
            sums.on_ns += on * MS;
            sums.wait_ns = sums.wait_ns.map(|w| w + (100 - on) * MS / 2);
            line.push_sums(MonoNs((n as u64 + 1) * 100 * MS), sums, u64::MAX, usize::MAX);
        }
        line
    }

    /// A recording may contain any times, so sums must not overflow.
    #[test]
    fn impossible_times_saturate() {
        let spent = TimeUse { interval_ns: 5, on_ns: u64::MAX, wait_ns: Some(u64::MAX), ..TimeUse::default() };
        assert_eq!((spent.wanted_ns(), spent.blocked_ns()), (u64::MAX, Some(0)));
        assert_eq!(spent.plus(spent).wanted_ns(), u64::MAX);
    }

    #[test]
    fn samples_are_split_at_the_ends_of_an_interval() {
        let line = line(&[100, 0, 50]);
        let spent = line.use_between(MonoNs(50 * MS), MonoNs(250 * MS)).unwrap();
        assert_eq!((spent.interval_ns, spent.on_ns), (200 * MS, 75 * MS));
        assert_eq!(spent.wait_ns, Some(62 * MS + MS / 2));
        assert_eq!(spent.blocked_ns(), Some(62 * MS + MS / 2));
        assert_eq!(line.use_between(MonoNs(400 * MS), MonoNs(500 * MS)), None, "no sample covers it");
    }

    #[test]
    fn throttling_on_other_cpus_is_not_attributed_to_the_thread() {
        let spent =
            TimeUse { interval_ns: 100, on_ns: 40, wait_ns: Some(50), throttled_ns: Some(180), processing_ns: 0 };
        assert_eq!((spent.throttled_ns(), spent.starved_ns()), (Some(50), Some(0)));
        assert_eq!(TimeUse { throttled_ns: None, ..spent }.starved_ns(), Some(50));
    }

    #[test]
    fn old_marks_are_evicted() {
        let mut line = TimeUseTimeline::default();
        for n in 0..1000 {
            line.push_sums(MonoNs(n * 100 * MS), TimeUse::default(), 1_000 * MS, 50);
        }
        assert!(line.marks.len() <= 12, "{}", line.marks.len());
        line.push_sums(MonoNs(0), TimeUse::default(), 1_000 * MS, 50);
        assert_eq!(line.last_sample_end(), Some(MonoNs(999 * 100 * MS)), "an older sample changes nothing");
    }

    proptest! {
        #[test]
        fn adjacent_intervals_add_up(shares in prop::collection::vec(0u64..=100, 1..40), a in 0u64..4_000, b in 0u64..4_000) {
            let line = line(&shares);
            let end = shares.len() as u64 * 100;
            let (a, b) = (a.min(b).min(end), a.max(b).min(end));
            let part = |from: u64, to: u64| line.use_between(MonoNs(from * MS), MonoNs(to * MS)).unwrap_or_default();
            let sum = part(0, a).plus(part(a, b)).plus(part(b, end));
            let whole = part(0, end);
            prop_assert!(sum.on_ns.abs_diff(whole.on_ns) <= 6, "{sum:?} {whole:?}");
            prop_assert!(sum.interval_ns.abs_diff(whole.interval_ns) <= 6);
        }
    }
}
