//! Time series of a run: traffic and backlogs per time slot, in bounded memory. Counters are read only at the end of a slot, so frames and
//! tokens add no cost.

mod reading;
mod slot;

pub use slot::{HopSlot, HopSlotCounts, SlotCounts, SlotValues};

use serde::{Deserialize, Serialize};

use self::reading::Reading;
use crate::clock::MonoNs;
use crate::id::ThreadId;
use crate::ledger::Ledger;
use crate::stats::Series;

/// Length of a slot before the first halving.
const SLOT_NS: u64 = 1_000_000_000;

/// Time series of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct TimeSeries {
    max: usize,
    series: Option<Series<SlotValues>>,
    /// Counters at the start of the current slot.
    last: Reading,
    due: MonoNs,
}

impl TimeSeries {
    /// Creates an empty time series that keeps at most `most` slots.
    pub fn new(max: usize) -> Self {
        Self { max, series: None, last: Reading::default(), due: MonoNs(0) }
    }

    /// Closes slots that end before `now`. Call it before applying an event of that time.
    pub(crate) fn at(&mut self, now: MonoNs, ledger: &mut Ledger) {
        if now < self.due {
            return;
        }
        if let Some(series) = &mut self.series {
            self.last.add_threads(ledger);
            let running = self.last.moment(ledger);
            ledger.next_slot();
            self.last.advance(ledger, self.due);
            series.close(now, running, || self.last.moment(ledger));
            self.due = series.due();
        } else {
            let series = Series::new(now, SLOT_NS, self.max);
            self.due = series.due();
            self.series = Some(series);
        }
    }

    /// Whether indices and limits of a deserialized image are consistent.
    pub(crate) fn is_sound(&self) -> bool {
        self.series.as_ref().is_none_or(Series::is_sound)
    }

    /// Start of the first slot; `None` before the first event.
    pub fn begun(&self) -> Option<MonoNs> {
        self.series.as_ref().map(Series::begun)
    }

    /// Length of a slot in nanoseconds. The last one may be shorter.
    pub fn slot_ns(&self) -> u64 {
        self.series.as_ref().map_or(SLOT_NS, Series::width_ns)
    }

    /// All slots, oldest first; the last is the current, unfinished one.
    pub fn moments(&self, ledger: &Ledger) -> Vec<SlotValues> {
        let Some(series) = &self.series else {
            return Vec::new();
        };
        let mut moments = series.slots().to_vec();
        if ledger.now() > series.running_from() {
            moments.push(self.last.moment(ledger));
        }
        moments
    }

    /// Threads covered by [`SlotValues::threads`], in its order.
    pub fn threads(&self) -> impl Iterator<Item = ThreadId> + '_ {
        self.last.threads()
    }
}
