//! The help.

use super::*;

#[test]
fn help_matches_its_snapshots() {
    let mut fixture = race();
    fixture.press(&[Action::ShowHelp]);
    fixture.snapshot("help");
    fixture.press(&[Action::MovePage(1), Action::MovePage(1)]);
    fixture.snapshot("help_end");
}
