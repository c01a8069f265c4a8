//! What a screen says of things that it cannot show: unobserved values, cut lists, the worst finding at every size.

use super::*;
use crate::state::model::HopMember;
use crate::state::request_detail::TickTrack;

const MANY_SIZES: [(u16, u16); 7] = [(60, 20), (70, 20), (79, 24), (80, 24), (100, 30), (160, 45), (200, 50)];

#[test]
fn receives_are_called_unobserved_only_once_their_receiver_is_known() {
    let mut empty = Fixture::of(Scene::new(&[]));
    empty.refresh();
    let mut of_unknown = Fixture::of(Scene::new(&[("scheduler->?", Capabilities::SENT)]));
    of_unknown.scene.send(MS, &[("5b92f00d", 1, 1)]);
    of_unknown.scene.tick(2_000 * MS);
    of_unknown.refresh();
    for fixture in [&empty, &of_unknown] {
        let drawn = fixture.drawn((200, 50), "C.UTF-8");
        assert!(drawn.contains("nothing received yet  nothing delivered yet"), "{drawn}");
        assert!(!drawn.contains("receives are not observed"), "{drawn}");
    }
    let known = Hop { origin: true, last: true, ..Hop::new(HopId(0), "scheduler->tokenizer", Capabilities::SENT) };
    of_unknown.scene.emit(2_001 * MS, What::Hop(known));
    of_unknown.refresh();
    let drawn = of_unknown.drawn((200, 50), "C.UTF-8");
    assert!(drawn.contains("receives are not observed  deliveries are not observed"), "{drawn}");
}

#[test]
fn a_filter_on_something_unobserved_says_so() {
    let mut fixture = tapped();
    for (filter, expected) in [
        ("gap>1s", "gap is not observed in this run: receives are not observed"),
        ("state:live lost=0", "lost is not observed in this run: deliveries are not observed"),
        ("flag:DROPPED", "DROPPED is not observed in this run: deliveries are not observed"),
        ("state:waiting", "state:waiting is not observed in this run: receives are not observed"),
        ("worker:1", "worker is not known of any request: the engine has one receiver"),
    ] {
        type_filter(&mut fixture, filter);
        let typing = fixture.drawn((200, 50), "C.UTF-8");
        assert!(typing.contains(&format!("! {expected}")), "{filter}: {typing}");
        fixture.press(&[Action::AcceptText]);
        for size in MANY_SIZES {
            let drawn = fixture.drawn(size, "C.UTF-8").split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(drawn.contains(&format!("{expected}; Esc clears the filter")), "{filter}, {size:?}: {drawn}");
        }
    }
    // It matches every request, since nothing is known of its number.
    for (negated, expected) in [("-gap>1s", "! gap is not observed"), ("-flag:DROPPED", "! DROPPED is not observed")] {
        type_filter(&mut fixture, negated);
        let typing = fixture.drawn((200, 50), "C.UTF-8");
        assert!(typing.contains(expected), "{negated}: {typing}");
    }
    fixture.press(&[Action::GoBack, Action::GoBack, Action::PinRequest]);
    type_filter(&mut fixture, "drop>0");
    fixture.press(&[Action::AcceptText]);
    let drawn = fixture.drawn((80, 24), "C.UTF-8");
    assert!(drawn.contains("0 of 1 requests") && drawn.contains("drop is not observed in this run"), "{drawn}");
    // Observed, but not in any request.
    let mut race = race();
    type_filter(&mut race, "drop>9999");
    race.press(&[Action::AcceptText]);
    assert!(race.drawn((80, 24), "C.UTF-8").contains("no request matches the filter; Esc clears it"));
}

#[test]
fn the_worst_finding_is_on_the_overview_at_every_size() {
    let mut fixture = race();
    let others = fixture.model.findings.len() - 1;
    for size in MANY_SIZES {
        let drawn = fixture.drawn(size, "C.UTF-8");
        if size.1 < 34 {
            assert!(drawn.contains("finding  ✗ dropped-chunks  0:01 to now"), "{size:?}: {drawn}");
            assert!(drawn.contains(&format!("{others} more: 5")), "{size:?}: {drawn}");
        } else {
            assert!(drawn.contains("✗ CRITICAL  0:01 to now"), "{size:?}: {drawn}");
        }
    }
    let worst = fixture.model.findings[0].clone();
    fixture.model.findings = vec![worst; 30];
    let drawn = fixture.drawn((200, 50), "C.UTF-8");
    assert!(drawn.contains("findings, 22 more: 5"), "{drawn}");
    fixture.press(&[Action::OpenTab(Tab::Findings)]);
    let drawn = fixture.drawn((80, 24), "C.UTF-8");
    let listed = drawn.matches("✗ CRITICAL    0:01").count();
    assert!(drawn.contains(&format!("{} more: Up Down", 30 - listed)), "{drawn}");
}

#[test]
fn a_low_overview_counts_the_curves_that_it_leaves_out() {
    let mut fixture = race();
    let drawn = fixture.drawn((80, 24), "C.UTF-8");
    assert!(drawn.contains(" chunks lost ") && !drawn.contains(" chunks merged "), "{drawn}");
    assert!(drawn.contains("2 more: enlarge"), "{drawn}");
    fixture.model.findings[0].kind = "merged-chunks";
    let drawn = fixture.drawn((80, 24), "C.UTF-8");
    assert!(!drawn.contains(" chunks lost ") && drawn.contains(" chunks merged "), "merged, but not lost: {drawn}");
    assert!(!fixture.drawn((200, 50), "C.UTF-8").contains("enlarge"));
}

