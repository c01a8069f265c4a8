//! Time series of a run: traffic and backlogs per second, in bounded memory. Counters are read once a second, so frames add no cost.
//! The whole run is kept in slots that are joined when there are too many, and the last hour second by second for screen and report.

mod late_counts;

use std::collections::VecDeque;
use std::sync::Arc;

use late_counts::LateCounts;

use crate::clock::MonoNs;
use crate::event::ThreadPart;
use crate::id::ThreadId;
use crate::ledger::{Ledger, Thread, TimeUse};
use crate::stats::{RecentWindow, Series, SeriesSlot, Tally};

/// Length of a slot before the first joining.
const SLOT_NS: u64 = 1_000_000_000;
/// Maximum number of hop names with a series. Others count only in the totals.
const MAX_HOPS: usize = 32;
/// Maximum number of threads with a series: main threads and those that receive frames, first ones first. The others have the same limit.
const MAX_THREADS: usize = 32;

/// Defines counters that are combined one by one.
macro_rules! counters {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $counter:ident,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$doc])* pub $counter: u64,)+
        }

        impl $name {
            /// The counters of both, each combined with its counterpart by this function.
            fn combine_with(self, other: Self, combine: fn(u64, u64) -> u64) -> Self {
                Self { $($counter: combine(self.$counter, other.$counter),)+ }
            }
        }
    };
}

counters! {
    /// Counters of one slot.
    SlotCounts {
        /// Requests seen for the first time.
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
        /// Chunks predicted to be lost, from the known behaviour of the release.
        dropped_predicted,
        /// Chunks predicted to be merged.
        merged_predicted,
        /// Observations missed by tokengap.
        events_missed,
    }
}

counters! {
    /// Traffic on the hops of one name in a slot.
    HopSlotCounts {
        /// Frames that entered the hop.
        frames_sent,
        /// Frames received.
        frames_received,
        /// Chunks in the frames.
        chunks,
        /// Bytes of the frames.
        bytes,
        /// Finished wakeups of the receivers.
        wakeups,
    }
}

/// The hops of one name in a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HopSlot {
    /// Traffic.
    pub passed: HopSlotCounts,
    /// Largest backlog, in frames.
    pub backlog_max: u64,
    /// Largest sample of the bytes in kernel queues; `None` without a sample.
    pub kernel_bytes_max: Option<u64>,
    /// Received minus sent, of the received frames.
    pub queue_wait: Tally,
    /// Its receives were not observed any more.
    pub receives_ended: bool,
}

impl HopSlot {
    /// Adds the values of the hops in the following slot.
    fn join_next(&mut self, next: &Self) {
        self.passed = self.passed.combine_with(next.passed, u64::saturating_add);
        self.backlog_max = self.backlog_max.max(next.backlog_max);
        self.kernel_bytes_max = self.kernel_bytes_max.max(next.kernel_bytes_max);
        self.queue_wait.add(&next.queue_wait);
        self.receives_ended &= next.receives_ended;
    }
}

/// All values of one slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotValues {
    /// Counters.
    pub passed: SlotCounts,
    /// Live requests at its end; for joined slots the maximum.
    pub live: u64,
    /// Gaps that ended.
    pub gap: Tally,
    /// The tokenizer's receives were not observed any more.
    pub receives_ended: bool,
    /// Deliveries were not observed any more.
    pub deliveries_ended: bool,
    /// The scheduler's sends were not observed any more.
    pub sends_ended: bool,
    /// Indexed as [`Ledger::groups`]; hops first observed later are missing at the end.
    pub hops: Vec<HopSlot>,
    /// Indexed as [`RecentSeconds::thread_index`]; `None` without samples.
    pub threads: Vec<Option<TimeUse>>,
}

impl SeriesSlot for SlotValues {
    /// Adds the values of the following slot (a second or more). Sums the counts, and keeps the greater of two levels.
    fn join_next(&mut self, next: &Self) {
        self.passed = self.passed.combine_with(next.passed, u64::saturating_add);
        self.live = self.live.max(next.live);
        self.gap.add(&next.gap);
        // An observation has ended for the joined slot only if it had ended for both.
        self.receives_ended &= next.receives_ended;
        self.deliveries_ended &= next.deliveries_ended;
        self.sends_ended &= next.sends_ended;
        // Hops and threads that were first observed in the following slot are added at the end.
        if self.hops.len() < next.hops.len() {
            self.hops.resize_with(next.hops.len(), HopSlot::default);
        }
        for (hop, next) in self.hops.iter_mut().zip(&next.hops) {
            hop.join_next(next);
        }
        if self.threads.len() < next.threads.len() {
            self.threads.resize(next.threads.len(), None);
        }
        for (time_use, &next) in self.threads.iter_mut().zip(&next.threads) {
            if let Some(next) = next {
                *time_use = Some(time_use.map_or(next, |time_use| time_use.plus(next)));
            }
        }
    }
}

