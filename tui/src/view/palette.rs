//! Command palette: the actions that match the typed words.

use super::pad::Pad;
use crate::keys;
use crate::state::ui::Ui;
use crate::theme::PLAIN;

/// Draws over the tab.
pub(super) fn draw(pad: &mut Pad<'_>, words: &str, at: usize, ui: &Ui) {
    let theme = pad.theme();
    pad.clear();
    let found = keys::found(words, ui);
    let at = at.min(found.len().saturating_sub(1));
    let rows = usize::from(pad.height().saturating_sub(1));
    let top = at.saturating_sub(rows.saturating_sub(1));
    pad.rule(0, &format!("actions: {}", found.len()));
    for (row, entry) in found.iter().skip(top).take(rows).enumerate() {
        let y = 1 + row as u16;
        pad.fit(2, y, 13, entry.shown, theme.head());
        pad.text(16, y, &entry.what, PLAIN);
        pad.right(y, &format!("{} ", entry.place), theme.dim());
        if top + row == at {
            pad.row_style(y, theme.selected());
        }
    }
    if found.is_empty() {
        pad.text(2, 1, "no matching action", theme.dim());
    }
}
