//! Tokens that never crossed a hop, computed from the streams' own counts.

use super::{DetectContext, Severity, Verdict};
use crate::words::plural;

/// Number of missing tokens that is critical.
const CRITICAL_TOKENS: u64 = 16;

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let (seen, missing) = &context.ledger.totals().wire_loss;
    if seen.rids == 0 {
        return;
    }
    let severity = Severity::critical_if(*missing >= CRITICAL_TOKENS);
    let summary = format!(
        "{} of {} missing on the wire: completion_tokens increased by more than the chunks list",
        plural(*missing, "token"),
        plural(seen.rids, "request"),
    );
    found.push(
        Verdict::new(severity, summary)
            .affected(seen)
            .weight(*missing)
            .with("requests", seen.rids)
            .with("tokens_missing", *missing)
            .with("worst_tokens_missing", seen.amount)
            .advice("frames were lost before this hop: look for a restarted process or a reset connection"),
    );
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;

    #[test]
    fn a_lost_frame_is_reported_and_an_unobserved_one_is_not() {
        let mut scene = Scene::skip_path();
        scene.send(0, &[("a", 1, 1)]);
        scene.lose(1);
        scene.send(2, &[("a", 1, 9)]);
        assert!(scene.check(check, 3).is_empty(), "missed observations are not losses on the wire");
        scene.send(3, &[("a", 1, 12)]);
        let found = scene.check(check, 4);
        assert_eq!((&*found[0].rid, &found[0].evidence["tokens_missing"]), ("a", &2.into()));
    }
}
