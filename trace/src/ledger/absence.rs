//! Why a receiver's thread did not run while frames waited for it.

use std::collections::VecDeque;

use super::limits::push_bounded;
use super::time_use::TimeUse;
use crate::clock::MonoNs;
use crate::event::{Away, AwayState, CpuSample};

/// Maximum number of stretches kept per thread. Consecutive samples with the same state form one stretch.
const MAX_ABSENCES: usize = 128;

/// Nanoseconds for which a thread neither ran nor waited for a CPU, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AwayTimes {
    /// Indexed by [`AwayState`].
    ns_by_state: [u64; AwayState::ALL.len()],
}

impl AwayTimes {
    /// Time in one state.
    pub fn time_in(&self, state: AwayState) -> u64 {
        self.ns_by_state[state as usize]
    }

    /// Total time in these states.
    pub(crate) fn time_in_any(&self, states: &[AwayState]) -> u64 {
        states.iter().fold(0, |sum, state| sum.saturating_add(self.time_in(*state)))
    }

    /// Sum of both, state by state.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        for (sum, ns) in self.ns_by_state.iter_mut().zip(other.ns_by_state) {
            *sum = sum.saturating_add(ns);
        }
        self
    }

    fn add_time(&mut self, state: AwayState, ns: u64) {
        let sum = &mut self.ns_by_state[state as usize];
        *sum = sum.saturating_add(ns);
    }

    /// Adds the time that the thread slept in the sample's interval to the state in which it was at the end. Nothing is added for a sample
    /// without such a state.
    pub(super) fn add_sleep_of_sample(&mut self, sample: &CpuSample<'_>) {
        if let Some(away) = sample.away {
            self.add_time(away.state, asleep_ns(sample));
        }
    }
}

fn asleep_ns(sample: &CpuSample<'_>) -> u64 {
    sample.interval_ns.saturating_sub(TimeUse::from(sample).wanted_ns())
}

/// Consecutive samples with the same state and place.
#[derive(Clone, Debug)]
struct Absence {
    from: MonoNs,
    to: MonoNs,
    /// Time neither on a CPU nor waiting for one.
    asleep_ns: u64,
    state: AwayState,
    place: Box<str>,
}

impl Absence {
    /// Whether a sample that begins at `sample_from` continues this stretch: without a pause, in the same state and at the same place.
    fn is_continued_by_sample(&self, sample_from: MonoNs, interval_ns: u64, away: Away<'_>) -> bool {
        // Samples are not exactly as far apart as their intervals are long, so half an interval between them is no pause.
        let follows_at_once = sample_from.since(self.to) <= interval_ns / 2;
        follows_at_once && self.state == away.state && *self.place == *away.place
    }

    /// Part of its sleep between `from` and `to`, assumed to be spread evenly over the stretch.
    fn asleep_ns_between(&self, from: MonoNs, to: MonoNs) -> u64 {
        let overlap_ns = self.to.min(to).since(self.from.max(from));
        // A stretch without length must not divide by zero.
        let length_ns = self.to.since(self.from).max(1);
        let share = overlap_ns as f64 / length_ns as f64;
        (self.asleep_ns as f64 * share) as u64
    }
}

/// A time in which a thread was not allowed to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspension {
    /// `Stopped`, `Traced` or `Frozen`.
    pub(crate) state: AwayState,
    pub(crate) from: MonoNs,
    pub(crate) ns: u64,
}

/// Latest stretches of one thread, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Absences {
    stretches: VecDeque<Absence>,
}

impl Absences {
    /// Adds a CPU sample whose interval ends at `sample_end`: it extends the last stretch, or begins a new one. A stretch is a run of
    /// samples in which the thread slept in one state at one place. Without a state (`away`), a sample adds nothing.
    pub(crate) fn add_sleep_sample(&mut self, sample_end: MonoNs, sample: &CpuSample<'_>) {
        let Some(away) = sample.away else { return };
        let from = MonoNs(sample_end.0.saturating_sub(sample.interval_ns));
        let asleep_ns = asleep_ns(sample);
        if let Some(last) = self.stretches.back_mut()
            && last.is_continued_by_sample(from, sample.interval_ns, away)
        {
            last.to = last.to.max(sample_end);
            last.asleep_ns = last.asleep_ns.saturating_add(asleep_ns);
            return;
        }
        let absence = Absence { from, to: sample_end, asleep_ns, state: away.state, place: away.place.into() };
        push_bounded(&mut self.stretches, absence, MAX_ABSENCES);
    }

