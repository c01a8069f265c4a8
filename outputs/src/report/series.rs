//! Time series of a run in columns, with one value per slot.

use serde::{Deserialize, Serialize};

use trace::clock::MonoNs;
use trace::ledger::{Ledger, Thread, TimeUse};
use trace::stats::Tally;
use trace::time_series::{HopSlot, HopSlotCounts, RecentSeconds, SlotCounts, SlotValues, TimeSeries};

/// Columns of equal length. A `null` column is not observable; a `null` value means nothing to measure in that slot, or that its
/// observation had ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Length of a slot; the last one ends at `to_ns` and may be shorter. It doubles when there are too many slots.
    pub slot_ns: u64,
    /// Start of the first slot, relative to the start of the capture.
    pub from_ns: u64,
    /// End of the last slot.
    pub to_ns: u64,
    /// Requests.
    pub requests: RequestSeries,
    /// Tokens.
    pub tokens: TokenSeries,
    /// Chunks.
    pub chunks: ChunkSeries,
    /// Gaps that ended in the slot.
    pub gap_ns: Option<SpreadSeries>,
    /// Hops; hops of the same name are one entry.
    pub hops: Vec<HopSeries>,
    /// Receiving threads and main threads.
    pub threads: Vec<ThreadSeries>,
    /// Observations missed by tokengap.
    pub events_missed: Vec<u64>,
    /// The last hour in slots of a second, as on the screen; absent unless `slot_ns` is longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_second: Option<Box<Self>>,
}

impl Series {
    /// Number of slots.
    pub fn len(&self) -> usize {
        self.events_missed.len()
    }

    /// Whether there are no slots.
    pub fn is_empty(&self) -> bool {
        self.events_missed.is_empty()
    }

    /// Whether every column has a value for each slot. A series that was read from a file may have columns of other lengths.
    pub fn has_equal_columns(&self) -> bool {
        let Self { requests, tokens, chunks, gap_ns, hops, threads, .. } = self;
        let mut lengths: Vec<usize> = Vec::new();
        lengths.extend(requests.column_lengths());
        lengths.extend(tokens.column_lengths());
        lengths.extend(chunks.column_lengths());
        lengths.extend(gap_ns.iter().flat_map(SpreadSeries::column_lengths));
        lengths.extend(hops.iter().flat_map(HopSeries::column_lengths));
        lengths.extend(threads.iter().flat_map(ThreadSeries::column_lengths));
        let are_own_equal = lengths.iter().all(|length| *length == self.len());
        // The last hour second by second is a series of its own, with columns of another length.
        are_own_equal && self.by_second.as_ref().is_none_or(|by_second| by_second.has_equal_columns())
    }

    /// Start of a slot, relative to the start of the capture.
    pub fn begin_ns(&self, slot: usize) -> u64 {
        self.from_ns.saturating_add(self.slot_ns.saturating_mul(slot as u64))
    }

    /// Length of a slot in seconds.
    pub fn seconds(&self, slot: usize) -> f64 {
        let end = if slot + 1 == self.len() { self.to_ns } else { self.begin_ns(slot + 1) };
        end.saturating_sub(self.begin_ns(slot)) as f64 / 1e9
    }
}

/// Requests by slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestSeries {
    /// Seen for the first time.
    pub begun: Vec<Option<u64>>,
    /// Finished by the scheduler.
    pub finished: Vec<Option<u64>>,
    /// Live at its end, with those whose end the tokenizer had not received; in slots of several seconds, the largest number at the end of
    /// one.
    pub live: Vec<Option<u64>>,
}

impl RequestSeries {
    /// Length of each of its columns.
    fn column_lengths(&self) -> [usize; 3] {
        [self.begun.len(), self.finished.len(), self.live.len()]
    }
}

/// Tokens by slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenSeries {
    /// Sent by the scheduler.
    pub sent: Vec<Option<u64>>,
    /// Received by the tokenizer.
    pub received: Option<Vec<Option<u64>>>,
    /// Delivered.
    pub delivered: Option<Vec<Option<u64>>>,
    /// Proven lost.
    pub lost: Option<Vec<Option<u64>>>,
}

