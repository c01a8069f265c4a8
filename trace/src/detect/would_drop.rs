//! Chunks replaced by a later one in cumulative mode. Nothing is lost, but the same engine would lose them in incremental mode.

use super::{DetectContext, Severity, Verdict, advice};
use crate::engine::Waiter;
use crate::words::{plural, share};

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let totals = context.ledger.totals();
    let engine = context.ledger.engine();
    if engine.waiter != Some(Waiter::KeepsLast) {
        return;
    }
    let confirmed = context.ledger.observes_deliveries();
    let (chunks, of, seen) = if confirmed {
        (totals.replaced.0, totals.chunks.tracked, &totals.replaced.1)
    } else {
        (totals.predicted.replaced, totals.chunks.received, &totals.bursts)
    };
    if chunks == 0 {
        return;
    }
    let summary = format!(
        "{} ({}) of {} replaced by later ones{}: harmless in cumulative mode, but their tokens would be lost in incremental mode",
        plural(chunks, "chunk"),
        share(chunks, of),
        plural(seen.rids, "request"),
        if confirmed { "" } else { " (predicted)" },
    );
    found.push(
        Verdict::new(Severity::Info, summary)
            .affected(seen)
            .weight(chunks)
            .with("requests", seen.rids)
            .with("chunks", chunks)
            .with("confirmed", confirmed)
            .advice(advice::would_drop(engine)),
    );
}

#[cfg(test)]
mod tests {
    use super::super::merging;
    use super::super::scene::Scene;
    use super::*;
    use crate::engine::Mode;
    use crate::event::{Engine, What};

    #[test]
    fn would_drop_reports_replaced_chunks_and_merging_does_not() {
        let mut scene = Scene::delivering();
        scene.apply(
            0,
            What::Engine(Engine { version: Some("0.5.9"), mode: Some(Mode::Cumulative), ..Engine::default() }),
        );
        for n in 1..=3 {
            scene.send(n, &[("a", 1, n as u32)]);
        }
        scene.deliver_as(5, Mode::Cumulative, "a", 3, 3, true);
        let found = scene.check(check, 6);
        assert_eq!(found[0].severity, Severity::Info);
        assert_eq!(found[0].evidence["chunks"], 2);
        assert!(scene.check(merging::check, 6).is_empty());
    }
}
