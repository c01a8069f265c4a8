//! Chunks of a request that were received in a different order than generated.

use super::{DetectContext, Severity, Verdict};
use crate::words::plural;

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    for group in context.ledger.groups() {
        let late = &group.out_of_order;
        if late.rids == 0 {
            continue;
        }
        let summary =
            format!("{} on {} arrived after a later one of the same request", plural(late.rids, "chunk"), group.name);
        found.push(
            Verdict::new(Severity::Warning, summary)
                .hop(&group.name)
                .affected(late)
                .with("chunks", late.rids)
                .with("tokens_behind_max", late.amount)
                .advice("ZMQ preserves order only within a connection: the request's chunks were sent on two"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::scene::{SECOND, Scene};
    use super::*;
    use crate::event::{Chunk, Finish};

    #[test]
    fn an_overtaken_chunk_is_reported() {
        let mut scene = Scene::workers(2);
        for n in 1..=4 {
            scene.send_to(0, n, "a", n as u32);
        }
        assert!(scene.check(check, SECOND).is_empty());
        scene.send_to(1, 5, "a", 6);
        scene.send_to(0, 6, "a", 5);
        let found = scene.check(check, SECOND);
        assert_eq!((&*found[0].rid, &found[0].evidence["chunks"]), ("a", &1.into()));
    }

    #[test]
    fn a_count_restart_after_a_retraction_is_not_out_of_order() {
        let mut scene = Scene::workers(2);
        for n in 1..=6 {
            scene.send_to(0, n, "a", n as u32);
        }
        for n in 7..=9 {
            scene.send_chunk(0, n, Chunk { retractions: Some(1), ..Chunk::counted("a", 1, n as u32 - 4) });
        }
        assert!(scene.check(check, SECOND).is_empty());
    }

    #[test]
    fn chunks_of_a_possible_next_request_with_the_same_rid_are_not_out_of_order() {
        let mut scene = Scene::workers(2);
        for rid in ["late", "again"] {
            (1..=3).for_each(|n| scene.send_to(0, n, rid, n as u32));
            scene.send_chunk(0, 4, Chunk { finish: Some(Finish::Stop), ..Chunk::counted(rid, 1, 4) });
        }
        scene.send_to(1, 5, "late", 3);
        let found = scene.check(check, SECOND);
        assert_eq!((&*found[0].rid, &found[0].evidence["chunks"]), ("late", &1.into()));
        // Its beginning may be in the unreadable frame.
        scene.send_undecodable(1, 6, "truncated");
        scene.send_to(1, 7, "again", 2);
        assert_eq!(scene.check(check, SECOND), found);
    }
}
