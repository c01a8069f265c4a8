//! The engine ended during the run.

use super::{DetectContext, Severity, Verdict};

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let totals = context.ledger.totals();
    let summary = match totals.engine_ends {
        0 => return,
        1 => "the engine ended; queued frames were never received".to_owned(),
        times => format!("the engine ended {times} times; queued frames were never received"),
    };
    found.push(
        Verdict::new(Severity::Warning, summary)
            .since(totals.engine_ended)
            .weight(totals.engine_ends)
            .with("times", totals.engine_ends)
            .advice("read the engine's log for the reason; --follow watches the next engine"),
    );
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;
    use crate::event::{Missed, MissedCause, What};

    #[test]
    fn engine_ends_are_counted_and_are_not_missed_observations() {
        let mut scene = Scene::skip_path();
        assert!(scene.check(check, 0).is_empty());
        for at in [2, 5] {
            let ended = Missed::new(None, 0, MissedCause::Ended);
            scene.apply(at, What::Missed(ended));
        }
        let found = scene.check(check, 6);
        assert_eq!(found[0].evidence["times"], 2);
        assert!(scene.check(super::super::missed_observations::check, 6).is_empty());
    }
}
