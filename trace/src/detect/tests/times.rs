//! Start and last occurrence of findings, whenever detectors run.

use super::super::{DetectContext, Finding, Findings};
use super::{MS, SECOND, Scene};
use crate::clock::MonoNs;

/// The finding of this kind after detector runs at these times.
fn find(scene: &Scene, kind: &str, runs_at: &[u64]) -> Finding {
    let mut findings = Findings::default();
    for &now in runs_at {
        findings.run_detectors(&DetectContext::new(&scene.ledger, MonoNs(now)));
    }
    let sorted = findings.sorted_worst_first();
    let found = sorted.iter().find(|finding| finding.kind == kind).expect("it is found");
    Finding::clone(found)
}

/// Asserts first and last occurrence. The finding lasts until the last one is ten seconds ago.
fn assert_times(scene: &Scene, kind: &str, times: [u64; 2]) {
    for runs_at in [&[times[1] + 1][..], &[times[1] + 400 * MS], &[times[1] + 90 * MS, times[1] + 590 * MS]] {
        let found = find(scene, kind, runs_at);
        assert_eq!(([found.began, found.last_at].map(|at| at.0), found.active), (times, true), "{kind} at {runs_at:?}");
    }
    let late = find(scene, kind, &[times[1] + SECOND, times[1] + 10 * SECOND]);
    assert_eq!((late.began.0, late.ended_at()), (times[0], Some(MonoNs(times[1]))), "{kind}");
}

#[test]
fn a_burst_begins_and_ends_with_the_frames_that_make_it_one() {
    let mut scene = Scene::skip_path();
    for seq in 0..40 {
        scene.send(seq * MS, &[]);
    }
    scene.receive_in_wakeup(100 * MS, 0, 1);
    for seq in 1..=10 {
        scene.receive_in_wakeup((200 + seq) * MS, seq, 2);
    }
    scene.receive_in_wakeup(700 * MS, 11, 3);
    assert_times(&scene, "burst", [208 * MS, 210 * MS]);
    // The first wakeup has not ended.
    let mut endless = Scene::skip_path();
    for seq in 0..20 {
        endless.send(seq * MS, &[]);
        endless.receive_in_wakeup((300 + seq) * MS, seq, 1);
    }
    assert_times(&endless, "burst", [307 * MS, 319 * MS]);
}

#[test]
fn findings_about_requests_have_the_times_of_their_occurrences() {
    let mut scene = Scene::workers(3);
    scene.send_to(0, 10 * MS, "a", 1);
    scene.send_to(1, 866 * MS, "a", 2);
    scene.send_to(0, 900 * MS, "b", 1);
    scene.send_to(1, 1_900 * MS, "b", 2);
    scene.send_to(2, 1_900 * MS, "b", 3);
    assert_times(&scene, "rid-changed-worker", [866 * MS, 1_900 * MS]);
    assert_eq!(scene.check("rid-changed-worker", 2 * SECOND)[0].evidence["requests"], 2, "b changed twice");
    let mut lossy = Scene::skip_path();
    lossy.send(MS, &[("a", 1, 1)]);
    lossy.send(2 * MS, &[("a", 1, 5)]);
    lossy.send(3 * MS, &[("a", 1, 6)]);
    assert_times(&lossy, "wire-loss", [2 * MS, 2 * MS]);
}

#[test]
fn late_first_tokens_begin_with_the_first_late_send_and_end_with_the_last_late_receive() {
    let mut scene = Scene::skip_path();
    for (seq, rid) in ["a", "b", "c"].into_iter().enumerate() {
        scene.send(seq as u64 * 100 * MS, &[(rid, 1, 1)]);
    }
    scene.receive(1_500 * MS, 0);
    scene.receive(3_000 * MS, 1);
    scene.receive(3_001 * MS, 2);
    scene.send(4_000 * MS, &[("d", 1, 1)]);
    scene.receive(4_001 * MS, 3);
    assert_times(&scene, "first-token-gap", [0, 3_001 * MS]);
}
