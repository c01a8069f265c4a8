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
        since_ns: None,
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
    let drawn = fixture.drawn((80, 24), "C.UTF-8");
    assert!(drawn.contains("! outside the run: 07:54:48Z to 07:55:48Z, 0:00 to 1:00"), "{drawn}");
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
