//! Observations that we made and lost, or could not make.

use super::{Detector, Look, Severity, Verdict};
use crate::words::count;

pub(super) struct OwnLoss;

impl Detector for OwnLoss {
    fn kind(&self) -> &'static str {
        "own-loss"
    }

    fn check(&self, look: &Look<'_>, found: &mut Vec<Verdict>) {
        let lost = look.ledger.totals().lost;
        let all = lost.reported().saturating_add(lost.unannounced);
        if all == 0 {
            return;
        }
        let summary = format!(
            "{} observations lost on our side; the traffic was not touched, and counts of frames and chunks are too low",
            count(all),
        );
        found.push(
            Verdict::new(Severity::Warning, summary)
                .since(lost.since)
                .weight(all)
                .with("queue_full", lost.queue_full)
                .with("unframed", lost.unframed)
                .with("too_large", lost.too_large)
                .with("cut_short", lost.cut_short)
                .with("unannounced", lost.unannounced),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;

    #[test]
    fn a_loss_is_told_once_whether_announced_or_numbered() {
        let mut scene = Scene::skip_path();
        scene.send(0, &[("a", 1, 1)]);
        scene.lose(1);
        scene.send(1, &[("a", 1, 3)]);
        let found = scene.check(&OwnLoss, 2);
        assert_eq!(
            (&found[0].evidence["queue_full"], &found[0].evidence["unannounced"]),
            (&1.into(), &0.into())
        );
    }
}
