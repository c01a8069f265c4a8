//! The start menu.

use super::*;
use crate::state::picker::{SourceKind, SourceOffer, SourcePicker};
use crate::view::picker::draw_picker;

#[test]
fn the_start_menu_matches_its_snapshots() {
    let offer = |kind, title: &str, note: &str, command: &[&str]| SourceOffer {
        kind,
        title: title.into(),
        note: note.into(),
        command: command.iter().map(ToString::to_string).collect(),
    };
    let mut picker = SourcePicker::default();
    let mut offers = vec![
        offer(SourceKind::Demo, "race", "tokens are lost", &["demo", "--scenario", "race"]),
        offer(SourceKind::Demo, "backlog", "tokens wait", &["demo", "--scenario", "backlog"]),
    ];
    picker.replace_offers(offers.clone());
    let show =
        |picker: &SourcePicker, size| on_terminal(size, |frame| drop(draw_picker(picker, theme("C.UTF-8"), frame)));
    assert_screen("pick_80x24", &show(&picker, (80, 24)));
    let engine = ["attach", "--pid", "4711"];
    offers.push(offer(SourceKind::Engine, "SGLang 0.5.9", "attach to its 3 processes", &engine));
    picker.replace_offers(offers);
    picker.has_searched = true;
    picker.blind = vec!["processes of other users: CAP_SYS_PTRACE is missing".into()];
    assert_screen("pick_200x50", &show(&picker, (200, 50)));
    for size in [(1, 1), (0, 0), (80, 5), (20, 6)] {
        show(&picker, size);
    }
    assert!(picker.apply_action(Action::OpenSelection).is_continue());
    let asking = show(&picker, (60, 20));
    assert!(asking.contains("! attach to SGLang 0.5.9, which is running? Enter: yes"), "{asking}");
}
