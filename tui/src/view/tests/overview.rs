//! The Overview tab.

use trace::event::{Answer, AnswerEnd};

use super::*;

#[test]
fn overview_matches_its_snapshots() {
    race().snapshot("overview");
    tapped().snapshot("overview_tapped");
    let mut empty = Fixture::of(Scene::new(&[]));
    empty.refresh();
    empty.snapshot("overview_empty");
}

#[test]
fn abandoned_requests_are_on_the_overview() {
    let mut fixture = Fixture::of(Scene::delivering());
    for count in 1..=10 {
        let at = u64::from(count) * 1_000 * MS;
        fixture.scene.send(at, &[("5b92f00d", 1, count)]);
        if count == 1 {
            fixture.scene.deliver(at + MS, "5b92f00d", 1, 1);
            let left = Answer { end: AnswerEnd::ClientLeft, ..Answer::new("5b92f00d", Some(1), None) };
            fixture.scene.emit(at + 2 * MS, What::Answered(left));
        }
    }
    fixture.refresh();
    let abandoned = fixture.scene.analysis.ledger().abandoned_requests();
    assert_eq!((abandoned.requests, abandoned.tokens), (1, Some(9)));
    for size in SIZES {
        assert!(fixture.drawn(size, "C").contains(" 1 abandoned of 1: "), "{}", fixture.drawn(size, "C"));
    }
}

#[test]
fn a_path_that_does_not_fit_is_drawn_as_a_list() {
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
    let hops = ["scheduler->router", "router->detokenizer", "detokenizer->router2", "router2->tokenizer"];
    let mut fixture = Fixture::of(Scene::new(&hops.map(|name| (name, capabilities))));
    fixture.scene.send(MS, &[("5b92f00d", 1, 1)]);
    fixture.refresh();
    fixture.snapshot("overview_routers");
}
