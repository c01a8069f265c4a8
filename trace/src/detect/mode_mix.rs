//! Incremental and cumulative deliveries in one engine: a consumer cannot handle both correctly.

use super::{DetectContext, Severity, Verdict};
use crate::words::count;

const ADVICE: &str = "a consumer written for one mode loses or repeats tokens in the other";

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let (incremental, cumulative) = context.ledger.totals().deliveries;
    if incremental > 0 && cumulative > 0 {
        found.push(mix("deliveries carried", incremental, cumulative));
    }
    for group in context.ledger.groups() {
        let (delta, cumulative) = group.streams;
        if delta > 0 && cumulative > 0 {
            found.push(mix("streams list", delta, cumulative).hop(&group.name));
        }
    }
}

fn mix(what: &str, new: u64, all: u64) -> Verdict {
    let summary = format!("{} {what} new tokens only and {} all tokens so far", count(new), count(all));
    Verdict::new(Severity::Warning, summary)
        .weight(new + all)
        .with("incremental", new)
        .with("cumulative", all)
        .advice(ADVICE)
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;
    use crate::engine::Mode;

    #[test]
    fn incremental_and_cumulative_deliveries_in_one_run_are_reported() {
        let mut scene = Scene::delivering();
        scene.send(0, &[("a", 1, 1)]);
        // The first delivery of a request is the same in both modes.
        scene.deliver_as(1, Mode::Cumulative, "a", 1, 1, false);
        scene.send(2, &[("a", 1, 2)]);
        scene.deliver(3, "a", 1, 2, false);
        assert!(scene.check(check, 4).is_empty());
        scene.deliver_as(5, Mode::Cumulative, "a", 2, 2, true);
        assert_eq!(scene.check(check, 6).len(), 1);
    }

    #[test]
    fn incremental_and_cumulative_streams_on_one_hop_are_reported() {
        let mut scene = Scene::skip_path();
        for n in 1..=5 {
            scene.send(n, &[("new", 1, n as u32), ("all", n as u32, n as u32)]);
        }
        assert_eq!(scene.check(check, 6)[0].hop, "scheduler->tokenizer");
    }
}