/// The ledger's counters at one instant; a slot is the difference of two.
#[derive(Debug, Default)]
struct SlotStart {
    at: MonoNs,
    passed: SlotCounts,
    hops: Vec<HopSlotCounts>,
    threads: Vec<ThreadTotal>,
}

/// Time use of a thread from its first sample until the start of the slot.
#[derive(Clone, Copy, Debug)]
struct ThreadTotal {
    id: ThreadId,
    total: TimeUse,
}

impl SlotStart {
    /// Values of the slot that began with these readings of the ledger's counters, and ends now. Its counts are the growth of the counters.
    fn slot_values_until_now(&self, ledger: &Ledger) -> SlotValues {
        let groups = 0..ledger.groups().len().min(MAX_HOPS);
        SlotValues {
            passed: counts_so_far(ledger).combine_with(self.passed, u64::saturating_sub),
            live: ledger.live_count(),
            gap: ledger.gap_slot().to_tally(),
            // An observation that ended before the slot began has no values in it.
            receives_ended: self.begins_after(ledger.receives_end()),
            deliveries_ended: self.begins_after(ledger.deliveries_end()),
            sends_ended: self.begins_after(ledger.sends_known_until()),
            hops: groups.map(|group_index| self.hop_group_values_until_now(ledger, group_index)).collect(),
            threads: self.threads.iter().map(|thread| time_use_since(ledger, *thread)).collect(),
        }
    }

    /// Values of the group of hops with this index, in the slot that began with these readings of the counters and ends now.
    fn hop_group_values_until_now(&self, ledger: &Ledger, group_index: usize) -> HopSlot {
        let group = &ledger.groups()[group_index];
        // The counters of a group that was first observed in this slot began at 0.
        let counts_before = self.hops.get(group_index).copied().unwrap_or_default();
        HopSlot {
            passed: hop_group_counts_so_far(ledger, group_index).combine_with(counts_before, u64::saturating_sub),
            backlog_max: group.backlog_slot,
            // No upper limit is needed, because the slot ends now.
            kernel_bytes_max: group.kernel.max_bytes_between(self.at, MonoNs(u64::MAX)),
            queue_wait: group.queue_wait_slot.to_tally(),
            receives_ended: self.begins_after(ledger.group_receives_end(group_index)),
        }
    }

    /// Whether the slot begins after the end of an observation. The slot in which it ends has values.
    fn begins_after(&self, observation_end: Option<MonoNs>) -> bool {
        observation_end.is_some_and(|end| end <= self.at)
    }

    /// Begins a slot at `from`, and remembers the present counters of the ledger as its start.
    fn start_slot(&mut self, ledger: &Ledger, from: MonoNs) {
        let groups = 0..ledger.groups().len().min(MAX_HOPS);
        self.at = from;
        self.passed = counts_so_far(ledger);
        self.hops = groups.map(|group_index| hop_group_counts_so_far(ledger, group_index)).collect();
        for thread in &mut self.threads {
            if let Some(total) = ledger.thread(thread.id).and_then(Thread::total) {
                thread.total = total;
            }
        }
    }

    /// Adds the threads whose samples began in the slot that ends. Threads on the token path receive frames or are main threads. They have
    /// a limit of their own. Of all other threads, keeps at most `max_off_path`.
    fn add_newly_sampled_threads(&mut self, ledger: &Ledger, max_off_path: usize) {
        let known = self.threads.iter().filter_map(|thread| ledger.thread(thread.id));
        let mut count_on_path = known.filter(|thread| is_on_path(thread)).count();
        for thread in ledger.threads().iter().filter(|thread| thread.total().is_some()) {
            if self.threads.iter().any(|known| known.id == thread.id) {
                continue;
            }
            let count_off_path = self.threads.len() - count_on_path;
            let is_of_path = is_on_path(thread);
            let has_room = if is_of_path { count_on_path < MAX_THREADS } else { count_off_path < max_off_path };
            if has_room {
                count_on_path += usize::from(is_of_path);
                // The thread was not sampled before, so its total at the start of the slot is 0.
                self.threads.push(ThreadTotal { id: thread.id, total: TimeUse::default() });
            }
        }
    }
}