impl TokenSeries {
    /// Length of each of its columns. Those of what was not observed are absent.
    fn column_lengths(&self) -> impl Iterator<Item = usize> {
        let optional = [&self.received, &self.delivered, &self.lost];
        std::iter::once(&self.sent).chain(optional.into_iter().flatten()).map(Vec::len)
    }
}

/// Chunks by slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkSeries {
    /// Sent by the scheduler.
    pub sent: Vec<Option<u64>>,
    /// Merged into another chunk's delivery.
    pub merged: Option<Vec<Option<u64>>>,
    /// Predicted drops.
    pub dropped_predicted: Option<Vec<Option<u64>>>,
    /// Proven drops.
    pub dropped_confirmed: Option<Vec<Option<u64>>>,
}

impl ChunkSeries {
    /// Length of each of its columns. Those of what was not observed are absent.
    fn column_lengths(&self) -> impl Iterator<Item = usize> {
        let optional = [&self.merged, &self.dropped_predicted, &self.dropped_confirmed];
        std::iter::once(&self.sent).chain(optional.into_iter().flatten()).map(Vec::len)
    }
}

/// Durations by slot, in nanoseconds: quantiles are accurate to 6 %, the maximum is exact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpreadSeries {
    /// Number of durations that ended in the slot.
    pub count: Vec<Option<u64>>,
    /// Median.
    pub p50: Vec<Option<u64>>,
    /// 99th percentile.
    pub p99: Vec<Option<u64>>,
    /// Maximum.
    pub max: Vec<Option<u64>>,
}

impl SpreadSeries {
    /// Length of each of its columns.
    fn column_lengths(&self) -> impl Iterator<Item = usize> + use<> {
        [self.count.len(), self.p50.len(), self.p99.len(), self.max.len()].into_iter()
    }
}

/// Hops of one name by slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopSeries {
    /// As in [`super::HopLine::name`].
    pub name: String,
    /// Frames that entered the hop.
    pub frames_sent: Option<Vec<Option<u64>>>,
    /// Frames received.
    pub frames_received: Option<Vec<Option<u64>>>,
    /// Chunks in the frames.
    pub chunks: Vec<Option<u64>>,
    /// Bytes of the frames.
    pub bytes: Vec<Option<u64>>,
    /// Finished wakeups of the receivers. Frames received per wakeup give its size.
    pub wakeups: Option<Vec<Option<u64>>>,
    /// Largest backlog in frames.
    pub backlog_max_frames: Option<Vec<Option<u64>>>,
    /// Largest sample of the bytes in kernel queues.
    pub kernel_bytes_max: Option<Vec<Option<u64>>>,
    /// Queue wait: received minus sent.
    pub queue_wait_ns: Option<SpreadSeries>,
}

impl HopSeries {
    /// Length of each of its columns.
    fn column_lengths(&self) -> impl Iterator<Item = usize> {
        let optional =
            [&self.frames_sent, &self.frames_received, &self.wakeups, &self.backlog_max_frames, &self.kernel_bytes_max];
        let counts = [&self.chunks, &self.bytes].into_iter().chain(optional.into_iter().flatten()).map(Vec::len);
        counts.chain(self.queue_wait_ns.iter().flat_map(SpreadSeries::column_lengths))
    }
}

/// CPU use of a thread by slot: shares of one core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadSeries {
    /// `scheduler`, `tokenizer`, ...
    pub role: String,
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Name of the thread.
    pub name: String,
    /// Whether it receives frames from a hop.
    pub receives: bool,
    /// On a CPU.
    pub on_cpu: Vec<Option<f64>>,
    /// Waiting for a CPU.
    pub run_wait: Option<Vec<Option<f64>>>,
    /// Throttled by its cgroup's quota.
    pub throttled: Option<Vec<Option<f64>>>,
}

