//! The ledger's counters at one instant; a slot is the difference of two.

use serde::{Deserialize, Serialize};

use super::slot::{HopSlot, HopSlotCounts, SlotCounts, SlotValues};
use crate::clock::MonoNs;
use crate::event::ThreadPart;
use crate::id::ThreadId;
use crate::ledger::{Ledger, Thread, TimeUse};

/// Maximum number of hop names with a series. Others count only in the totals.
const HOPS: usize = 32;
/// Maximum number of threads with a series: main threads and threads that receive frames, in the order first observed.
const THREADS: usize = 32;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Reading {
    at: MonoNs,
    passed: SlotCounts,
    hops: Vec<HopSlotCounts>,
    threads: Vec<(ThreadId, TimeUse)>,
}

impl Reading {
    pub(super) fn threads(&self) -> impl Iterator<Item = ThreadId> + '_ {
        self.threads.iter().map(|t| t.0)
    }

    /// Difference between the ledger now and this reading.
    pub(super) fn moment(&self, ledger: &Ledger) -> SlotValues {
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
    pub(super) fn advance(&mut self, ledger: &Ledger, from: MonoNs) {
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
    pub(super) fn add_threads(&mut self, ledger: &Ledger) {
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
        tokens_lost: totals.chunks.fates.tokens_lost,
        chunks_sent: totals.chunks.sent,
        chunks_merged: totals.chunks.fates.merged,
        chunks_dropped: totals.chunks.fates.dropped,
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