    /// Time in each state between `from` and `to`.
    pub(crate) fn sleep_times_between(&self, from: MonoNs, to: MonoNs) -> AwayTimes {
        let mut times = AwayTimes::default();
        for stretch in &self.stretches {
            times.add_time(stretch.state, stretch.asleep_ns_between(from, to));
        }
        times
    }

    /// The stop or freeze that lasted at the sample taken at `last_sample_at`, which is the thread's last one.
    pub(super) fn suspension_at(&self, last_sample_at: MonoNs) -> Option<Suspension> {
        let last = self.stretches.back().filter(|last| last.to == last_sample_at)?;
        let is_suspended = matches!(last.state, AwayState::Stopped | AwayState::Traced | AwayState::Frozen);
        // The thread may have run in the first of the samples.
        let from = MonoNs(last.to.0.saturating_sub(last.asleep_ns));
        is_suspended.then_some(Suspension { state: last.state, from, ns: last.asleep_ns })
    }

    /// Where the thread slept longest between `from` and `to` while in `state`, such as the name of a system call; empty if unknown.
    pub(crate) fn longest_sleep_place(&self, state: AwayState, from: MonoNs, to: MonoNs) -> &str {
        // A list, not a map: it keeps the order of the absences, so of several places with the same time each call returns the same one.
        let mut ns_by_place: Vec<(&str, u64)> = Vec::new();
        for absence in self.stretches.iter().filter(|absence| absence.state == state) {
            let ns = absence.asleep_ns_between(from, to);
            match ns_by_place.iter_mut().find(|(place, _)| *place == &*absence.place) {
                Some((_, sum)) => *sum = sum.saturating_add(ns),
                None => ns_by_place.push((&absence.place, ns)),
            }
        }
        let longest = ns_by_place.into_iter().filter(|(_, ns)| *ns > 0).max_by_key(|(_, ns)| *ns);
        longest.map_or("", |(place, _)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ThreadId;

    const MS: u64 = 1_000_000;

    fn sample(on_ms: u64, away: Option<(AwayState, &'static str)>) -> CpuSample<'static> {
        CpuSample {
            name: "python3",
            wait_ns: Some(0),
            away: away.map(|(state, place)| Away { state, place }),
            ..CpuSample::new(ThreadId { pid: 1, tid: 1 }, "tokenizer", 100 * MS, on_ms * MS)
        }
    }

    #[test]
    fn a_lasting_state_is_one_stretch_and_can_be_queried_in_part() {
        let mut absences = Absences::default();
        for n in 1..=50 {
            absences.add_sleep_sample(MonoNs(n * 100 * MS), &sample(0, Some((AwayState::Stopped, ""))));
        }
        assert_eq!(absences.stretches.len(), 1);
        let times = absences.sleep_times_between(MonoNs(1_000 * MS), MonoNs(2_000 * MS));
        assert_eq!(times.time_in(AwayState::Stopped), 1_000 * MS);
        assert_eq!(times.time_in_any(AwayState::ALL), 1_000 * MS);
    }

    #[test]
    fn place_returns_the_call_with_the_most_time() {
        let mut absences = Absences::default();
        let blocked = |place| Some((AwayState::Blocked, place));
        absences.add_sleep_sample(MonoNs(100 * MS), &sample(10, blocked("futex")));
        absences.add_sleep_sample(MonoNs(200 * MS), &sample(0, None));
        absences.add_sleep_sample(MonoNs(300 * MS), &sample(80, blocked("read")));
        let all = (MonoNs(0), MonoNs(300 * MS));
        assert_eq!(absences.longest_sleep_place(AwayState::Blocked, all.0, all.1), "futex");
        assert_eq!(absences.longest_sleep_place(AwayState::Polling, all.0, all.1), "");
        assert_eq!(absences.sleep_times_between(all.0, all.1).time_in(AwayState::Blocked), 110 * MS);
    }

    #[test]
    fn memory_is_bounded() {
        let mut absences = Absences::default();
        for n in 1..=1_000 {
            let place = if n % 2 == 0 { "futex" } else { "read" };
            absences.add_sleep_sample(MonoNs(n * 100 * MS), &sample(0, Some((AwayState::Blocked, place))));
        }
        assert_eq!(absences.stretches.len(), MAX_ABSENCES);
    }
}