impl ThreadSeries {
    /// Length of each of its columns.
    fn column_lengths(&self) -> impl Iterator<Item = usize> {
        [Some(&self.on_cpu), self.run_wait.as_ref(), self.throttled.as_ref()].into_iter().flatten().map(Vec::len)
    }
}

/// Time series of a run; `None` before the first event.
pub(super) fn build_series(
    ledger: &Ledger,
    time_series: &TimeSeries,
    capture_start: MonoNs,
    capture_end: MonoNs,
) -> Option<Series> {
    let begun = time_series.begun()?;
    let all_slots = time_series.all_slots(ledger);
    let slots: Vec<&SlotValues> = all_slots.iter().collect();
    let span = SeriesSpan {
        slot_ns: time_series.slot_ns(),
        from_ns: begun.since(capture_start),
        to_ns: capture_end.since(capture_start),
    };
    let mut series = build_columns(ledger, time_series, &slots, span);
    // In a long run, slots are joined to longer ones. The last hour is then added second by second.
    if time_series.are_slots_joined() {
        series.by_second = build_last_hour(ledger, time_series, capture_start, span.to_ns).map(Box::new);
    }
    Some(series)
}

/// Time series of the last hour, with slots of a second, up to `to_ns`; `None` if no second is kept.
fn build_last_hour(ledger: &Ledger, time_series: &TimeSeries, capture_start: MonoNs, to_ns: u64) -> Option<Series> {
    let recent = time_series.recent_seconds(ledger);
    let seconds: Vec<&SlotValues> = recent.kept().collect();
    let from_ns = recent.first_kept_at()?.since(capture_start);
    let span = SeriesSpan { slot_ns: RecentSeconds::SLOT_NS, from_ns, to_ns };
    Some(build_columns(ledger, time_series, &seconds, span))
}

/// Length of the slots of a series, and its begin and end since the start of the capture.
#[derive(Clone, Copy)]
#[expect(clippy::struct_field_names, reason = "each name needs its unit")]
struct SeriesSpan {
    slot_ns: u64,
    from_ns: u64,
    to_ns: u64,
}

/// All columns of a series, each with one value for each of these slots. A value is `None` if it was not observed in its slot, for example
/// because the observation of sends or receives had ended.
fn build_columns(ledger: &Ledger, time_series: &TimeSeries, slots: &[&SlotValues], span: SeriesSpan) -> Series {
    let groups = ledger.groups().iter().enumerate();
    Series {
        slot_ns: span.slot_ns,
        from_ns: span.from_ns,
        to_ns: span.to_ns,
        requests: RequestSeries {
            begun: send_column(slots, |slot| slot.passed.begun),
            finished: send_column(slots, |slot| slot.passed.finished),
            live: send_column(slots, |slot| slot.live),
        },
        tokens: build_token_columns(ledger, slots),
        chunks: build_chunk_columns(ledger, slots),
        gap_ns: ledger.observes_gaps().then(|| build_gap_columns(slots)),
        hops: groups.filter_map(|(index, group)| hop_series(ledger, index, &group.name, slots)).collect(),
        threads: time_series
            .threads(ledger)
            .filter_map(|(index, thread)| thread_series(thread, index, slots))
            .collect(),
        events_missed: slots.iter().map(|slot| slot.passed.events_missed).collect(),
        // The caller adds it to a long run.
        by_second: None,
    }
}

/// Number and quantiles of the first-token gaps that ended in each slot, as long as receives were observed.
fn build_gap_columns(slots: &[&SlotValues]) -> SpreadSeries {
    spread_series(slots.iter().map(|slot| SlotTally { tally: Some(&slot.gap), is_observed: !slot.receives_ended }))
}

/// Columns with the tokens in each slot, by the stage that they reached. A column that is not observed is `None`.
fn build_token_columns(ledger: &Ledger, slots: &[&SlotValues]) -> TokenSeries {
    let observes_deliveries = ledger.observes_deliveries();
    TokenSeries {
        sent: send_column(slots, |slot| slot.passed.tokens_sent),
        received: ledger.observes_receives().then(|| receive_column(slots, |counts| counts.tokens_received)),
        delivered: observes_deliveries.then(|| delivery_column(slots, |counts| counts.tokens_delivered)),
        lost: observes_deliveries.then(|| delivery_column(slots, |counts| counts.tokens_lost)),
    }
}