/// Whether the thread receives frames or is a process's main thread.
fn is_on_path(thread: &Thread) -> bool {
    thread.is_receiver() || thread.part == Some(ThreadPart::Main)
}

/// The ledger's counters since the start of the run.
fn counts_so_far(ledger: &Ledger) -> SlotCounts {
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
        merged_predicted: totals.predicted.merged,
        events_missed: totals.missed.reported(),
    }
}

/// Counters of the group of hops with this index since the start of the run.
fn hop_group_counts_so_far(ledger: &Ledger, group_index: usize) -> HopSlotCounts {
    let mut sum = HopSlotCounts { wakeups: ledger.groups()[group_index].wakeups.count(), ..HopSlotCounts::default() };
    for counts in ledger.hops_of_group(group_index).map(|hop| hop.counts) {
        sum.frames_sent += counts.frames_sent;
        sum.frames_received += counts.frames_received;
        sum.chunks += counts.chunks;
        sum.bytes += counts.bytes;
    }
    sum
}

/// Adds counters of hops to the sums of these hops. Hops without a sum get one.
fn add_hop_counts(sums: &mut Vec<HopSlotCounts>, added: impl ExactSizeIterator<Item = HopSlotCounts>) {
    if sums.len() < added.len() {
        sums.resize(added.len(), HopSlotCounts::default());
    }
    for (sum, counts) in sums.iter_mut().zip(added) {
        *sum = sum.combine_with(counts, u64::saturating_add);
    }
}

/// Time use of a thread since this reading; `None` without a sample in between.
fn time_use_since(ledger: &Ledger, thread: ThreadTotal) -> Option<TimeUse> {
    let total_now = ledger.thread(thread.id)?.total()?;
    let time_use = total_now.minus(thread.total);
    (time_use.interval_ns > 0).then_some(time_use)
}

/// The last seconds of a run, one slot each. A clone shares the slots.
#[derive(Clone, Debug, Default)]
pub struct RecentSeconds {
    begun: Option<MonoNs>,
    slots: VecDeque<Arc<SlotValues>>,
    /// Maximum number of `slots`; 0 if none are kept.
    max_slots: usize,
    /// Number of seconds so far.
    count: u64,
    /// Whether the last one is not over.
    has_current: bool,
    threads: Vec<ThreadId>,
}

impl RecentSeconds {
    /// Length of a slot.
    pub const SLOT_NS: u64 = SLOT_NS;

    /// No seconds so far, of which at most `max` will be kept.
    pub fn keeping(max: usize) -> Self {
        Self { max_slots: max, ..Self::default() }
    }

    /// Start of the run's first second; `None` before the first event.
    pub fn begun(&self) -> Option<MonoNs> {
        self.begun
    }

    /// Number of the newest second, counted from 0 at the first event.
    pub fn newest(&self) -> u64 {
        self.count.saturating_sub(1)
    }

    /// Whether this second is not over: its counts are those so far.
    pub fn is_current(&self, second: u64) -> bool {
        self.has_current && second == self.newest()
    }

    /// Number of seconds kept.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no second has begun, or none is kept.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Start of the first kept second; `None` if none is kept.
    pub fn first_kept_at(&self) -> Option<MonoNs> {
        let first_kept = self.count.checked_sub(self.slots.len() as u64).filter(|_| !self.slots.is_empty())?;
        Some(MonoNs(self.begun?.0.saturating_add(first_kept.saturating_mul(SLOT_NS))))
    }

    /// The kept seconds, oldest first.
    pub fn kept(&self) -> impl Iterator<Item = &SlotValues> {
        self.slots.iter().map(|slot| &**slot)
    }

    /// Index of a second in `slots`; `None` if it has not begun, or is not kept any more.
    fn index_of(&self, second: u64) -> Option<usize> {
        let number_from_end = self.count.checked_sub(second)?;
        self.slots.len().checked_sub(usize::try_from(number_from_end).ok()?)
    }

    /// Values of a second; `None` if it has not begun, or is not kept any more.
    pub fn second(&self, second: u64) -> Option<&SlotValues> {
        let index = self.index_of(second)?;
        self.slots.get(index).map(|slot| &**slot)
    }

    /// Values of the second that contains this time, to be changed; `None` if that second is not kept.
    fn second_at(&mut self, at: MonoNs) -> Option<&mut SlotValues> {
        let second = at.since(self.begun?) / SLOT_NS;
        let index = self.index_of(second)?;
        self.slots.get_mut(index).map(Arc::make_mut)
    }

