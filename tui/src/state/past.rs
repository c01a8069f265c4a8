//! Time series of a run, for its screen.

use std::collections::HashMap;

use outputs::report::{Chunks, Spread};
use trace::ledger::Ledger;
use trace::stats::PerSecond;
use trace::{Analysis, MonoNs, ThreadId};

use super::history::{History, HopSample, Sample, ThreadSample};
use super::threads::{self, Shares};

/// Time series of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Past {
    pub(crate) history: History<Sample>,
    /// By hop name.
    pub(crate) hops: HashMap<String, History<HopSample>>,
    pub(crate) threads: HashMap<ThreadId, History<ThreadSample>>,
    /// Merged and lost chunks at the start of the newest second.
    harm_before: Option<[u64; 2]>,
    /// Merged and lost chunks at the last update.
    harm: Option<[u64; 2]>,
}

impl Past {
    /// Keeps the maximum of each second. Also runs while the view is frozen. Rates and quantiles cover a window and are read once a second.
    pub(crate) fn remember(&mut self, analysis: &Analysis) {
        let ledger = analysis.ledger();
        let second = ledger.now().since(ledger.started().unwrap_or_default()) / 1_000_000_000;
        let observes_backlog = ledger.hops().iter().any(|h| h.capabilities().received);
        let backlog = observes_backlog.then(|| ledger.groups().iter().map(|g| g.backlog).sum::<u64>() as f64);
        let harm = harm(ledger);
        let same = second == self.history.newest() && !self.history.is_empty();
        let before = if same { self.harm_before } else { self.harm.or(self.harm_before) };
        self.harm_before = before.or(harm);
        self.harm = harm;
        let since = |place: usize| Some(harm?[place].saturating_sub(self.harm_before?[place]) as f64);
        let (merged, lost) = (since(0), since(1));
        if same {
            if let Some(sample) = self.history.newest_mut() {
                (sample.merged, sample.lost) = (merged, lost);
                sample.live = sample.live.max(ledger.live() as f64);
                sample.backlog = sample.backlog.zip(backlog).map(|(max, now)| max.max(now)).or(backlog);
            }
            for group in ledger.groups() {
                let sample = self.hops.get_mut(&group.name).and_then(History::newest_mut);
                if let Some(HopSample { backlog: Some(max), .. }) = sample {
                    *max = max.max(group.backlog as f32);
                }
            }
            return;
        }
        let flow = flow(ledger);
        let sample = Sample {
            tokens: flow.tokens,
            frames: flow.frames,
            live: ledger.live() as f64,
            backlog,
            gap_p99: Spread::recent(ledger.gap(), ledger.now()).map(|s| s.p99 as f64),
            merged,
            lost,
        };
        self.history.enter(second, sample);
        for (place, group) in ledger.groups().iter().enumerate() {
            let receives = ledger.members(place).any(|hop| hop.capabilities().received);
            let sample = HopSample {
                frames: group.rate.recent(ledger.now()).frames as f32,
                backlog: receives.then_some(group.backlog as f32),
                queue_wait_p99: Spread::recent(&group.queue_wait, ledger.now()).map(|s| s.p99 as f32),
            };
            // Copies the name only on first use.
            match self.hops.get_mut(&group.name) {
                Some(history) => history.enter(second, sample),
                None => self.hops.entry(group.name.clone()).or_default().enter(second, sample),
            }
        }
        self.remember_threads(ledger, second);
    }

    /// Adds the current second of each shown thread to its history.
    fn remember_threads(&mut self, ledger: &Ledger, second: u64) {
        let now = ledger.now();
        let from = MonoNs(now.0.saturating_sub(1_000_000_000));
        let shown = threads::read(ledger).unwrap_or_default();
        self.threads.retain(|id, _| shown.iter().any(|t| t.id == *id));
        let threads = ledger.threads().iter().filter(|t| shown.iter().any(|s| s.id == t.id));
        for thread in threads {
            let spent = thread.between(from, now).map(|spent| Shares::of(&spent));
            let sample = ThreadSample {
                running: spent.map(|s| s.running as f32),
                waiting: spent.and_then(|s| s.waiting).map(|share| share as f32),
                throttled: spent.and_then(|s| s.throttled).map(|share| share as f32),
            };
            self.threads.entry(thread.id).or_default().enter(second, sample);
        }
    }
}

/// Current rates of the scheduler's sends.
pub(super) fn flow(ledger: &Ledger) -> PerSecond {
    let origin = ledger.hops().iter().find(|hop| hop.origin).or_else(|| ledger.hops().first());
    origin.map(|hop| ledger.groups()[hop.group].rate.recent(ledger.now())).unwrap_or_default()
}

/// Chunks predicted to be merged, under the conditions of predicted drops.
pub(super) fn merged_predicted(ledger: &Ledger, chunks: &Chunks) -> Option<u64> {
    chunks.dropped_predicted.map(|_| ledger.totals().predicted.merged)
}

/// Merged and lost chunks so far: confirmed if deliveries are observable, else predicted.
fn harm(ledger: &Ledger) -> Option<[u64; 2]> {
    let chunks = Chunks::of(ledger);
    let confirmed = chunks.merged.zip(chunks.dropped_confirmed);
    confirmed.or(merged_predicted(ledger, &chunks).zip(chunks.dropped_predicted)).map(<[u64; 2]>::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::history::Metric;
    use crate::state::scene::{MS, Scene};

    #[test]
    fn history_seconds_keep_the_peak_backlog_and_count_losses_apart_from_merges() {
        let mut scene = Scene::delivering();
        let mut past = Past::default();
        scene.send(0, &[("a", 1, 1)]);
        scene.receive(MS, 0, 0);
        scene.tick(2 * MS);
        past.remember(&scene.analysis);
        for token in 2..29_u32 {
            scene.send((1_100 + u64::from(token)) * MS, &[("a", 1, token)]);
        }
        for (at, from) in [(1_000, 0), (1_200, 0), (1_800, 1)] {
            (from..28 * from).for_each(|seq| scene.receive(1_700 * MS, seq, 1));
            if from > 0 {
                scene.deliver(1_750 * MS, "a", 1, 28);
            }
            scene.tick(at * MS);
            past.remember(&scene.analysis);
        }
        let of = |metric: Metric<Sample>| past.history.series(metric, 1, 1, 1)[0];
        assert_eq!(of(|s| s.backlog), Some(27.0), "all were taken before the second was over");
        assert_eq!((of(|s| s.lost), of(|s| s.merged)), (Some(27.0), Some(0.0)));
        let hop = past.hops["scheduler->tokenizer"].series(|s| s.backlog.map(f64::from), 1, 1, 1);
        assert_eq!(hop, [Some(27.0)]);
    }
}
