//! Several workers behind one line, of which one has much more to do than the others.

use super::{Detector, Look, Severity, Verdict};
use crate::ledger::Hop;
use crate::words::{count, percent};

pub(super) struct WorkerImbalance;

/// Chunks of the busiest receiver over the mean of all; `None` with a single one, or when nothing came.
pub(crate) fn imbalance(members: &[&Hop]) -> Option<f64> {
    let chunks = members.iter().map(|hop| hop.counts().chunks);
    let (most, sum) = (chunks.clone().max()?, chunks.sum::<u64>());
    (members.len() > 1 && sum > 0).then(|| (u128::from(most) * members.len() as u128) as f64 / sum as f64)
}

impl Detector for WorkerImbalance {
    fn kind(&self) -> &'static str {
        "worker-imbalance"
    }

    fn check(&self, look: &Look<'_>, found: &mut Vec<Verdict>) {
        let limits = look.thresholds;
        for (place, group) in look.ledger.groups().iter().enumerate() {
            let members: Vec<&Hop> = look.ledger.members(place).collect();
            let sum: u64 = members.iter().map(|hop| hop.counts().chunks).sum();
            let Some(uneven) = imbalance(&members).filter(|&n| n >= limits.imbalance) else {
                continue;
            };
            let Some(busiest) = members.iter().max_by_key(|hop| hop.counts().chunks) else {
                continue;
            };
            if sum < limits.imbalance_chunks {
                continue;
            }
            let counts = busiest.counts();
            // Uneven work that everybody gets done is worth knowing; frames that wait for the busiest are worth a look.
            let severity = if counts.backlog_max >= limits.backlog_frames {
                Severity::Warning
            } else {
                Severity::Info
            };
            let idle = members.iter().filter(|hop| hop.counts().chunks == 0).count();
            let who = busiest
                .worker()
                .map_or_else(|| busiest.endpoint().to_owned(), |n| format!("worker {n}"));
            let summary = format!(
                "{who} of {} on {} has {} of {} chunks, {uneven:.1} times an even part",
                members.len(),
                group.name,
                percent(counts.chunks as f64 / sum as f64),
                count(sum),
            );
            found.push(
                Verdict::new(severity, summary)
                    .hop(&group.name)
                    .with("workers", members.len())
                    .with("workers_idle", idle)
                    .with("imbalance", (uneven * 100.0).round() / 100.0)
                    .with("busiest_worker", busiest.worker())
                    .with("busiest_chunks", counts.chunks)
                    .with("busiest_backlog_max_frames", counts.backlog_max)
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
}
