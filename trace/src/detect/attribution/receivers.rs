//! Receivers of the hops of one name: how many there are, how busy they were, and which of them frames wait for longest.

use super::BOTTLENECK_SHARE;
use crate::clock::MonoNs;
use crate::ledger::{Hop, Ledger};

/// A receiver stands out if it has at least this many times an even share of the wait.
const MIN_TIMES_EVEN_SHARE: f64 = 1.5;

/// Share of `part` in `whole`; 0 if `whole` is 0.
pub(super) fn share_of(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Names the receiver of a hop by its worker number or, without one, by its endpoint.
pub(super) fn name_receiver(hop: &Hop) -> String {
    hop.worker.map_or_else(|| hop.endpoint.to_string(), |number| format!("worker {number}"))
}

/// Key of a receiver: its number and its endpoint, as far as they are known.
type Key<'h> = (Option<u16>, &'h str);

/// Key of a hop whose receiver has neither a number nor an endpoint.
const NAMELESS: Key<'static> = (None, "");

/// Key of the receiver of a hop.
fn receiver_key(hop: &Hop) -> Key<'_> {
    (hop.worker, &hop.endpoint)
}

/// Number of processes that receive from these hops (connections between two processes). The name of a receiver is its worker number or its
/// endpoint. Hops to the same name have the same receiver. A hop without a name counts as a receiver of its own.
pub(in crate::detect) fn count_receivers(hops: &[&Hop]) -> usize {
    let mut nameless = 0;
    let mut names: Vec<Key<'_>> = Vec::new();
    for hop in hops {
        let name = receiver_key(hop);
        if name == NAMELESS {
            nameless += 1;
        } else if !names.contains(&name) {
            names.push(name);
        }
    }
    nameless + names.len()
}

/// The wait on all hops of one receiver.
struct ReceiverWait<'h> {
    /// One of its hops.
    hop: &'h Hop,
    wait_ns: u128,
}

/// Returns a hop of the receiver for which frames waited longest in total. `None` if it is the only receiver, has no name, or does not
/// stand out.
pub(super) fn hop_of_slowest_receiver<'h>(group_hops: &[&'h Hop], now: MonoNs) -> Option<&'h Hop> {
    let receivers = sum_waits_by_receiver(group_hops, now);
    let slowest = receivers.iter().max_by_key(|receiver| receiver.wait_ns)?;
    let is_only_one = receivers.len() == 1;
    let has_name = receiver_key(slowest.hop) != NAMELESS;
    if is_only_one || !has_name || !has_outstanding_wait(slowest, &receivers) {
        return None;
    }
    Some(slowest.hop)
}

/// Sums the waits on the hops of each receiver.
fn sum_waits_by_receiver<'h>(group_hops: &[&'h Hop], now: MonoNs) -> Vec<ReceiverWait<'h>> {
    let mut receivers: Vec<ReceiverWait<'h>> = Vec::new();
    for &hop in group_hops {
        let wait_ns = wait_of_received_and_queued_ns(hop, now);
        match receivers.iter_mut().find(|known| receiver_key(known.hop) == receiver_key(hop)) {
            Some(known) => known.wait_ns += wait_ns,
            None => receivers.push(ReceiverWait { hop, wait_ns }),
        }
    }
    receivers
}

/// Whether a receiver has half of the wait of all receivers, and [`MIN_TIMES_EVEN_SHARE`] times an even share.
fn has_outstanding_wait(receiver: &ReceiverWait<'_>, all_receivers: &[ReceiverWait<'_>]) -> bool {
    let whole_ns: u128 = all_receivers.iter().map(|receiver| receiver.wait_ns).sum();
    let share = share_of(receiver.wait_ns as f64, whole_ns as f64);
    share >= BOTTLENECK_SHARE && share * all_receivers.len() as f64 >= MIN_TIMES_EVEN_SHARE
}

/// The hops that have the same receiver as one of them.
pub(super) fn hops_of_receiver<'h>(members: &[&'h Hop], one: &Hop) -> Vec<&'h Hop> {
    members.iter().copied().filter(|hop| receiver_key(hop) == receiver_key(one)).collect()
}

/// Wait of all chunks received from the hop and, estimated, of the frames queued now.
fn wait_of_received_and_queued_ns(hop: &Hop, now: MonoNs) -> u128 {
    let queued_frames = u128::from(hop.counts.backlog);
    // Assumes that the queued frames were sent evenly. On average, each has then waited half as long as the oldest.
    let queued_ns = hop.oldest_waiting().map_or(0, |oldest| u128::from(now.since(oldest)) * queued_frames / 2);
    hop.chunk_waits.whole().ns + queued_ns
}

/// Mean share of the window for which the receivers of these hops were busy. A receiver is busy while it processes a frame. If the polls of
/// its event loop are observed, it is busy whenever it is outside a poll, for example while it writes HTTP. `None` if no receiver was
/// observed, or the window is empty.
pub fn mean_busy_share<'h>(ledger: &Ledger, hops: impl Iterator<Item = &'h Hop>, window_ns: u64) -> Option<f64> {
    let mut receivers: Vec<BusyReceiver<'_>> = Vec::new();
    // The other hops do not show when their frames were processed.
    for hop in hops.filter(|hop| hop.capabilities().processed) {
        let processing = share_of(hop.counts.busy_ns as f64, window_ns as f64);
        let outside_poll = share_of(time_outside_poll_ns(ledger, hop) as f64, window_ns as f64);
        let key = receiver_key(hop);
        // Receivers without a name cannot be told apart, so each hop to such a receiver counts as another one.
        match receivers.iter_mut().find(|known| known.key == key && key != NAMELESS) {
            // This is another hop to a known receiver. It processes one frame at a time, so the processing times add up. Its polls are the
            // same for all of its hops, so the time outside them does not add up.
            Some(known) => {
                known.processing += processing;
                known.outside_poll = known.outside_poll.max(outside_poll);
            }
            None => receivers.push(BusyReceiver { key, processing, outside_poll }),
        }
    }
    if receivers.is_empty() || window_ns == 0 {
        return None;
    }
    let sum: f64 = receivers.iter().map(BusyReceiver::share).sum();
    Some(sum / receivers.len() as f64)
}

/// Time that the receiving thread of a hop spent outside its event loop's poll; 0 if its polls are not observed. They may be sampled in a
/// part of the run only.
fn time_outside_poll_ns(ledger: &Ledger, hop: &Hop) -> u64 {
    let poll = hop.receiving_thread().and_then(|id| ledger.thread(id)).and_then(|thread| thread.poll);
    poll.map_or(0, |poll| poll.interval_ns.saturating_sub(poll.polled_ns))
}

/// Shares of a window in which one receiver was busy.
struct BusyReceiver<'h> {
    key: Key<'h>,
    /// Processing frames of any of its connections.
    processing: f64,
    /// Outside of its event loop's poll.
    outside_poll: f64,
}

impl BusyReceiver<'_> {
    /// Busy share of the window. It is the larger of both and not their sum, because frames are processed outside the poll.
    fn share(&self) -> f64 {
        self.processing.max(self.outside_poll).min(1.0)
    }
}
