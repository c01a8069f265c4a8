//! A request whose chunks went to two workers of one line.

use super::{Detector, Look, Severity, Verdict};
use crate::words::plural;

pub(super) struct RidChangedWorker;

impl Detector for RidChangedWorker {
    fn kind(&self) -> &'static str {
        "rid-changed-worker"
    }

    fn check(&self, look: &Look<'_>, found: &mut Vec<Verdict>) {
        for group in look.ledger.groups() {
            let moved = &group.moved;
            if moved.rids == 0 {
                continue;
            }
            let summary = format!(
                "chunks of {} went to more than one receiver on {}: a detokenizer that lacks a request's beginning decodes it \
                 wrongly, and nothing keeps the order between two",
                plural(moved.rids, "request"),
                group.name,
            );
            found.push(
                Verdict::new(Severity::Warning, summary)
                    .hop(&group.name)
                    .rid(&moved.worst)
                    .since(moved.since)
                    .with("changes", moved.rids)
                    .with("chunks_out_of_order", group.out_of_order.rids)
                    .advice(
                        "the router picks by the tokenizer worker's endpoint (or by the rid): look for a worker that was restarted \
                         or a number of workers that was changed while requests ran",
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
    fn a_request_that_goes_elsewhere_is_found_and_one_that_stays_is_not() {
        let mut scene = Workers::new(2);
        for n in 1..=3 {
            scene.send(0, n, "stays", n as u32);
            scene.send(1, n, "moves", n as u32);
        }
        assert!(scene.check(&RidChangedWorker).is_empty());
        scene.send(0, 4, "moves", 4);
        let found = scene.check(&RidChangedWorker);
        assert_eq!((&*found[0].rid, &found[0].evidence["changes"]), ("moves", &1.into()));
        assert_eq!(found[0].evidence["chunks_out_of_order"], 0);
    }
}
