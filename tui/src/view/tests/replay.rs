//! The screen of a replay.

use session::ScreenCommand;
use session::playback::{Play, PlaybackState, Position, Speed};

use super::*;

/// Playback of the race as a recording of one minute.
fn replay() -> Fixture {
    let mut fixture = race();
    fixture.ui.is_replay = true;
    fixture.model.position = Some(Position {
        at_ns: 12_000 * MS,
        whole_ns: 60_000 * MS,
        wall_ns: Some(1_768_722_900_330_146_000),
        speed: Speed::default(),
        doing: PlaybackState::Playing,
        ..Position::default()
    });
    fixture
}

#[test]
fn a_replay_matches_its_snapshots() {
    let mut fixture = replay();
    fixture.snapshot("replay");
    fixture.press(&[Action::TypeTime]);
    fixture.press(&"1:2x".chars().map(Action::TypeCharacter).collect::<Vec<_>>());
    let position = fixture.model.position.as_mut().expect("a replay");
    (position.doing, position.since_ns) = (PlaybackState::Paused, Some(5_000 * MS));
    fixture.snapshot("replay_time");
    fixture.press(&[Action::EraseText]);
    fixture.press(&"2:00".chars().map(Action::TypeCharacter).collect::<Vec<_>>());
    let drawn = fixture.drawn((80, 24), "C.UTF-8").split_whitespace().collect::<Vec<_>>().join(" ");
    let range = "2026-01-18 07:54:48 to 07:55:48 UTC, 0:00 to 1:00";
    let refusal = format!("! outside the run, {range}: type for example 07:55:18 or 0:30");
    assert!(drawn.contains(&refusal), "{drawn}");
    fixture.press(&[Action::EraseText]);
    let drawn = fixture.drawn((80, 24), "C.UTF-8");
    assert!(drawn.contains(&format!("{range}, also 3.9s, +10s, -1m")), "{drawn}");
    fixture.press(&[Action::GoBack, Action::ShowHelp, Action::MovePage(1)]);
    fixture.snapshot("replay_help");
}

#[test]
fn a_click_on_the_playback_bar_seeks() {
    let click_areas = replay().click_areas();
    let places: Vec<u64> = (0..80)
        .filter_map(|x| match click_areas.action_at(x, 22) {
            Some(Action::Command(ScreenCommand::Play(Play::To(ns)))) => Some(ns),
            _ => None,
        })
        .collect();
    assert!(places.len() >= 20 && places.is_sorted(), "{places:?}");
    assert_eq!((places.first(), places.last()), (Some(&0), Some(&(60_000 * MS))));
}

/// A run of five seconds, and two idle minutes.
#[test]
fn the_curves_of_a_run_that_ended_idle_show_its_last_traffic() {
    let mut fixture = Fixture::of(Scene::delivering());
    for n in 0..50 {
        let rid = format!("r{n}");
        fixture.scene.finish(n * 100 * MS, &[(rid.as_str(), 1, 1)], Finish::Stop);
        fixture.scene.receive(n * 100 * MS + MS, n, n);
        fixture.scene.deliver(n * 100 * MS + 2 * MS, &rid, 1, 1);
    }
    for second in 5..=125 {
        fixture.scene.tick(second * 1_000 * MS);
    }
    fixture.refresh();
    let whole_ns = 125_000 * MS;
    let ended = Position { at_ns: whole_ns, whole_ns, doing: PlaybackState::Ended, ..Position::default() };
    let heading = "0:00 to 0:07, each second; nothing until 2:05 (Right)";
    assert!(!fixture.drawn((80, 24), "C.UTF-8").contains("nothing until"), "a live run shows its newest second");
    fixture.model.position = Some(ended);
    fixture.ui.is_replay = true;
    for size in [(80, 24), (100, 30), (140, 40)] {
        let drawn = fixture.drawn(size, "C.UTF-8");
        assert!(drawn.contains(heading) && !drawn.contains(" now"), "{drawn}");
        assert!(drawn.lines().any(|line| line.starts_with(" tokens/s") && line.ends_with(" 10")), "{drawn}");
    }
    fixture.press(&[Action::ScrollTime(1)]);
    assert!(fixture.drawn((80, 24), "C.UTF-8").contains("0:00 to 0:12, each second "));
    fixture.press(&[Action::ScrollTime(isize::MAX / 1_000)]);
    assert!(fixture.drawn((80, 24), "C.UTF-8").contains(" to 2:05, each second "));
    fixture.press(&[Action::GoBack]);
    assert!(fixture.drawn((80, 24), "C.UTF-8").contains(heading));
}