/// Columns with the chunks in each slot, by what became of them. A column that is not observed is `None`.
fn build_chunk_columns(ledger: &Ledger, slots: &[&SlotValues]) -> ChunkSeries {
    let observes_deliveries = ledger.observes_deliveries();
    let predicts_drops = ledger.chunks_dropped_predicted().is_some();
    ChunkSeries {
        sent: send_column(slots, |slot| slot.passed.chunks_sent),
        merged: observes_deliveries.then(|| delivery_column(slots, |counts| counts.chunks_merged)),
        dropped_predicted: predicts_drops.then(|| receive_column(slots, |counts| counts.dropped_predicted)),
        dropped_confirmed: observes_deliveries.then(|| delivery_column(slots, |counts| counts.chunks_dropped)),
    }
}

/// Values that need the scheduler's sends, as long as those were observed.
fn send_column(slots: &[&SlotValues], value_of: impl Fn(&SlotValues) -> u64) -> Vec<Option<u64>> {
    slots.iter().map(|slot| (!slot.sends_ended).then(|| value_of(slot))).collect()
}

/// Counts of receives, as long as those were observed.
fn receive_column(slots: &[&SlotValues], count_of: fn(&SlotCounts) -> u64) -> Vec<Option<u64>> {
    slots.iter().map(|slot| (!slot.receives_ended).then(|| count_of(&slot.passed))).collect()
}

/// Counts of outcomes, as long as deliveries were observed.
fn delivery_column(slots: &[&SlotValues], count_of: fn(&SlotCounts) -> u64) -> Vec<Option<u64>> {
    slots.iter().map(|slot| (!slot.deliveries_ended).then(|| count_of(&slot.passed))).collect()
}

/// Durations of one slot.
struct SlotTally<'a> {
    /// `None` before the first one.
    tally: Option<&'a Tally>,
    is_observed: bool,
}

impl<'a> SlotTally<'a> {
    /// Queue waits of a slot of a hop, which begins with the first slot that has it.
    fn of_queue_wait(slot: Option<&'a HopSlot>) -> Self {
        Self { tally: slot.map(|slot| &slot.queue_wait), is_observed: slot.is_none_or(|slot| !slot.receives_ended) }
    }
}

/// Number and quantiles of the values in each slot; `None` for a slot in which they were not observed.
fn spread_series<'a>(tallies: impl Iterator<Item = SlotTally<'a>>) -> SpreadSeries {
    let mut spread = SpreadSeries::default();
    for SlotTally { tally, is_observed } in tallies {
        let tally = if is_observed { tally } else { None };
        // An observed slot without a tally has no values, so its count is 0.
        spread.count.push(is_observed.then(|| tally.map_or(0, Tally::count)));
        spread.p50.push(tally.and_then(|tally| tally.quantile(0.5)));
        spread.p99.push(tally.and_then(|tally| tally.quantile(0.99)));
        spread.max.push(tally.and_then(Tally::max));
    }
    spread
}

