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

fn row(fixture: &Fixture, size: (u16, u16), index: usize) -> String {
    fixture.drawn(size, "C.UTF-8").lines().nth(index).unwrap_or_default().to_owned()
}

#[test]
fn what_to_do_is_below_the_verdict_or_behind_it() {
    let mut fixture = race();
    let advice = "fixed in 0.5.10";
    assert!(row(&fixture, (80, 24), 1).contains("never delivered"));
    assert!(row(&fixture, (80, 24), 2).starts_with(&format!(" to do: {advice}")));
    assert!(!fixture.drawn((80, 20), "C.UTF-8").contains(advice), "a low screen has no row for it");
    fixture.model.verdict.text = "a short text".to_owned();
    assert!(row(&fixture, (200, 50), 1).contains(&format!("a short text  to do: {advice}")));
    assert!(!row(&fixture, (200, 50), 2).contains(advice));
    fixture.press(&[Action::OpenTab(Tab::Requests)]);
    assert!(row(&fixture, (80, 24), 1).contains(&format!("a short text  to do: {advice}")));
}

/// The share of the time to first token is at the end of some summaries.
#[test]
fn a_share_that_the_verdict_has_no_room_for_comes_before_what_to_do() {
    let mut fixture = race();
    let share = "91 % of the TTFT of 34 requests";
    let verdict = &mut fixture.model.verdict;
    verdict.text =
        format!("{}; 91 % of the TTFT of 34 of 120 requests was spent on the way to the tokenizer", "x".repeat(90));
    verdict.ttft_share = Some(share.to_owned());
    verdict.advice = Some("`kill -CONT PID` resumes it".to_owned());
    assert_eq!(row(&fixture, (80, 24), 2), format!(" to do: {share}: `kill -CONT PID` resumes it"));
    assert_eq!(row(&fixture, (180, 24), 2), " to do: `kill -CONT PID` resumes it");
}

/// The number of requests takes some of the cells of the headline.
#[test]
fn a_share_that_is_cut_for_the_number_of_requests_comes_before_what_to_do() {
    let mut fixture = race();
    let verdict = &mut fixture.model.verdict;
    verdict.text = "the scheduler sent no frame for 2.994 s; 99 % of the TTFT of 34 of 120 requests was spent between dispatch and \
                    first token: 500 ms or more, up to 2.988 s; meanwhile, 22 streams were open"
        .to_owned();
    verdict.requests_hit = Some("34 requests and 22 streams".to_owned());
    verdict.ttft_share = Some("99 % of the TTFT of 34 requests".to_owned());
    verdict.advice = Some("all streams paused together, so look at the scheduler".to_owned());
    for width in [80, 100] {
        assert!(row(&fixture, (width, 24), 1).ends_with("(34 requests and 22 streams hit)"));
        let expected = " to do: 99 % of the TTFT of 34 requests: all streams paused together";
        assert!(row(&fixture, (width, 24), 2).starts_with(expected), "{}", row(&fixture, (width, 24), 2));
    }
    for width in 80..=180 {
        let lines = [1, 2].map(|index| row(&fixture, (width, 24), index)).concat();
        assert_eq!(lines.matches("99 % of the TTFT of").count(), 1, "{width}: {lines}");
    }
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
