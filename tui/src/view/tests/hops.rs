//! The Hops tab.

use trace::ThreadId;
use trace::event::{CpuSample, QueueSample};

use super::*;

#[test]
fn hops_match_their_snapshots() {
    let mut fixture = race();
    fixture.press(&[Action::OpenTab(Tab::Hops)]);
    fixture.snapshot("hops");
    let mut fixture = tapped();
    fixture.press(&[Action::OpenTab(Tab::Hops)]);
    fixture.snapshot("hops_tapped");
}

#[test]
fn hops_with_long_names_match_their_snapshots() {
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
    let hops = ["scheduler->detokenizer-router", "detokenizer-router->detokenizer", "detokenizer->worker"];
    let mut fixture = Fixture::of(Scene::new(&hops.map(|name| (name, capabilities))));
    fixture.scene.send(MS, &[("5b92f00d", 1, 1)]);
    fixture.refresh();
    fixture.press(&[Action::OpenTab(Tab::Hops)]);
    fixture.snapshot("hops_routers");
}

/// The receiver has exited, or is not watched any more.
#[test]
fn after_the_end_of_an_observation_the_screen_says_since_when_nothing_is_known() {
    let mut scene = Scene::delivering();
    scene.send(0, &[("a", 1, 1)]);
    scene.receive(3 * MS, 0, 1);
    scene.deliver(4 * MS, "a", 1, 1);
    let queue = QueueSample { hop: "scheduler->tokenizer", receive_bytes: Some(4_096), send_bytes: None };
    scene.emit(900 * MS, What::Queue(queue));
    let hop = Hop { origin: true, last: true, ..Hop::new(HopId(0), "scheduler->tokenizer", Capabilities::SENT) };
    scene.emit(1_500 * MS, What::Hop(hop));
    scene.tick(20_000 * MS);
    let mut fixture = Fixture::of(scene);
    fixture.refresh();
    let degraded = "scheduler->tokenizer: receives and deliveries are not observed since 0:01: ";
    assert!(fixture.model.run.degraded[0].starts_with(degraded), "{:?}", fixture.model.run.degraded);
    assert_eq!((fixture.model.hops[0].health, fixture.model.hops[0].backlog_frames), (Health::Unknown, None));
    let overview = fixture.drawn((120, 40), "C.UTF-8");
    for expected in ["   receives are not observed since 0:01", "backlog unknown"] {
        assert!(overview.contains(expected), "{expected}: {overview}");
    }
    let curves: Vec<&str> = overview.lines().filter(|line| line.contains("backlog  ")).collect();
    assert!(curves[0].ends_with("unknown         1"), "{curves:?}");
    fixture.scene.tick(120_000 * MS);
    fixture.refresh();
    let later = fixture.drawn((120, 40), "C.UTF-8");
    assert!(later.contains("backlog       not observed since 0:01"), "{later}");
    fixture.press(&[Action::OpenTab(Tab::Hops)]);
    let hops = fixture.drawn((120, 40), "C.UTF-8");
    for expected in ["not sampled since 0:00, max 4.0 KiB", "oldest        receives are not observed since 0:01"] {
        assert!(hops.contains(expected), "{expected}: {hops}");
    }
}

/// The receiver is not watched any more, and the scheduler is not sampled any more.
#[test]
fn after_the_end_of_the_sends_rates_are_unknown() {
    let mut scene = Scene::delivering();
    scene.send(0, &[("a", 1, 1)]);
    scene.receive(3 * MS, 0, 1);
    let scheduler = ThreadId { pid: 7, tid: 7 };
    scene.emit(1_000 * MS, What::Cpu(CpuSample::new(scheduler, "scheduler", 1_000 * MS, 0)));
    let hop = Hop { origin: true, last: true, ..Hop::new(HopId(0), "scheduler->tokenizer", Capabilities::SENT) };
    scene.emit(1_500 * MS, What::Hop(hop));
    scene.tick(2_500 * MS);
    let mut fixture = Fixture::of(scene);
    fixture.refresh();
    assert!(fixture.model.hops[0].rates.is_some(), "the next sample may come");
    fixture.scene.tick(20_000 * MS);
    fixture.refresh();
    assert_eq!((fixture.model.hops[0].rates, fixture.model.send_rates), (None, None));
    let overview = fixture.drawn((120, 40), "C.UTF-8");
    for expected in ["rate unknown", "flow     not observed since 0:01, then"] {
        assert!(overview.contains(expected), "{expected}: {overview}");
    }
    fixture.press(&[Action::OpenTab(Tab::Hops)]);
    let hops = fixture.drawn((120, 50), "C.UTF-8");
    assert!(hops.contains("passed        1 frames  1 chunks  900 B  not observed since 0:01"), "{hops}");
    assert!(!hops.contains("rates of"), "{hops}");
    assert_eq!(hops.matches(": unknown, max").count(), 3, "backlog, queue wait and frames: {hops}");
}

#[test]
fn a_trend_without_room_for_its_curve_says_where_it_is() {
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
    // With the facts of the first one, these leave two rows for the trend.
    let hops = ["scheduler->router", "router->detokenizer", "detokenizer->router2", "router2->tokenizer"];
    let mut scene = Scene::new(&hops.map(|name| (name, capabilities)));
    for count in 1..=1_519 {
        scene.send(u64::from(count) * MS, &[("a", 1, count)]);
    }
    let mut fixture = Fixture::of(scene);
    fixture.refresh();
    fixture.press(&[Action::OpenTab(Tab::Hops)]);
    for (width, expected) in [
        (71, "  curve: enlarge  max 1,519"),
        (78, "  curve: enlarge         max 1,519"),
        (79, "  backlog, curve: enlarge max 1,519"),
        (80, "  backlog, curve: enlarge  max 1,519"),
        (100, "  backlog, curve: enlarge       so far: 1,519, max 1,519"),
    ] {
        let drawn = fixture.drawn((width, 20), "C.UTF-8");
        let row = drawn.lines().find(|line| line.contains("frames by queue wait")).expect("the histogram");
        assert!(row.ends_with(expected), "{width}: {drawn}");
    }
}
