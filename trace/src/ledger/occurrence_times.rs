//! When a problem occurred.

use crate::clock::MonoNs;

/// First and last time of a problem; `None` before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OccurrenceTimes {
    /// Start of the first occurrence.
    pub first: Option<MonoNs>,
    /// End of the last occurrence.
    pub last: Option<MonoNs>,
}

impl OccurrenceTimes {
    pub(crate) fn record(&mut self, at: MonoNs) {
        self.record_span(at, at);
    }

    /// Records an occurrence from `start` to `end`. Occurrences may be reported in any order.
    pub(crate) fn record_span(&mut self, start: MonoNs, end: MonoNs) {
        self.first = Some(self.first.map_or(start, |first| first.min(start)));
        self.last = self.last.max(Some(end));
    }
}
