//! Findings about the engine's end, and about frames and observations that tokengap lacks.

use super::{SECOND, Scene};
use crate::clock::MonoNs;
use crate::detect::Severity;
use crate::engine::example;
use crate::event::{Capabilities, Event, Hop, Missed, MissedCause, Undecoded, What};
use crate::id::{FrameId, HopId};
use crate::ledger::{Ledger, Limits};

#[test]
fn engine_ends_are_counted_and_are_not_missed_observations() {
    let mut scene = Scene::skip_path();
    assert!(scene.check("engine-ended", 0).is_empty());
    for at in [2, 5] {
        let ended = Missed::new(None, 0, MissedCause::Ended);
        scene.apply(at, What::Missed(ended));
    }
    let found = scene.check("engine-ended", 6);
    assert_eq!(found[0].evidence["times"], 2);
    assert!(scene.check("missed-observations", 6).is_empty());
}

#[test]
fn a_failure_is_reported_with_the_requests_that_were_live() {
    let mut scene = Scene::skip_path();
    scene.send(1, &[("a", 1, 1), ("b", 1, 1)]);
    assert!(scene.check("engine-failed", 2).is_empty());
    scene.fail(3);
    let found = scene.check("engine-failed", 4);
    assert_eq!(found[0].severity, Severity::Critical);
    assert_eq!(found[0].summary.as_str(), "the scheduler reported that it failed, with 2 live requests");
}

#[test]
fn silence_is_a_stall_only_after_a_timeout() {
    let mut scene = Scene::skip_path();
    scene.send(0, &[("a", 1, 1)]);
    assert!(scene.check("stalled-stream", 29 * SECOND).is_empty());
    assert_eq!(&*scene.check("stalled-stream", 31 * SECOND)[0].rid, "a");
}

#[test]
fn a_non_streaming_request_may_be_silent_for_fifty_steps() {
    let mut scene = Scene::skip_path();
    scene.send(0, &[("whole", 50, 50), ("stream", 1, 1)]);
    scene.send(SECOND, &[("stream", 1, 2)]);
    for step in 2..50 {
        scene.send(step * SECOND, &[("other", 1, step as u32)]);
    }
    let found = scene.check("stalled-stream", 50 * SECOND);
    assert_eq!(found[0].weight, 1, "its next chunk is due after 50 steps");
    assert_eq!(&*found[0].rid, "stream");
    scene.send(50 * SECOND, &[("other", 1, 50)]);
    scene.send(51 * SECOND, &[("other", 1, 51)]);
    assert_eq!(scene.check("stalled-stream", 52 * SECOND)[0].weight, 2);
}

#[test]
fn silence_after_missed_observations_is_not_a_stall() {
    let mut scene = Scene::skip_path();
    scene.send(0, &[("a", 1, 1)]);
    scene.lose(SECOND);
    assert!(scene.check("stalled-stream", 31 * SECOND).is_empty(), "its end may have been missed");
    scene.send(40 * SECOND, &[("a", 1, 3)]);
    assert_eq!(scene.check("stalled-stream", 71 * SECOND).len(), 1);
}

#[test]
fn undecodable_frames_are_reported_with_a_reason() {
    let mut scene = Scene::skip_path();
    scene.send(0, &[("a", 1, 1)]);
    scene.send_undecodable(0, 1, "class unknown");
    let found = scene.check("undecoded", 2);
    assert_eq!(found[0].severity, Severity::Critical);
    assert_eq!(found[0].evidence["frames"], 2);
    assert!(found[0].summary.ends_with("class unknown"));
}

#[test]
fn a_hop_takes_its_reasons_to_its_new_name() {
    let mut ledger = Ledger::new(Limits::default());
    let mut apply = |what| ledger.apply(&Event { at: MonoNs(1), what });
    let named = |id, name| What::Hop(Hop::new(HopId(id), name, Capabilities::default()));
    apply(named(0, "a->b"));
    apply(named(1, "c->b"));
    let id = FrameId::new(HopId(1), 0, 0);
    let reason = "layout";
    apply(What::Undecoded(Undecoded::new(id, 9, reason)));
    apply(named(1, "a->b"));
    let group = ledger.groups().iter().position(|group| group.name == "a->b").expect("a->b");
    assert_eq!(ledger.undecoded_by_reason(group), [("layout", 1)].into());
}

#[test]
fn an_announced_miss_with_a_sequence_gap_is_counted_once() {
    let mut scene = Scene::skip_path();
    scene.send(0, &[("a", 1, 1)]);
    scene.lose(1);
    scene.send(1, &[("a", 1, 3)]);
    let found = scene.check("missed-observations", 2);
    assert_eq!(found[0].evidence["queue_full"], 1);
    assert_eq!(found[0].evidence["unannounced"], 0);
}

#[test]
fn requests_that_cannot_be_read_put_no_token_in_doubt() {
    let mut scene = Scene::skip_path();
    scene.hop(Hop::with_requests(HopId(1), "tokenizer->scheduler", Capabilities::SENT));
    scene.send_undecodable(1, 1, "cut-by-capture");
    let found = scene.check("undecoded", 2);
    assert_eq!((found.len(), found[0].severity, &*found[0].hop), (1, Severity::Info, "tokenizer->scheduler"));
}

#[test]
fn a_limit_of_a_list_is_no_warning() {
    let limits = Limits { lost_ranges_per_rid: 1, ..Limits::default() };
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::DELIVERED;
    let mut scene = Scene::empty(example::ENGINES, limits).with_hop(capabilities);
    for token in 1..=5 {
        scene.send(0, &[("a", 1, token)]);
        scene.receive(1, token.into());
    }
    for token in [1, 3, 5] {
        scene.deliver(2, "a", 1, token, false);
    }
    let found = scene.check("limit-reached", 3);
    assert_eq!((found[0].severity, &found[0].evidence["lost_ranges_per_rid"]), (Severity::Info, &1.into()));
    assert_eq!(scene.check("dropped-chunks", 3)[0].evidence["tokens_lost"], 2, "both are counted");
    assert_eq!(scene.ledger.degraded_reason_lines().count(), 0);
}

#[test]
fn evictions_at_a_limit_are_reported() {
    let mut scene = Scene::skip_path_with(Limits { live_rids: 2, ..Limits::default() });
    scene.send(0, &[("a", 1, 1), ("b", 1, 1)]);
    assert!(scene.check("limit-reached", 1).is_empty());
    scene.send(1, &[("c", 1, 1)]);
    let found = scene.check("limit-reached", 2);
    assert_eq!((found[0].severity, &found[0].evidence["live_rids"]), (Severity::Warning, &1.into()));
    assert_eq!(scene.ledger.degraded_reason_lines().count(), 1);
}
