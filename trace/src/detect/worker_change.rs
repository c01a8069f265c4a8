//! A request whose chunks went to two workers of one line.

use super::{DetectContext, Severity, Verdict};
use crate::words::plural;

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    for group in context.ledger.groups() {
        let moved = &group.moved;
        if moved.rids == 0 {
            continue;
        }
        let summary = format!(
            "chunks of {} went to more than one receiver on {}: a detokenizer without the start of a request decodes it wrongly, and order between receivers is not guaranteed",
            plural(moved.rids, "request"),
            group.name,
        );
        found.push(
            Verdict::new(Severity::Warning, summary)
                .hop(&group.name)
                .affected(moved)
                .with("changes", moved.rids)
                .with("chunks_out_of_order", group.out_of_order.rids)
                .advice(
                    "the router selects by the tokenizer worker's endpoint (or by the rid): look for a worker restart or a change in the number of workers while requests were running",
                ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::scene::{SECOND, Scene};
    use super::*;

    #[test]
    fn only_a_request_that_changes_workers_is_reported() {
        let mut scene = Scene::workers(2);
        for n in 1..=3 {
            scene.send_to(0, n, "stays", n as u32);
            scene.send_to(1, n, "moves", n as u32);
        }
        assert!(scene.check(check, SECOND).is_empty());
        scene.send_to(0, 4, "moves", 4);
        let found = scene.check(check, SECOND);
        assert_eq!((&*found[0].rid, &found[0].evidence["changes"]), ("moves", &1.into()));
        assert_eq!(found[0].evidence["chunks_out_of_order"], 0);
    }
}
