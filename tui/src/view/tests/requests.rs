//! The Requests tab.

use super::*;
use crate::state::request_row::RequestColumn;
use crate::state::request_table::SortOrder;

#[test]
fn requests_match_their_snapshots() {
    let mut fixture = race();
    fixture.press(&[Action::OpenTab(Tab::Requests)]);
    fixture.snapshot("requests");
    fixture.press(&[Action::MoveSelection(2), Action::PinRequest, Action::TypeFilter]);
    fixture.press(&"gap>1s drpo>0".chars().map(Action::TypeCharacter).collect::<Vec<_>>());
    fixture.snapshot("requests_filter_mistake");
    fixture.press(&[
        Action::EraseText,
        Action::TypeCharacter('0'),
        Action::AcceptText,
        Action::StepSortColumn(1),
        Action::ReverseSort,
    ]);
    fixture.snapshot("requests_filtered");
}

#[test]
fn requests_have_times_of_day() {
    let mut fixture = race();
    fixture.model.wall_start_ns = Some(1_795_273_142_700_000_000);
    fixture.refresh();
    fixture.press(&[Action::OpenTab(Tab::Requests)]);
    for size in SIZES {
        let drawn = fixture.drawn(size, "C.UTF-8");
        assert!(drawn.contains("finished 14:59:03.700Z"), "{drawn}");
    }
    fixture.press(&[Action::OpenSelection]);
    let drawn = fixture.drawn((60, 20), "C.UTF-8");
    for text in ["began 14:59:03.700Z", "14:59:03.825Z   +125 ms  tokenizer received it"] {
        assert!(drawn.contains(text), "{text} in {drawn}");
    }
}

#[test]
fn ten_thousand_requests_are_sorted_filtered_and_drawn() {
    let mut scene = Scene::delivering();
    for n in 0..10_000u64 {
        scene.send(MS * n, &[(format!("{n:032x}").as_str(), 1, 1)]);
    }
    let mut fixture = Fixture::of(scene);
    fixture.refresh();
    fixture.press(&[Action::OpenTab(Tab::Requests)]);
    fixture.ui.sort = SortOrder { column: RequestColumn::with_heading("gap"), is_descending: true };
    fixture.update();
    assert_eq!(
        (fixture.model.table.visible_count(), fixture.model.table.visible_row(0).map(|r| r.gap_ns)),
        (10_000, Some(Some(9_999 * MS)))
    );
    assert!(fixture.drawn((80, 24), "C.UTF-8").contains("0000…0"));
}
