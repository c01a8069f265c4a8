//! Tokens that wait in a frontend after the engine's server wrote them to it.

use super::thresholds::{GAP_WARNING_NS, gap_severity};
use super::{DetectContext, Verdict};
use crate::stats::Distribution;
use crate::words::{duration, plural};

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let waits = context.ledger.frontend();
    let Some(severity) = gap_severity(waits.worst.ns) else {
        return;
    };
    let parts = [("first", &waits.first_token), ("last", &waits.last_token)];
    let late = parts.iter().filter(|(_, waits)| longest(waits) >= GAP_WARNING_NS);
    let late = late.map(|(which, waits)| {
        format!(
            "{which} tokens wait up to {} (median {}, {})",
            duration(longest(waits)),
            duration(waits.quantile(0.5).unwrap_or(0)),
            plural(waits.count(), "response"),
        )
    });
    let summary = format!("in the frontend, {} after the worker wrote them", late.collect::<Vec<_>>().join(" and "));
    found.push(
        Verdict::new(severity, summary)
            .rid(&waits.worst.rid)
            .weight(waits.worst.ns)
            .with("responses", waits.responses)
            .with("first_token_max_ns", waits.first_token.max())
            .with("last_token_max_ns", waits.last_token.max())
            .advice(
                "the worker and its clients' connections are not the cause: give the frontend CPUs, or start more frontends",
            ),
    );
}

fn longest(waits: &Distribution) -> u64 {
    waits.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::super::scene::{MS, SECOND, Scene};
    use super::*;
    use crate::event::{FrontendWait, What};

    fn found(first_token_ns: Option<u64>, last_token_ns: Option<u64>) -> Vec<Verdict> {
        let mut scene = Scene::skip_path();
        let wait = FrontendWait { rid: "a", first_token_ns, last_token_ns };
        scene.apply(20 * SECOND, What::FrontendWait(wait));
        scene.check(check, 21 * SECOND)
    }

    #[test]
    fn a_long_wait_is_reported_with_its_request() {
        let found = found(Some(110 * SECOND), Some(2 * MS));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].severity, Severity::Critical);
        assert_eq!(&*found[0].rid, "a");
        assert_eq!(
            found[0].summary,
            "in the frontend, first tokens wait up to 110.000 s (median 110.000 s, 1 response) after the worker wrote them"
        );
    }

    #[test]
    fn short_and_unknown_waits_are_not_reported() {
        assert!(found(Some(900 * MS), None).is_empty());
        assert!(found(None, None).is_empty());
    }
}
