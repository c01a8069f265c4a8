//! The Findings tab.

use super::*;

#[test]
fn findings_match_their_snapshots() {
    let mut fixture = race();
    fixture.press(&[Action::OpenTab(Tab::Findings)]);
    fixture.model.run.degraded =
        vec!["probe: eBPF is not permitted here; add CAP_BPF and CAP_PERFMON to the container".into()];
    fixture.snapshot("findings");
    let degraded = Action::OpenItem(Tab::Findings, fixture.model.findings.len());
    fixture.press(&[degraded]);
    let drawn = fixture.drawn((60, 20), "C.UTF-8");
    let words = drawn.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&fixture.model.run.degraded[0]), "the whole text of {drawn}");
}
