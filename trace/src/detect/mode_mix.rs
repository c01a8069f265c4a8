//! New tokens here, all tokens there: consumers cannot be right for both.

use super::{Detector, Look, Severity, Verdict};
use crate::words::count;

pub(super) struct ModeMix;

impl Detector for ModeMix {
    fn kind(&self) -> &'static str {
        "mode-mix"
    }

    fn check(&self, look: &Look<'_>, found: &mut Vec<Verdict>) {
        let (incremental, cumulative) = look.ledger.totals().deliveries;
        if incremental == 0 || cumulative == 0 {
            return;
        }
        let summary = format!(
            "{} deliveries carried new tokens only and {} all tokens so far",
            count(incremental),
            count(cumulative),
        );
        found.push(
            Verdict::new(Severity::Warning, summary)
                .weight(incremental + cumulative)
                .with("incremental", incremental)
                .with("cumulative", cumulative)
                .advice("a consumer written for one of them loses or repeats tokens with the other"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;
    use crate::engine::Mode;

    #[test]
    fn both_modes_in_one_run_are_told() {
        let mut scene = Scene::delivering();
        scene.send(0, &[("a", 1, 1)]);
        scene.deliver(1, "a", 1, 1, false);
        assert!(scene.check(&ModeMix, 2).is_empty());
        scene.deliver_as(3, Mode::Cumulative, "a", 1, 1, true);
        assert_eq!(scene.check(&ModeMix, 4).len(), 1);
    }
}
