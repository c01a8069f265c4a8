//! The Findings tab.

use trace::event::Received;
use trace::{FrameId, MonoNs};

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

/// The request's screen and its finding name both receivers.
#[test]
fn a_request_that_changes_its_worker_shows_from_which_to_which() {
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
    let mut fixture = Fixture::of(Scene::new(&[("router->detokenizer", capabilities); 2]));
    for (id, worker, endpoint) in [(0, 1, "ipc:///tmp/a"), (1, 3, "ipc:///tmp/b")] {
        let hop = Hop { worker: Some(worker), endpoint, ..Hop::new(HopId(id), "router->detokenizer", capabilities) };
        fixture.scene.emit(0, What::Hop(hop));
    }
    for count in 1..=5_u64 {
        let hop = u16::from(count > 3);
        let at = count * 100 * MS;
        fixture.scene.send_on(hop, at, &[("5b92f00d", 1, count as u32)], None);
        let seq = if hop == 0 { count - 1 } else { count - 4 };
        fixture.scene.emit(at + MS, What::Received(Received::new(FrameId::new(HopId(hop), 0, seq))));
    }
    fixture.scene.tick(1_000 * MS);
    fixture.refresh();
    assert_eq!(fixture.model.started_at, MonoNs(0));
    let expected = "detokenizer worker 1 to worker 3 at chunk 4, 300 ms after its first";
    let index = fixture.model.findings.iter().position(|finding| finding.kind == "rid-changed-worker");
    fixture.press(&[Action::OpenItem(Tab::Findings, index.expect("the finding"))]);
    fixture.model.refresh_receiver_changes(&fixture.scene.analysis, &fixture.scene.pinned, index.unwrap_or(0));
    let drawn = fixture.drawn((100, 30), "C.UTF-8");
    assert!(drawn.contains(expected), "{drawn}");
    fixture.press(&[Action::OpenSelection]);
    let drawn = fixture.drawn((100, 30), "C.UTF-8").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(drawn.contains(&format!("MOVED {expected}: its chunks went to more than one receiver")), "{drawn}");
}
