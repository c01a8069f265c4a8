//! The engine reported that it failed.

use super::{DetectContext, Severity, Verdict};
use crate::words::plural;

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let Some((at, live)) = context.ledger.totals().engine_failed else {
        return;
    };
    let source = context.facts().source();
    let summary = format!("the {source} reported that it failed, with {}", plural(live, "live request"));
    found.push(
        Verdict::new(Severity::Critical, summary)
            .since(Some(at))
            .weight(live)
            .with("live_requests", live)
            .advice("read the engine's log for the error and restart the engine: it makes no more tokens"),
    );
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;

    #[test]
    fn a_failure_is_reported_with_the_requests_that_were_live() {
        let mut scene = Scene::skip_path();
        scene.send(1, &[("a", 1, 1), ("b", 1, 1)]);
        assert!(scene.check(check, 2).is_empty());
        scene.fail(3);
        let found = scene.check(check, 4);
        assert_eq!(found[0].severity, Severity::Critical);
        assert_eq!(found[0].summary.as_str(), "the scheduler reported that it failed, with 2 live requests");
    }
}
