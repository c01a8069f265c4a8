//! Uneven load: one of several workers of a line has much more to do than the others.

use std::collections::BTreeMap;

use super::thresholds::BACKLOG_FRAMES;
use super::{DetectContext, Severity, Verdicts};
use crate::id::HopId;
use crate::ledger::Hop;
use crate::words::{count, percent};

/// Minimum number of chunks on a line to judge the load of its workers.
pub(super) const MIN_JUDGED_CHUNKS: u64 = 1_000;
/// Ratio of the busiest worker's chunks to the mean of its line that makes the load uneven.
pub(super) const MIN_UNEVEN_RATIO: f64 = 1.5;

/// Ratio of the busiest receiver's chunks to the mean; `None` with a single receiver, or without chunks.
pub fn imbalance(members: &[&Hop]) -> Option<f64> {
    busiest_chunks_per_even_share(&sum_load_of_receivers(members))
}

/// Number of chunks of the busiest receiver, as a multiple of an even share. `None` with a single receiver, or without chunks.
fn busiest_chunks_per_even_share(receivers: &[Receiver<'_>]) -> Option<f64> {
    let max = receivers.iter().map(|receiver| receiver.chunks).max()?;
    let sum: u64 = receivers.iter().map(|receiver| receiver.chunks).sum();
    if receivers.len() < 2 || sum == 0 {
        return None;
    }
    Some((u128::from(max) * receivers.len() as u128) as f64 / sum as f64)
}

/// One receiver with its chunks over all hops: a scheduler has several sockets, and several schedulers may share a receiver.
struct Receiver<'a> {
    hop: &'a Hop,
    chunks: u64,
    frames: u64,
    backlog_max: u64,
}

/// Worker number and endpoint of a receiver, and its only hop if it has neither.
type ReceiverKey<'a> = (Option<u16>, &'a str, Option<HopId>);

/// Sums the traffic of each receiver over these hops (connections between two processes). Several hops may lead to one receiver. Leaves out
/// receivers that cannot serve output.
fn sum_load_of_receivers<'a>(hops: &[&'a Hop]) -> Vec<Receiver<'a>> {
    let mut receivers: BTreeMap<ReceiverKey<'_>, Receiver<'a>> = BTreeMap::new();
    for hop in hops {
        let worker = hop.worker;
        let endpoint = &*hop.endpoint;
        // A receiver without a worker number or endpoint cannot be found on other hops, so each of its hops has an entry of its own.
        let is_nameless = worker.is_none() && endpoint.is_empty();
        let own_hop = is_nameless.then_some(hop.id);
        let receiver = receivers.entry((worker, endpoint, own_hop)).or_insert(Receiver {
            hop,
            chunks: 0,
            frames: 0,
            backlog_max: 0,
        });
        receiver.chunks += hop.counts.chunks;
        // The greater count, because one of the two sides may not be observed.
        receiver.frames += hop.counts.frames_sent.max(hop.counts.frames_received);
        receiver.backlog_max = receiver.backlog_max.max(hop.counts.backlog_max);
    }
    receivers.into_values().filter(Receiver::may_serve_output).collect()
}

impl Receiver<'_> {
    /// Whether output may pass here. False for a socket that carries only control messages, or requests in the opposite direction.
    fn may_serve_output(&self) -> bool {
        self.chunks > 0 || self.frames == 0 || self.hop.worker.is_some()
    }
}

/// Names the receiver of a hop by its worker number or its endpoint; `one` without either.
fn name_receiver(hop: &Hop) -> String {
    match (hop.worker, &*hop.endpoint) {
        (Some(number), _) => format!("worker {number}"),
        (None, "") => String::from("one"),
        (None, endpoint) => endpoint.to_owned(),
    }
}

/// Reports groups of hops (connections of one name) where one receiver gets far more chunks than the others.
pub(super) fn detect_worker_imbalance(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    for (group_index, group) in context.ledger.output_groups() {
        let members: Vec<&Hop> = context.ledger.hops_of_group(group_index).collect();
        let receivers = sum_load_of_receivers(&members);
        let sum: u64 = receivers.iter().map(|receiver| receiver.chunks).sum();
        // Chunks of the busiest receiver divided by an even share. `None` with a single receiver, or without chunks.
        let Some(times_even_share) = busiest_chunks_per_even_share(&receivers) else { continue };
        let Some(busiest) = receivers.iter().max_by_key(|receiver| receiver.chunks) else { continue };
        // A few chunks may be uneven by chance.
        if times_even_share < MIN_UNEVEN_RATIO || sum < MIN_JUDGED_CHUNKS {
            continue;
        }
        // Uneven load is only information while the busiest receiver keeps up with it.
        let keeps_up = busiest.backlog_max < BACKLOG_FRAMES;
        let severity = if keeps_up { Severity::Info } else { Severity::Warning };
        let idle = receivers.iter().filter(|receiver| receiver.chunks == 0).count();
        // To two decimal places.
        let rounded_imbalance = (times_even_share * 100.0).round() / 100.0;
        let summary = format!(
            "of the {} receivers on {}, {} had {} of {} chunks, {times_even_share:.1} times an even share",
            receivers.len(),
            group.name,
            name_receiver(busiest.hop),
            percent(busiest.chunks as f64 / sum as f64),
            count(sum),
        );
        verdicts
            .add_verdict(severity, summary)
            .hop(&group.name)
            .last_at(group.last_frame_at)
            .occurrences(sum)
            .with("workers", receivers.len())
            .with("workers_idle", idle)
            .with("imbalance", rounded_imbalance)
            .with("busiest_worker", busiest.hop.worker)
            .with("busiest_chunks", busiest.chunks)
            .with("busiest_backlog_max_frames", busiest.backlog_max)
            .with("chunks", sum)
            .advice(context.facts().balance());
    }
}
