//! Time series of a run: traffic and backlogs per time slot, in bounded memory. Counters are read only at the end of a slot, so frames and
//! tokens add no cost.

use crate::clock::MonoNs;
use crate::event::ThreadPart;
use crate::id::ThreadId;
use crate::ledger::{Ledger, Thread, TimeUse};
use crate::stats::{Series, Slot, Tally};

/// Length of a slot before the first halving.
const SLOT_NS: u64 = 1_000_000_000;
/// Maximum number of hop names with a series. Others count only in the totals.
const HOPS: usize = 32;
/// Maximum number of threads with a series: main threads and threads that receive frames, in the order first observed.
const THREADS: usize = 32;

/// Defines counters that are combined one by one.
macro_rules! counters {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $counter:ident,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name {
            $($(#[$doc])* pub $counter: u64,)+
        }

        impl $name {
            fn combine(self, other: Self, by: fn(u64, u64) -> u64) -> Self {
                Self { $($counter: by(self.$counter, other.$counter),)+ }
            }
        }
    };
}

counters! {
    /// Counters of one slot.
    SlotCounts {
        /// Requests that began.
        begun,
        /// Requests that finished.
        finished,
        /// Tokens sent by the scheduler.
        tokens_sent,
        /// Tokens received by the tokenizer.
        tokens_received,
        /// Tokens delivered to clients.
        tokens_delivered,
        /// Tokens proven lost.
        tokens_lost,
        /// Chunks sent by the scheduler.
        chunks_sent,
        /// Chunks merged into another chunk's delivery.
        chunks_merged,
        /// Chunks proven lost.
        chunks_dropped,
        /// Drops predicted from the known behaviour of the release.
        dropped_predicted,
        /// Observations missed by tokengap.
        events_missed,
    }
}

counters! {
    /// Traffic on the hops of one name in a slot.
    HopSlotCounts {
        /// Frames sent.
        frames_sent,
        /// Frames received.
        frames_received,
        /// Chunks in the sent frames.
        chunks,
        /// Bytes of the sent frames.
        bytes,
        /// Finished wakeups of the receivers.
        wakeups,
    }
}

/// The hops of one name in a slot.
#[derive(Clone, Debug, Default)]
pub struct HopSlot {
    /// Counters of the slot.
    pub passed: HopSlotCounts,
    /// In frames.
    pub backlog_max: u64,
    /// Largest sample of the bytes in kernel queues; `None` without a sample.
    pub kernel_bytes_max: Option<u64>,
    /// Received minus sent, of the received frames.
    pub queue_wait: Tally,
}

/// All values of one slot.
#[derive(Clone, Debug, Default)]
pub struct SlotValues {
    /// Counters of the slot.
    pub passed: SlotCounts,
    /// Live requests at its end; for joined slots the maximum.
    pub live: u64,
    /// Gaps that ended.
    pub gap: Tally,
    /// Indexed as [`Ledger::groups`]; hops first observed later are missing at the end.
    pub hops: Vec<HopSlot>,
    /// Indexed as [`TimeSeries::threads`]; `None` without samples.
    pub threads: Vec<Option<TimeUse>>,
}

impl Slot for SlotValues {
    fn join(&mut self, next: Self) {
        self.passed = self.passed.combine(next.passed, u64::saturating_add);
        self.live = self.live.max(next.live);
        self.gap.add(&next.gap);
        if self.hops.len() < next.hops.len() {
            self.hops.resize_with(next.hops.len(), HopSlot::default);
        }
        for (hop, next) in self.hops.iter_mut().zip(next.hops) {
            hop.passed = hop.passed.combine(next.passed, u64::saturating_add);
            hop.backlog_max = hop.backlog_max.max(next.backlog_max);
            hop.kernel_bytes_max = hop.kernel_bytes_max.max(next.kernel_bytes_max);
            hop.queue_wait.add(&next.queue_wait);
        }
        if self.threads.len() < next.threads.len() {
            self.threads.resize(next.threads.len(), None);
        }
        for (thread, next) in self.threads.iter_mut().zip(next.threads) {
            *thread = match (*thread, next) {
                (Some(a), Some(b)) => Some(a.plus(b)),
                (a, b) => a.or(b),
            };
        }
    }
}

/// The ledger's counters at one instant; a slot is the difference of two.
#[derive(Debug, Default)]
struct Reading {
    at: MonoNs,
    passed: SlotCounts,
    hops: Vec<HopSlotCounts>,
    threads: Vec<(ThreadId, TimeUse)>,
}

impl Reading {
    /// Difference between the ledger now and this reading.
    fn moment(&self, ledger: &Ledger) -> SlotValues {
        let groups = ledger.groups().iter().take(HOPS).enumerate();
        SlotValues {
            passed: passed(ledger).combine(self.passed, u64::saturating_sub),
            live: ledger.live(),
            gap: ledger.gap_slot().tally(),
            hops: groups
                .map(|(place, group)| HopSlot {
                    passed: passed_hop(ledger, place)
                        .combine(self.hops.get(place).copied().unwrap_or_default(), u64::saturating_sub),
                    backlog_max: group.backlog_slot,
                    kernel_bytes_max: group.kernel.max_between(self.at, MonoNs(u64::MAX)),
                    queue_wait: group.queue_wait_slot.tally(),
                })
                .collect(),
            threads: self.threads.iter().map(|&(id, since)| spent(ledger, id, since)).collect(),
        }
    }

    /// Reads the counters for a slot that begins at `from`.
    fn advance(&mut self, ledger: &Ledger, from: MonoNs) {
        self.at = from;
        self.passed = passed(ledger);
        self.hops = (0..ledger.groups().len().min(HOPS)).map(|place| passed_hop(ledger, place)).collect();
        for (id, last) in &mut self.threads {
            if let Some(total) = ledger.thread(*id).and_then(Thread::total) {
                *last = total;
            }
        }
    }

    /// Adds threads first observed in the slot that ends, since their samples began in it.
    fn add_threads(&mut self, ledger: &Ledger) {
        let is_relevant = |t: &&Thread| t.total().is_some() && (t.is_receiver() || t.part == Some(ThreadPart::Main));
        for thread in ledger.threads().iter().filter(is_relevant) {
            if self.threads.len() < THREADS && self.threads.iter().all(|t| t.0 != thread.id) {
                self.threads.push((thread.id, TimeUse::default()));
            }
        }
    }
}

fn passed(ledger: &Ledger) -> SlotCounts {
    let totals = ledger.totals();
    SlotCounts {
        begun: totals.requests.seen,
        finished: totals.requests.finished,
        tokens_sent: totals.tokens.sent,
        tokens_received: totals.tokens.received,
        tokens_delivered: totals.tokens.delivered,
        tokens_lost: totals.chunks.outcomes.tokens_lost,
        chunks_sent: totals.chunks.sent,
        chunks_merged: totals.chunks.outcomes.merged,
        chunks_dropped: totals.chunks.outcomes.dropped,
        dropped_predicted: totals.predicted.dropped,
        events_missed: totals.missed.reported(),
    }
}

fn passed_hop(ledger: &Ledger, place: usize) -> HopSlotCounts {
    let mut sum = HopSlotCounts { wakeups: ledger.groups()[place].wakeups.count(), ..HopSlotCounts::default() };
    for counts in ledger.members(place).map(|hop| hop.counts) {
        sum.frames_sent += counts.frames_sent;
        sum.frames_received += counts.frames_received;
        sum.chunks += counts.chunks;
        sum.bytes += counts.bytes;
    }
    sum
}

fn spent(ledger: &Ledger, id: ThreadId, since: TimeUse) -> Option<TimeUse> {
    let spent = ledger.thread(id)?.total()?.minus(since);
    (spent.interval_ns > 0).then_some(spent)
}

/// Time series of a run.
#[derive(Debug)]
pub struct TimeSeries {
    max: usize,
    series: Option<Series<SlotValues>>,
    /// Counters at the start of the current slot.
    last: Reading,
    due: MonoNs,
}

impl TimeSeries {
    /// Creates an empty time series that keeps at most `most` slots.
    pub(crate) fn new(max: usize) -> Self {
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

    /// Start of the first slot; `None` before the first event.
    pub fn begun(&self) -> Option<MonoNs> {
        self.series.as_ref().map(Series::begun)
    }

    /// The last slot may be shorter.
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
        self.last.threads.iter().map(|t| t.0)
    }
}