    /// Sums the traffic of the seconds of a window, separately for each group of hops. Leaves out seconds that are not kept.
    pub fn traffic_in(&self, window: RecentWindow) -> RecentTraffic {
        let mut traffic = RecentTraffic { window, tokens_sent: 0, hops: Vec::new() };
        for slot in window.slots().filter_map(|second| self.second(second)) {
            traffic.tokens_sent += slot.passed.tokens_sent;
            add_hop_counts(&mut traffic.hops, slot.hops.iter().map(|hop| hop.passed));
        }
        traffic
    }

    /// Index of a thread in [`SlotValues::threads`].
    pub fn thread_index(&self, thread: ThreadId) -> Option<usize> {
        self.threads.iter().position(|id| *id == thread)
    }

    /// Adds the next second.
    pub fn push_second(&mut self, values: &Arc<SlotValues>) {
        self.push_equal_seconds(values, 1);
    }

    /// Adds `count` seconds that share their values. Removes the oldest seconds above the maximum.
    fn push_equal_seconds(&mut self, values: &Arc<SlotValues>, count: u64) {
        // Counts all seconds of the run, including those that are not kept.
        self.count = self.count.saturating_add(count);
        // Limited, because a silence may be longer than all kept seconds.
        for _ in 0..count.min(self.max_slots as u64) {
            if self.slots.len() == self.max_slots {
                self.slots.pop_front();
            }
            self.slots.push_back(Arc::clone(values));
        }
    }
}

/// Sums over the window of current figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecentTraffic {
    /// The window, by whose length the sums are divided for rates.
    pub window: RecentWindow,
    /// Tokens sent by the scheduler.
    pub tokens_sent: u64,
    /// Indexed as [`Ledger::groups`]; hops beyond the limit of series are missing at the end.
    pub hops: Vec<HopSlotCounts>,
}

impl RecentTraffic {
    /// Mean per second of a sum; `None` if the window has just begun.
    pub fn per_second(&self, sum: u64) -> Option<f64> {
        self.window.per_second(sum)
    }
}

/// Time series of a run.
#[derive(Debug)]
pub struct TimeSeries {
    max_slots: usize,
    series: Option<Series<SlotValues>>,
    /// Counters at the start of the current second.
    slot_start: SlotStart,
    /// End of the current second.
    slot_end: MonoNs,
    late: LateCounts,
    recent_seconds: RecentSeconds,
}

impl TimeSeries {
    /// Creates an empty time series that keeps at most `max_slots` slots, and in addition the last `max_seconds` seconds one by one.
    pub(crate) fn new(max_slots: usize, max_seconds: usize) -> Self {
        Self {
            max_slots,
            series: None,
            slot_start: SlotStart::default(),
            slot_end: MonoNs(0),
            late: LateCounts::default(),
            recent_seconds: RecentSeconds::keeping(max_seconds),
        }
    }

    /// Begins the first second with the first event of a run.
    fn begin_first_second(&mut self, now: MonoNs, ledger: &mut Ledger) {
        self.series = Some(Series::new(now, SLOT_NS, self.max_slots));
        self.recent_seconds.begun = Some(now);
        ledger.start_slots(now);
        self.slot_end = MonoNs(now.0.saturating_add(SLOT_NS));
    }

    /// Closes seconds that end before `now`. Call it before applying an event of that time.
    pub(crate) fn advance_to(&mut self, now: MonoNs, ledger: &mut Ledger) {
        // The current second goes on.
        if now < self.slot_end {
            return;
        }
        if self.series.is_none() {
            self.begin_first_second(now, ledger);
            return;
        }
        // In a damaged recording, the clock may have reached its largest value, so that no further second exists.
        if self.slot_end.0 == u64::MAX {
            return;
        }
        self.end_second(ledger);
        // Seconds without any event, between the one that has ended and the one that contains `now`.
        let silent_seconds = now.since(self.slot_end) / SLOT_NS;
        self.add_silent_seconds(silent_seconds, ledger);
        let passed_ns = SLOT_NS.saturating_mul(silent_seconds + 1);
        self.slot_end = MonoNs(self.slot_end.0.saturating_add(passed_ns));
        // Ids of the threads, in the order of their values in each second.
        self.recent_seconds.threads.clear();
        self.recent_seconds.threads.extend(self.slot_start.threads.iter().map(|thread| thread.id));
    }

