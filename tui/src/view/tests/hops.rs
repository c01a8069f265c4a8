//! The Hops tab.

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
