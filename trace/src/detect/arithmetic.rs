//! Chunks that list more tokens than possible, without a known reason.

use super::{DetectContext, Severity, Verdict};
use crate::words::plural;

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let (seen, chunks) = &context.ledger.totals().anomalies;
    if seen.rids == 0 {
        return;
    }
    let summary = format!(
        "{} of {} list more ids than completion_tokens increased by",
        plural(*chunks, "chunk"),
        plural(seen.rids, "request"),
    );
    found.push(
        Verdict::new(Severity::Info, summary)
            .affected(seen)
            .weight(*chunks)
            .with("requests", seen.rids)
            .with("chunks", *chunks)
            .with("most_extra_ids", seen.amount),
    );
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;

    #[test]
    fn unexplained_extra_ids_are_reported() {
        let mut scene = Scene::skip_path();
        scene.send(0, &[("a", 5, 5)]);
        scene.send(1, &[("a", 1, 6)]);
        assert!(scene.check(check, 2).is_empty());
        scene.send(2, &[("a", 4, 8)]);
        assert_eq!(scene.check(check, 3)[0].evidence["most_extra_ids"], 2);
    }
}
