//! Converts the engine's threads into lines: threads that receive frames first, then by CPU use.

use trace::event::AwayState;
use trace::ledger::{Ledger, Thread, TimeUse};
use trace::stats::RecentWindow;
use trace::{MonoNs, ThreadId};

/// Maximum number of threads shown.
const MAX_THREADS: usize = 128;

/// Minimum share of time for a state to be shown.
const MIN_AWAY_SHARE: f64 = 0.25;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ThreadLine {
    pub(crate) role: String,
    pub(crate) name: String,
    pub(crate) id: ThreadId,
    /// Set if it receives frames from a hop.
    pub(crate) is_receiver: bool,
    /// The window of current figures; `None` if it was not sampled in that time.
    pub(crate) recent: Option<TimeShares>,
    /// End of the last sample.
    pub(crate) last_sample_at: Option<MonoNs>,
    /// The whole run.
    pub(crate) total: TimeShares,
}

/// Breakdown of a time span into shares from 0 to 1. `None` means not observable.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TimeShares {
    pub(crate) running: f64,
    /// Waiting for a CPU, within its quota.
    pub(crate) waiting: Option<f64>,
    /// Throttled by the CPU quota of its cgroup.
    pub(crate) throttled: Option<f64>,
    /// Asleep.
    pub(crate) blocked: Option<f64>,
    /// State that kept the thread from running for at least a quarter of the time while frames waited for it.
    pub(crate) away: Option<AwayState>,
}

impl TimeShares {
    /// Shares of a time span that the thread spent on a CPU, starved (waiting for one), throttled by its quota, and asleep. [`Self::away`]
    /// stays empty, because it depends on the frames that waited for the thread, too.
    pub(crate) fn from_time_use(time: &TimeUse) -> Self {
        Self {
            running: time.share(time.on_ns),
            waiting: time.starved_ns().map(|ns| time.share(ns)),
            throttled: time.throttled_ns().map(|ns| time.share(ns)),
            blocked: time.blocked_ns().map(|ns| time.share(ns)),
            away: None,
        }
    }
}

/// Lines of the threads; `None` until one has been sampled.
pub(crate) fn thread_lines(ledger: &Ledger) -> Option<Vec<ThreadLine>> {
    let window = ledger.recent_window();
    let mut lines: Vec<ThreadLine> = ledger.threads().iter().filter_map(|thread| thread_line(thread, window)).collect();
    // Receivers first, then the busiest.
    lines.sort_by(|a, b| b.is_receiver.cmp(&a.is_receiver).then(b.total.running.total_cmp(&a.total.running)));
    // A process may have thousands of idle threads, which are cut off.
    lines.truncate(MAX_THREADS);
    (!lines.is_empty()).then_some(lines)
}

/// Line of a thread; `None` if it was never sampled. Its current figures are those of `window`.
fn thread_line(thread: &Thread, window: RecentWindow) -> Option<ThreadLine> {
    let total = thread.total()?;
    // `None` without a sample in the window.
    let time_in_window = thread.use_between(window.from, window.to);
    let recent = time_in_window.map(|time| {
        let away = longest_away_state(thread, &time, window);
        TimeShares { away, ..TimeShares::from_time_use(&time) }
    });
    Some(ThreadLine {
        role: thread.role.to_string(),
        name: thread.name.to_string(),
        id: thread.id,
        is_receiver: thread.is_receiver(),
        recent,
        last_sample_at: thread.last_sample_at(),
        total: TimeShares::from_time_use(&total),
    })
}

/// State that kept the thread from running longest while frames waited for it; `None` if that was less than [`MIN_AWAY_SHARE`] of the time.
/// Sleep in a poll does not count: there a thread is free, even if tokengap has missed a receive.
fn longest_away_state(thread: &Thread, time_in_window: &TimeUse, window: RecentWindow) -> Option<AwayState> {
    let away_times = thread.away_between(window.from, window.to);
    let states = [AwayState::Stopped, AwayState::Traced, AwayState::Frozen, AwayState::Blocked];
    let longest = states.into_iter().max_by_key(|state| away_times.time_in(*state))?;
    (time_in_window.share(away_times.time_in(longest)) >= MIN_AWAY_SHARE).then_some(longest)
}

#[cfg(test)]
mod tests {
    use trace::ThreadId;
    use trace::event::{CpuSample, ThreadPart, What};

    use super::*;
    use crate::state::tests::scene::{MS, Scene};

    #[test]
    fn recent_shares_are_separate_from_those_of_the_whole_run() {
        let mut scene = Scene::delivering();
        assert_eq!(thread_lines(scene.analysis.ledger()), None);
        for tenth in 1..=200 {
            let busy = tenth > 100;
            let sample = CpuSample {
                name: "python",
                part: ThreadPart::Other,
                wait_ns: Some(if busy { 10 * MS } else { 0 }),
                ..CpuSample::new(ThreadId { pid: 7, tid: 8 }, "tokenizer", 100 * MS, if busy { 80 * MS } else { 0 })
            };
            scene.emit(tenth * 100 * MS, What::Cpu(sample));
        }
        let lines = thread_lines(scene.analysis.ledger()).unwrap_or_default();
        let recent = lines[0].recent.unwrap_or_default();
        assert!((recent.running - 0.8).abs() < 0.02 && (lines[0].total.running - 0.4).abs() < 0.02, "{lines:?}");
        assert!(recent.waiting.is_some_and(|w| (w - 0.1).abs() < 0.02) && recent.throttled.is_none(), "{recent:?}");
    }
}
