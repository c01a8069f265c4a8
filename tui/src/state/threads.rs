//! Converts the engine's threads into lines: threads that receive frames first, then by CPU use.

use trace::event::AwayState;
use trace::ledger::{Ledger, Thread, TimeUse};
use trace::stats::WINDOW_NS;
use trace::{MonoNs, ThreadId};

/// Maximum number of threads shown.
const SHOWN: usize = 128;

/// Minimum share of time for a state to be shown.
const AWAY: f64 = 0.25;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ThreadLine {
    pub(crate) role: String,
    pub(crate) name: String,
    pub(crate) id: ThreadId,
    /// Set if it receives frames from a hop.
    pub(crate) receives: bool,
    /// The last ten seconds; `None` if it was not sampled in that time.
    pub(crate) recent: Option<Shares>,
    pub(crate) whole: Shares,
}

/// Breakdown of a time span into shares from 0 to 1. `None` means not observable.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Shares {
    pub(crate) running: f64,
    /// Runnable and within its quota, but without a CPU.
    pub(crate) waiting: Option<f64>,
    /// Throttled by the CPU quota of its cgroup.
    pub(crate) throttled: Option<f64>,
    /// Asleep.
    pub(crate) blocked: Option<f64>,
    /// State that kept the thread from running for at least a quarter of the time while frames waited for it.
    pub(crate) away: Option<AwayState>,
}

impl Shares {
    pub(crate) fn of(spent: &TimeUse) -> Self {
        let share = |ns| spent.share(ns);
        Self {
            running: share(spent.on_ns),
            waiting: spent.starved_ns().map(share),
            throttled: spent.throttled_ns().map(share),
            blocked: spent.blocked_ns().map(share),
            away: None,
        }
    }
}

/// The threads; `None` until one has been sampled.
pub(crate) fn read(ledger: &Ledger) -> Option<Vec<ThreadLine>> {
    let now = ledger.now();
    let mut lines: Vec<ThreadLine> = ledger.threads().iter().filter_map(|thread| line(thread, now)).collect();
    lines.sort_by(|a, b| b.receives.cmp(&a.receives).then(b.whole.running.total_cmp(&a.whole.running)));
    lines.truncate(SHOWN);
    (!lines.is_empty()).then_some(lines)
}

fn line(thread: &Thread, now: MonoNs) -> Option<ThreadLine> {
    let from = MonoNs(now.0.saturating_sub(WINDOW_NS));
    Some(ThreadLine {
        role: thread.role.to_string(),
        name: thread.name.to_string(),
        id: thread.id,
        receives: thread.is_receiver(),
        recent: thread
            .between(from, now)
            .map(|spent| Shares { away: away(thread, &spent, from, now), ..Shares::of(&spent) }),
        whole: Shares::of(&thread.total()?),
    })
}

/// Longest state that kept the thread from running. Sleep in a poll is left out, since such a thread is free even if a receive was missed.
fn away(thread: &Thread, spent: &TimeUse, from: MonoNs, now: MonoNs) -> Option<AwayState> {
    let times = thread.away(from, now);
    let states = [AwayState::Stopped, AwayState::Traced, AwayState::Frozen, AwayState::Blocked];
    let longest = states.into_iter().max_by_key(|state| times.of(*state))?;
    (spent.share(times.of(longest)) >= AWAY).then_some(longest)
}

#[cfg(test)]
mod tests {
    use trace::ThreadId;
    use trace::event::{CpuSample, ThreadPart, What};

    use super::*;
    use crate::state::scene::{MS, Scene};

    #[test]
    fn recent_shares_are_separate_from_those_of_the_whole_run() {
        let mut scene = Scene::delivering();
        assert_eq!(read(scene.analysis.ledger()), None);
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
        let lines = read(scene.analysis.ledger()).unwrap_or_default();
        let recent = lines[0].recent.unwrap_or_default();
        assert!((recent.running - 0.8).abs() < 0.02 && (lines[0].whole.running - 0.4).abs() < 0.02, "{lines:?}");
        assert!(recent.waiting.is_some_and(|w| (w - 0.1).abs() < 0.02) && recent.throttled.is_none(), "{recent:?}");
    }
}
