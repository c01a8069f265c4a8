//! Memory limits of tokengap that were reached.

use super::{DetectContext, Severity, Verdict};
use crate::words::count;

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
    let limits = context.ledger.limits();
    let reached: Vec<_> = limits.iter().filter(|l| l.times > 0).collect();
    let Some(worst) = reached.iter().max_by_key(|l| l.times) else {
        return;
    };
    let summary = format!(
        "the memory limit {} of {} was reached {} times",
        worst.name,
        count(worst.limit as u64),
        count(worst.times),
    );
    let verdict = Verdict::new(Severity::Warning, summary).weight(reached.iter().map(|l| l.times).sum()).advice(
        format!("raise it with --limit {}=N if you need the evicted entries; each entry costs memory", worst.name),
    );
    found.push(reached.iter().fold(verdict, |v, l| v.with(l.name, l.times)));
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;
    use crate::ledger::Limits;

    #[test]
    fn evictions_at_a_limit_are_reported() {
        let mut scene = Scene::skip_path_with(Limits { live_rids: 2, ..Limits::default() });
        scene.send(0, &[("a", 1, 1), ("b", 1, 1)]);
        assert!(scene.check(check, 1).is_empty());
        scene.send(1, &[("c", 1, 1)]);
        assert_eq!(scene.check(check, 2)[0].evidence["live_rids"], 1);
    }
}
