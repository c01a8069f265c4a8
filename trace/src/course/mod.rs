//! How a run went: what passed and what waited in each slot of time, in bounded memory. Counters are read where a slot ends,
//! so that nothing is paid for by frame or token.

mod reading;
mod slot;

pub use slot::{HopSlot, Moment, Passed, PassedHop};

use serde::{Deserialize, Serialize};

use self::reading::Reading;
use crate::clock::MonoNs;
use crate::id::ThreadId;
use crate::ledger::Ledger;
use crate::stats::Series;

/// Length of a slot before the first halving.
const SLOT_NS: u64 = 1_000_000_000;

/// The slots of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Course {
    most: usize,
    series: Option<Series<Moment>>,
    /// What was read when the running slot began.
    last: Reading,
    due: MonoNs,
}

impl Course {
    /// Nothing seen yet; keeps at most `most` slots.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            series: None,
            last: Reading::default(),
            due: MonoNs(0),
        }
    }

    /// Tells the time before something is entered that happened then: closes the slots that are over.
    pub(crate) fn at(&mut self, now: MonoNs, ledger: &mut Ledger) {
        if now < self.due {
            return;
        }
        if let Some(series) = &mut self.series {
            self.last.meet(ledger);
            let running = self.last.moment(ledger);
            ledger.next_slot();
            self.last.advance(ledger, self.due);
            series.close(now, running, || self.last.moment(ledger));
            self.due = series.due();
        } else {
            let series = Series::new(now, SLOT_NS, self.most);
            self.due = series.due();
            self.series = Some(series);
        }
    }

    /// Whether an image's places and bounds are those that a run makes.
    pub(crate) fn is_sound(&self) -> bool {
        self.series.as_ref().is_none_or(Series::is_sound)
    }

    /// Begin of the first slot; `None` before anything was seen.
    pub fn begun(&self) -> Option<MonoNs> {
        self.series.as_ref().map(Series::begun)
    }

    /// Length of a slot in nanoseconds. The last one may be shorter.
    pub fn slot_ns(&self) -> u64 {
        self.series.as_ref().map_or(SLOT_NS, Series::width_ns)
    }

    /// All slots, oldest first; the last is the running one as it is now.
    pub fn moments(&self, ledger: &Ledger) -> Vec<Moment> {
        let Some(series) = &self.series else {
            return Vec::new();
        };
        let mut moments = series.slots().to_vec();
        if ledger.now() > series.running_from() {
            moments.push(self.last.moment(ledger));
        }
        moments
    }

    /// The threads that [`Moment::threads`] tells of, in its order.
    pub fn threads(&self) -> impl Iterator<Item = ThreadId> + '_ {
        self.last.threads()
    }
}