#[test]
fn all_workers_of_a_hop_can_be_listed() {
    let mut fixture = race();
    let worker = |number| HopMember { worker: Some(number), frames: 7, chunks: 7, ..HopMember::default() };
    fixture.model.hops[0].members = (0..14).map(worker).collect();
    fixture.press(&[Action::OpenTab(Tab::Hops)]);
    for size in MANY_SIZES {
        let drawn = fixture.drawn(size, "C.UTF-8");
        let listed = drawn.matches(" worker ").count();
        let more = format!("{} more: m", 14 - listed);
        assert!(listed == 14 || drawn.contains(&more), "{size:?}, {more}: {drawn}");
        assert!(drawn.contains("queue wait"), "the details stay: {drawn}");
    }
    fixture.press(&[Action::ToggleCutList]);
    let drawn = fixture.drawn((80, 24), "C.UTF-8");
    assert!(drawn.contains("worker 13") && !drawn.contains("more: m"), "{drawn}");
    fixture.model.hops[0].members.truncate(4);
    let drawn = fixture.drawn((80, 24), "C.UTF-8");
    for text in ["worker 3 ", "queue wait", "frames by queue wait"] {
        assert!(drawn.contains(text), "{text}: a list that is whole leaves room for the details: {drawn}");
    }
}

#[test]
fn all_lanes_of_a_request_can_be_shown() {
    let mut fixture = race();
    fixture.press(&[Action::OpenTab(Tab::Requests), Action::OpenSelection]);
    let detail = fixture.model.detail.as_mut().expect("a request");
    let lane = detail.tracks[0].clone();
    detail.tracks = (1..=9).map(|number| TickTrack { label: format!("lane {number}"), ..lane.clone() }).collect();
    for (width, height) in MANY_SIZES {
        fixture.ui.shows_cut_list = false;
        let drawn = fixture.drawn((width, height), "C.UTF-8");
        let lanes = drawn.matches("lane ").count();
        assert!(lanes == 9 || drawn.contains(&format!("{} more: m", 9 - lanes)), "{width}x{height}: {drawn}");
        fixture.ui.shows_cut_list = true;
        let drawn = fixture.drawn((width, height), "C.UTF-8");
        let lanes = drawn.matches("lane ").count();
        assert!(lanes == 9 || height < 24, "{width}x{height}: {drawn}");
        assert!(drawn.contains("stages: m"), "{drawn}");
    }
}

#[test]
fn the_help_lists_only_tabs_that_exist() {
    let mut fixture = race();
    fixture.press(&[Action::ShowHelp]);
    let help = fixture.drawn((200, 120), "C.UTF-8");
    assert!(!help.contains("CPU: which threads") && !help.contains("Runs: the watched runs"), "{help}");
    for term in ["at:14:59:08 ", "at:1:20..1:30 ", "since:14:59 ", "ttft>1s "] {
        assert!(help.contains(term), "{term}: {help}");
    }
    fixture.model.threads = Some(Vec::new());
    fixture.model.pods = vec![crate::state::pods::PodLine::default()];
    let help = fixture.drawn((200, 120), "C.UTF-8");
    assert!(help.contains("CPU: which threads") && help.contains("Runs: the watched runs"), "{help}");
}

#[test]
fn every_percentage_has_a_space_before_its_sign() {
    let mut fixture = race();
    for tab in Tab::ALL {
        fixture.press(&[Action::OpenTab(tab)]);
        for size in MANY_SIZES {
            let drawn = fixture.drawn(size, "C.UTF-8");
            let is_glued = |pair: &[char]| pair[0].is_ascii_digit() && pair[1] == '%';
            assert!(!drawn.chars().collect::<Vec<_>>().windows(2).any(is_glued), "{tab:?}: {drawn}");
        }
    }
}

/// A narrow screen leaves out whole items, and says so.
#[test]
fn no_label_is_shown_without_its_number() {
    for make_fixture in [race, tapped] {
        let mut fixture = make_fixture();
        for tab in [Tab::Overview, Tab::Hops] {
            fixture.press(&[Action::OpenTab(tab)]);
            for size in MANY_SIZES {
                let drawn = fixture.drawn(size, "C.UTF-8");
                // The headline above is a sentence.
                let drawn = drawn.lines().skip(2).collect::<Vec<_>>().join("\n");
                for label in ["p50", "p90", "p99", "max", "busy", "backlog", "engine", "client", "wait p99"] {
                    let cut = (2..=label.len()).map(|length| format!(" {}…", &label[..length]));
                    for cut in cut {
                        assert!(!drawn.contains(&cut), "{tab:?}, {size:?}, {cut}: {drawn}");
                    }
                }
            }
        }
    }
}

#[test]
fn hops_show_their_curves_or_say_where_they_are() {
    let mut fixture = race();
    fixture.press(&[Action::OpenTab(Tab::Hops)]);
    for size in MANY_SIZES {
        let drawn = fixture.drawn(size, "C.UTF-8");
        let has_curve = drawn.contains(" backlog, ") || drawn.contains(", max ");
        assert!(drawn.contains("enlarge") || has_curve, "{size:?}: {drawn}");
        assert!(size.0 >= 71 || drawn.contains("curves: enlarge"), "{size:?}: {drawn}");
    }
}
