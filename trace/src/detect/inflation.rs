//! Cumulative output that a consumer adds up as if each chunk were new.

use super::{DetectContext, Severity, Verdict};
use crate::ledger;
use crate::words::{count, plural};

pub(super) fn inflated(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let totals = context.ledger.totals();
    let claimed = &totals.claimed_inflation;
    if claimed.seen.rids > 0 {
        found.push(verdict(Severity::Critical, claimed, "consumers counted", true));
    } else if totals.wire_inflation.seen.rids > 0 {
        found.push(verdict(Severity::Warning, &totals.wire_inflation, "a consumer that sums chunks counts", false));
    }
}

/// A consumer whose token count is the sum of the cumulative counts it received.
pub(super) fn summed(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let summed = &context.ledger.totals().summed;
    if summed.seen.rids == 0 {
        return;
    }
    let summary = format!(
        "a consumer reports {} instead of {}, in {}: exactly the sum of the cumulative counts it received",
        plural(summed.counted, "token"),
        count(summed.made),
        plural(summed.seen.rids, "request"),
    );
    found.push(
        Verdict::new(Severity::Warning, summary)
            .affected(&summed.seen)
            .weight(summed.counted)
            .with("requests", summed.seen.rids)
            .with("tokens_counted", summed.counted)
            .with("tokens_made", summed.made)
            .advice("use a request's last count, not the sum of all counts: usage, billing and limits based on the sum are wrong"),
    );
}

fn verdict(severity: Severity, of: &ledger::Inflation, subject: &str, confirmed: bool) -> Verdict {
    let ratio = of.counted as f64 / of.made.max(1) as f64;
    let summary = format!(
        "{subject} {} instead of {} ({ratio:.1} times as many) in {}: it mistakes all tokens so far for new ones",
        plural(of.counted, "token"),
        count(of.made),
        plural(of.seen.rids, "request"),
    );
    Verdict::new(severity, summary)
        .affected(&of.seen)
        .weight(of.counted)
        .with("requests", of.seen.rids)
        .with("tokens_counted", of.counted)
        .with("tokens_made", of.made)
        .with("ratio", ratio)
        .with("confirmed", confirmed)
        .advice("the consumer expects only new tokens but the engine sends all tokens so far: set the engine's incremental flag, or compute differences")
}

#[cfg(test)]
mod tests {
    use super::super::scene::{SECOND, Scene};
    use super::*;

    #[test]
    fn a_consumer_that_sums_cumulative_counts_is_reported() {
        let mut scene = Scene::delivering();
        for n in 1..=9 {
            scene.send(n, &[("a", 1, n as u32)]);
            scene.deliver(n, "a", n as u32, n as u32, n == 9);
        }
        let found = scene.check(inflated, 10);
        assert_eq!(found[0].evidence["tokens_counted"], 45);
        assert_eq!(found[0].evidence["tokens_made"], 9);
    }

    #[test]
    fn a_count_restart_after_an_unobserved_retraction_is_not_inflation() {
        let mut scene = Scene::delivering();
        scene.send(1, &[("a", 4, 4)]);
        scene.send(2, &[("a", 2, 6)]);
        // 20 tokens and a retraction, all unobserved. Merged, they are a delivery of 20 tokens with a count of 1.
        scene.deliver(3, "a", 20, 1, false);
        assert!(scene.check(inflated, 4).is_empty());
        // 40 tokens, a retraction, and 20 tokens again.
        scene.deliver(5, "a", 20, 20, false);
        assert!(scene.check(inflated, 6).is_empty());
    }

    #[test]
    fn usage_that_sums_all_counts_is_reported_as_inflation_not_loss() {
        use crate::event::{Answer, What};
        let mut scene = Scene::delivering();
        for n in 1..=9 {
            scene.send(n, &[("a", 1, n as u32)]);
            scene.deliver(n, "a", 1, n as u32, false);
        }
        let answer = |claimed| Answer::new("a", Some(9), Some(claimed));
        for claimed in [9, 44, 46] {
            scene.apply(10, What::Answered(answer(claimed)));
        }
        assert!(scene.check(summed, 11).is_empty());
        scene.apply(12, What::Answered(answer(45)));
        let found = scene.check(summed, 13);
        assert_eq!(found[0].severity, Severity::Warning);
        assert_eq!(found[0].evidence["tokens_counted"], 45);
        assert_eq!(found[0].evidence["tokens_made"], 9);
        // A delivery that claims such a sum says nothing about positions, so it proves no loss.
        for n in 1..=6 {
            scene.send(20 + n, &[("b", 1, n as u32)]);
        }
        scene.deliver(30, "b", 1, 21, true);
        assert!(scene.check(super::super::drops::dropped, 31).is_empty());
        assert_eq!(scene.check(summed, 31)[0].evidence["requests"], 2);
    }

    #[test]
    fn a_count_on_another_worker_is_not_a_sum_of_earlier_counts() {
        let mut workers = Scene::workers(2);
        for n in 1..=9 {
            workers.send_to(0, n, "a", n as u32);
        }
        for n in 10..=45 {
            workers.send_to(1, n, "a", n as u32);
        }
        workers.deliver(46, "a", 1, 45, true);
        assert!(workers.check(summed, SECOND).is_empty());
    }

    #[test]
    fn a_cumulative_stream_of_an_incremental_release_is_reported() {
        let mut scene = Scene::skip_path();
        for n in 1..=6 {
            scene.send(n, &[("a", n as u32, n as u32)]);
        }
        let found = scene.check(inflated, 7);
        assert_eq!(found[0].severity, Severity::Warning);
        assert_eq!(found[0].evidence["confirmed"], false);
    }
}
