//! Cumulative output that is added up as if each chunk were new.

use super::{Detector, Look, Severity, Verdict};
use crate::ledger;
use crate::words::{count, plural};

pub(super) struct Inflation;

impl Detector for Inflation {
    fn kind(&self) -> &'static str {
        "inflation"
    }

    fn check(&self, look: &Look<'_>, found: &mut Vec<Verdict>) {
        let totals = look.ledger.totals();
        let claimed = &totals.claimed_inflation;
        if claimed.seen.rids > 0 {
            found.push(verdict(Severity::Critical, claimed, "consumers counted", true));
        } else if totals.wire_inflation.seen.rids > 0 {
            found.push(verdict(
                Severity::Warning,
                &totals.wire_inflation,
                "a consumer that adds chunks up counts",
                false,
            ));
        }
    }
}

fn verdict(severity: Severity, of: &ledger::Inflation, who: &str, confirmed: bool) -> Verdict {
    let ratio = of.counted as f64 / of.made.max(1) as f64;
    let summary = format!(
        "{who} {} where {} were made ({ratio:.1} times as many) in {}: all tokens so far are taken for new ones",
        plural(of.counted, "token"),
        count(of.made),
        plural(of.seen.rids, "request"),
    );
    Verdict::new(severity, summary)
        .rid(&of.seen.worst)
        .since(of.seen.since)
        .weight(of.counted)
        .with("requests", of.seen.rids)
        .with("tokens_counted", of.counted)
        .with("tokens_made", of.made)
        .with("ratio", ratio)
        .with("confirmed", confirmed)
        .advice("the consumer expects new tokens only and the engine sends all: set the engine's incremental flag, or take differences")
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;

    #[test]
    fn a_consumer_that_adds_up_everything_is_found() {
        let mut scene = Scene::delivering();
        for n in 1..=9 {
            scene.send(n, &[("a", 1, n as u32)]);
            scene.deliver(n, "a", n as u32, n as u32, n == 9);
        }
        let found = scene.check(&Inflation, 10);
        assert_eq!(
            (&found[0].evidence["tokens_counted"], &found[0].evidence["tokens_made"]),
            (&45.into(), &9.into())
        );
    }

    #[test]
    fn a_stream_that_lists_everything_against_its_release_is_found() {
        let mut scene = Scene::skip_path();
        for n in 1..=6 {
            scene.send(n, &[("a", n as u32, n as u32)]);
        }
        let found = scene.check(&Inflation, 7);
        assert_eq!(
            (found[0].severity, &found[0].evidence["confirmed"]),
            (Severity::Warning, &false.into())
        );
    }
}