    /// Adds the values of the current second, which has ended, and begins the next one.
    fn end_second(&mut self, ledger: &mut Ledger) {
        // Only the screen shows threads off the token path, and it shows recent seconds. Without these, no such threads are kept.
        let max_off_path = if self.recent_seconds.max_slots > 0 { MAX_THREADS } else { 0 };
        self.slot_start.add_newly_sampled_threads(ledger, max_off_path);
        let ended = Arc::new(self.slot_start.slot_values_until_now(ledger));
        // Called after the values were read, because it resets some of them.
        ledger.next_slot();
        self.slot_start.start_slot(ledger, self.slot_end);
        self.add_equal_seconds(&ended, 1);
    }

    /// Adds seconds without events, if there were any. They differ in nothing, so they share their values.
    fn add_silent_seconds(&mut self, count: u64, ledger: &Ledger) {
        if count > 0 {
            let empty = Arc::new(self.slot_start.slot_values_until_now(ledger));
            self.add_equal_seconds(&empty, count);
        }
    }

    /// Adds `count` seconds with these values to the series of the run, and to the recent seconds.
    fn add_equal_seconds(&mut self, values: &Arc<SlotValues>, count: u64) {
        if let Some(series) = &mut self.series {
            series.add_equal_slots(values, count);
        }
        self.recent_seconds.push_equal_seconds(values, count);
    }

    /// Prepares for an event at `at`, which is applied next. Returns whether it is late, which means that its slot is over. After a late
    /// event, [`Self::move_counts_of_late_event`] must be called. Events of different processes or stages can come a little late.
    pub(crate) fn prepare_if_event_is_late(&mut self, at: MonoNs, ledger: &Ledger) -> bool {
        let is_late = at < self.slot_start.at;
        if is_late {
            self.late.remember_counters(ledger);
        }
        is_late
    }

    /// Moves the counts of an event that came late from the current slot to the slot of its own time. `at` is that time.
    pub(crate) fn move_counts_of_late_event(&mut self, at: MonoNs, ledger: &Ledger) {
        self.late.replace_counters_by_growth(ledger);
        let late = &self.late;
        if late.is_zero() {
            return;
        }
        let Some(slot) = self.series.as_mut().and_then(|series| series.slot_at(at)) else { return };
        late.add_growth_to_slot(slot);
        if let Some(second) = self.recent_seconds.second_at(at) {
            late.add_growth_to_slot(second);
        }
        // The current slot counts the growth since its start. Raising the counters of its start removes the late counts from it.
        let start = &mut self.slot_start;
        start.passed = start.passed.combine_with(late.passed, u64::saturating_add);
        add_hop_counts(&mut start.hops, late.hops.iter().copied());
    }

    /// Start of the first slot; `None` before the first event.
    pub fn begun(&self) -> Option<MonoNs> {
        self.series.as_ref().map(Series::begun)
    }

    /// Length of a slot in nanoseconds. The last one may be shorter.
    pub fn slot_ns(&self) -> u64 {
        self.series.as_ref().map_or(SLOT_NS, Series::width_ns)
    }

    /// Whether slots have been joined, so that they are longer than a second.
    pub fn are_slots_joined(&self) -> bool {
        self.slot_ns() > SLOT_NS
    }

    /// All slots, oldest first; the last is the current, unfinished one.
    pub fn all_slots(&self, ledger: &Ledger) -> Vec<SlotValues> {
        let Some(series) = &self.series else { return Vec::new() };
        series.slots_including_running(self.current_slot(ledger).as_ref())
    }

    /// Values of the second that is not over; `None` if it has not begun.
    fn current_slot(&self, ledger: &Ledger) -> Option<SlotValues> {
        let has_begun = self.series.is_some() && ledger.now().0 > self.slot_end.0.saturating_sub(SLOT_NS);
        has_begun.then(|| self.slot_start.slot_values_until_now(ledger))
    }

    /// Threads on the token path, with their indices in [`SlotValues::threads`].
    pub fn threads<'a>(&'a self, ledger: &'a Ledger) -> impl Iterator<Item = (usize, &'a Thread)> {
        let kept = self.slot_start.threads.iter().enumerate();
        let known = kept.filter_map(|(index, kept)| ledger.thread(kept.id).map(|thread| (index, thread)));
        known.filter(|(_, thread)| is_on_path(thread))
    }

    /// The last seconds, including the current one as far as it has passed. Empty if no seconds are kept.
    pub fn recent_seconds(&self, ledger: &Ledger) -> RecentSeconds {
        let mut seconds = self.recent_seconds.clone();
        // With a maximum of 0, no seconds are kept.
        if seconds.max_slots > 0
            && let Some(current) = self.current_slot(ledger)
        {
            seconds.push_second(&Arc::new(current));
            seconds.has_current = true;
        }
        seconds
    }
}

#[cfg(test)]
mod tests;
