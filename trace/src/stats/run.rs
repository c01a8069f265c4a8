//! Batches consecutive equal durations into one histogram update.

use super::Distribution;
use crate::clock::MonoNs;

/// Pending duration with its count. All requests in a scheduler step continue from the previous step, so most chunks of a frame have the
/// same duration.
#[derive(Debug, Default)]
pub(crate) struct Run {
    ns: u64,
    times: u64,
}

impl Run {
    /// Records a duration `times` times, now or together with the following equal ones. All end at `at`.
    pub(crate) fn record_n(&mut self, to: &mut Distribution, at: MonoNs, ns: u64, times: u64) {
        if ns != self.ns {
            self.end(to, at);
            self.ns = ns;
        }
        self.times += times;
    }

    /// Records the pending duration.
    pub(crate) fn end(&mut self, to: &mut Distribution, at: MonoNs) {
        if self.times > 0 {
            to.record_n(at, self.ns, self.times);
            self.times = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn recording_a_run_equals_recording_each_value(values in prop::collection::vec((0_u64..4, 1_u64..3), 0..60)) {
            let (at, mut run) = (MonoNs(7), Run::default());
            let (mut together, mut single) = (Distribution::default(), Distribution::default());
            for &(ns, times) in &values {
                run.record_n(&mut together, at, ns, times);
                (0..times).for_each(|_| single.record(at, ns));
            }
            run.end(&mut together, at);
            let numbers = |d: &Distribution| (d.count(), d.sum(), d.max(), d.classes(), d.recent(at).len());
            prop_assert_eq!(numbers(&together), numbers(&single));
        }
    }
}
