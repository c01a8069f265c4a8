//! Uneven load: one of several workers of a line has much more to do than the others.

use std::collections::BTreeMap;

use super::{Detector, Look, Severity, Verdict};
use crate::id::HopId;
use crate::ledger::Hop;
use crate::words::{count, percent};

pub(super) struct WorkerImbalance;

/// Ratio of the busiest receiver's chunks to the mean; `None` with a single receiver, or without chunks.
pub(crate) fn imbalance(members: &[&Hop]) -> Option<f64> {
    uneven(&receivers(members))
}

fn uneven(receivers: &[Receiver<'_>]) -> Option<f64> {
    let chunks = receivers.iter().map(|one| one.chunks);
    let (most, sum) = (chunks.clone().max()?, chunks.sum::<u64>());
    (receivers.len() > 1 && sum > 0).then(|| (u128::from(most) * receivers.len() as u128) as f64 / sum as f64)
}

/// One receiver with its chunks over all hops: a scheduler has several sockets, and several schedulers may share a receiver.
struct Receiver<'a> {
    hop: &'a Hop,
    chunks: u64,
    backlog_max: u64,
}

fn receivers<'a>(members: &[&'a Hop]) -> Vec<Receiver<'a>> {
    let mut receivers: BTreeMap<(Option<u16>, &str, Option<HopId>), Receiver<'a>> = BTreeMap::new();
    for hop in members {
        let (worker, endpoint) = (hop.worker(), hop.endpoint());
        // Without a worker number or endpoint, it cannot be matched to the receiver of another hop.
        let alone = (worker.is_none() && endpoint.is_empty()).then(|| hop.id());
        let one = receivers.entry((worker, endpoint, alone)).or_insert(Receiver {
            hop,
            chunks: 0,
            backlog_max: 0,
        });
        one.chunks += hop.counts().chunks;
        one.backlog_max = one.backlog_max.max(hop.counts().backlog_max);
    }
    receivers.into_values().collect()
}

impl Detector for WorkerImbalance {
    fn kind(&self) -> &'static str {
        "worker-imbalance"
    }

    fn check(&self, look: &Look<'_>, found: &mut Vec<Verdict>) {
        let limits = look.thresholds;
        for (place, group) in look.ledger.groups().iter().enumerate() {
            let members: Vec<&Hop> = look.ledger.members(place).collect();
            let receivers = receivers(&members);
            let sum: u64 = receivers.iter().map(|one| one.chunks).sum();
            let Some(uneven) = uneven(&receivers).filter(|&n| n >= limits.imbalance) else {
                continue;
            };
            let Some(busiest) = receivers.iter().max_by_key(|one| one.chunks) else {
                continue;
            };
            if sum < limits.imbalance_chunks {
                continue;
            }
            // Uneven load that the workers keep up with is information; a backlog at the busiest is a warning.
            let severity = if busiest.backlog_max >= limits.backlog_frames {
                Severity::Warning
            } else {
                Severity::Info
            };
            let idle = receivers.iter().filter(|one| one.chunks == 0).count();
            let worker = busiest.hop.worker();
            let who = match (worker, busiest.hop.endpoint()) {
                (Some(n), _) => format!("worker {n}"),
                (None, "") => String::from("one receiver"),
                (None, endpoint) => endpoint.to_owned(),
            };
            let summary = format!(
                "{who} of {} on {} has {} of {} chunks, {uneven:.1} times an even part",
                receivers.len(),
                group.name,
                percent(busiest.chunks as f64 / sum as f64),
                count(sum),
            );
            found.push(
                Verdict::new(severity, summary)
                    .hop(&group.name)
                    .with("workers", receivers.len())
                    .with("workers_idle", idle)
                    .with("imbalance", (uneven * 100.0).round() / 100.0)
                    .with("busiest_worker", worker)
                    .with("busiest_chunks", busiest.chunks)
                    .with("busiest_backlog_max_frames", busiest.backlog_max)
                    .with("chunks", sum)
                    .advice(
                        "detokenizers are chosen by crc32 of the tokenizer worker's endpoint modulo their number: fewer tokenizer \
                         workers than detokenizers, or an unlucky hash, leave some idle; more tokenizer workers even it out",
                    ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scene::Workers;
    use super::*;

    #[test]
    fn one_worker_with_most_of_the_chunks_is_found_and_an_even_pair_is_not() {
        let mut even = Workers::new(2);
        for n in 0..600 {
            even.send(n % 2, n, &format!("{n}"), 1);
        }
        assert!(even.check(&WorkerImbalance).is_empty());
        let mut uneven = Workers::new(4);
        for n in 0..1_200 {
            uneven.send(u64::from(n % 4 == 0) * (n / 4 % 3 + 1), n, &format!("{n}"), 1);
        }
        let found = uneven.check(&WorkerImbalance);
        let evidence = &found[0].evidence;
        assert_eq!((found.len(), &evidence["busiest_worker"]), (1, &0.into()));
        assert_eq!(
            (&evidence["imbalance"], &evidence["workers_idle"]),
            (&3.0.into(), &0.into())
        );
        assert_eq!(found[0].severity, Severity::Warning, "900 frames wait for it");
    }

    #[test]
    fn sockets_that_send_to_one_endpoint_are_one_receiver() {
        let mut one = Workers::at(&["ipc:///tmp/tokenizer", "ipc:///tmp/tokenizer"]);
        let mut two = Workers::at(&["ipc:///tmp/tokenizer", "ipc:///tmp/other"]);
        let mut unknown = Workers::at(&["", ""]);
        for n in 0..1_200 {
            for scene in [&mut one, &mut two, &mut unknown] {
                scene.send(0, n, &format!("{n}"), 1);
            }
        }
        assert!(
            one.check(&WorkerImbalance).is_empty(),
            "a second socket has nothing to send"
        );
        for scene in [&mut two, &mut unknown] {
            let found = scene.check(&WorkerImbalance);
            assert_eq!(
                (&found[0].evidence["workers"], &found[0].evidence["workers_idle"]),
                (&2.into(), &1.into())
            );
        }
        let nameless = &unknown.check(&WorkerImbalance)[0].summary;
        assert!(nameless.starts_with("one receiver of 2 on "), "{nameless}");
    }
}
