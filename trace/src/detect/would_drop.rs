//! Chunks replaced by a later one in cumulative mode. Nothing is lost, but the same engine would lose them in incremental mode.

use super::{Detector, Look, Severity, Verdict};
use crate::engine::{DROPS_FIXED_IN, Waiter};
use crate::words::{plural, share};

pub(super) struct WouldDrop;

impl Detector for WouldDrop {
    fn kind(&self) -> &'static str {
        "would-drop"
    }

    fn check(&self, look: &Look<'_>, found: &mut Vec<Verdict>) {
        let totals = look.ledger.totals();
        let engine = look.ledger.engine();
        if engine.waiter != Some(Waiter::KeepsLast) {
            return;
        }
        let confirmed = look.ledger.sees_deliveries();
        let (chunks, of, seen) = if confirmed {
            (totals.replaced.0, totals.chunks.lined_up, &totals.replaced.1)
        } else {
            (totals.predicted.replaced, totals.chunks.taken, &totals.bursts)
        };
        if chunks == 0 {
            return;
        }
        let flag = engine.behaviour.flag().unwrap_or("--stream-output");
        let summary = format!(
            "{} ({}) of {} replaced by later ones{}: nothing is lost in cumulative mode, in incremental mode they would be",
            plural(chunks, "chunk"),
            share(chunks, of),
            plural(seen.rids, "request"),
            if confirmed { "" } else { " (predicted)" },
        );
        found.push(
            Verdict::new(Severity::Info, summary)
                .rid(&seen.worst)
                .since(seen.since)
                .weight(chunks)
                .with("requests", seen.rids)
                .with("chunks", chunks)
                .with("confirmed", confirmed)
                .advice(format!(
                    "do not set {flag} before {DROPS_FIXED_IN}, which merges queued chunks"
                )),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::coalescing::Coalescing;
    use super::super::scene::Scene;
    use super::*;
    use crate::engine::Mode;
    use crate::event::{Engine, What};

    #[test]
    fn a_cumulative_stream_is_told_what_it_would_lose_and_nothing_else() {
        let mut scene = Scene::delivering();
        scene.say(
            0,
            What::Engine(Engine {
                version: Some("0.5.9"),
                mode: Some(Mode::Cumulative),
                ..Engine::default()
            }),
        );
        for n in 1..=3 {
            scene.send(n, &[("a", 1, n as u32)]);
        }
        scene.deliver_as(5, Mode::Cumulative, "a", 3, 3, true);
        let found = scene.check(&WouldDrop, 6);
        assert_eq!(
            (found[0].severity, &found[0].evidence["chunks"]),
            (Severity::Info, &2.into())
        );
        assert!(scene.check(&Coalescing, 6).is_empty());
    }
}