/// Series of the hops of one name, which together are a group. `None` for a group without hops, and for one beyond the limit of groups.
fn hop_series(ledger: &Ledger, group_index: usize, name: &str, slots: &[&SlotValues]) -> Option<HopSeries> {
    // Renaming a hop can leave its old name without hops.
    ledger.hops_of_group(group_index).next()?;
    // Slots have no values of hops beyond the limit.
    let is_beyond_limit = slots.iter().all(|slot| slot.hops.len() <= group_index);
    if is_beyond_limit {
        return None;
    }
    let observes_sends = ledger.hops_of_group(group_index).any(|hop| hop.capabilities().sent);
    let observes_receives = ledger.hops_of_group(group_index).any(|hop| hop.capabilities().received);
    let observes_both_ends = observes_sends && observes_receives;
    // A slot from before the first hop of the group has no values of it.
    let hop_slots: Vec<Option<&HopSlot>> = slots.iter().map(|slot| slot.hops.get(group_index)).collect();
    let kernel_bytes: Vec<Option<u64>> = hop_slots.iter().map(|slot| (*slot)?.kernel_bytes_max).collect();
    let wakeups = hop_receive_column(&hop_slots, |slot| slot.passed.wakeups);
    let has_wakeups = wakeups.iter().flatten().any(|&count| count > 0);
    Some(HopSeries {
        name: name.to_owned(),
        frames_sent: observes_sends.then(|| hop_send_column(slots, group_index, |passed| passed.frames_sent)),
        frames_received: observes_receives.then(|| hop_receive_column(&hop_slots, |slot| slot.passed.frames_received)),
        chunks: hop_send_column(slots, group_index, |passed| passed.chunks),
        bytes: hop_send_column(slots, group_index, |passed| passed.bytes),
        wakeups: has_wakeups.then_some(wakeups),
        backlog_max_frames: observes_both_ends.then(|| hop_receive_column(&hop_slots, |slot| slot.backlog_max)),
        kernel_bytes_max: observed_column(kernel_bytes),
        queue_wait_ns: observes_both_ends
            .then(|| spread_series(hop_slots.iter().map(|slot| SlotTally::of_queue_wait(*slot)))),
    })
}

/// Counts of the hops with this index that need sends, as long as those were observed. 0 in slots before the hops' first one.
fn hop_send_column(slots: &[&SlotValues], group_index: usize, count_of: fn(HopSlotCounts) -> u64) -> Vec<Option<u64>> {
    send_column(slots, |slot| slot.hops.get(group_index).map_or(0, |hop| count_of(hop.passed)))
}

/// Values that need the hop's receives, as long as those were observed. 0 in slots before the hop's first one.
fn hop_receive_column(slots: &[Option<&HopSlot>], value_of: fn(&HopSlot) -> u64) -> Vec<Option<u64>> {
    let values = slots.iter().map(|slot| match slot {
        None => Some(0),
        Some(slot) if slot.receives_ended => None,
        Some(slot) => Some(value_of(slot)),
    });
    values.collect()
}

/// Series of a thread; `None` if no slot has a sample of it.
fn thread_series(thread: &Thread, thread_index: usize, slots: &[&SlotValues]) -> Option<ThreadSeries> {
    let spent: Vec<Option<TimeUse>> =
        slots.iter().map(|slot| slot.threads.get(thread_index).copied().flatten()).collect();
    let is_sampled = spent.iter().any(Option::is_some);
    if !is_sampled {
        return None;
    }
    Some(ThreadSeries {
        role: thread.role.to_string(),
        pid: thread.id.pid,
        tid: thread.id.tid,
        name: thread.name.to_string(),
        receives: thread.is_receiver(),
        on_cpu: share_column(&spent, |spent| Some(spent.on_ns)),
        run_wait: observed_column(share_column(&spent, TimeUse::starved_ns)),
        throttled: observed_column(share_column(&spent, TimeUse::throttled_ns)),
    })
}

/// The column; `None` if it has no known value, because it is then not observable.
fn observed_column<V>(column: Vec<Option<V>>) -> Option<Vec<Option<V>>> {
    let is_observed = column.iter().any(Option::is_some);
    is_observed.then_some(column)
}

/// Share of each slot that a part of it takes; `None` in slots without a sample.
fn share_column(spent: &[Option<TimeUse>], part_ns: fn(&TimeUse) -> Option<u64>) -> Vec<Option<f64>> {
    spent.iter().map(|slot| rounded_share(slot.as_ref()?, part_ns)).collect()
}

/// Share of a slot that a part of it takes, with four decimals; `None` if the part is unknown.
fn rounded_share(spent: &TimeUse, part_ns: fn(&TimeUse) -> Option<u64>) -> Option<f64> {
    // Samples justify no more than four digits.
    Some((spent.share(part_ns(spent)?) * 1e4).round() / 1e4)
}
