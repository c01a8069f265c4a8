//! Dialogs over the tab: the help, generated from the key table and the filter syntax, and the command palette.

use super::pad::{Hits, Pad};
use crate::keys::{self, BINDINGS};
use crate::state::action::Tab;
use crate::state::fate::Fate;
use crate::state::flags::{Flag, Health};
use crate::state::query;
use crate::state::row::Column;
use crate::state::ui::Ui;
use crate::theme::Ink;

/// Draws over the tab, scrolled down by `scrolled` lines.
pub(super) fn draw(pad: &mut Pad<'_>, scrolled: usize, ui: &Ui) {
    pad.clear();
    let mut lines: Vec<(&str, String, &str)> = Vec::new();
    if ui.tab == Tab::Requests {
        let sorted = ui.sort.column.on_screen();
        lines.push((sorted.head, sorted.about.into(), "the column sorted by"));
        lines.push(("", String::new(), ""));
    }
    lines.extend(BINDINGS.iter().map(|b| (b.shown, b.what.into(), b.place_name())));
    let head = |key, what: &str| [("", String::new(), ""), (key, what.into(), "")];
    lines.extend(head("filter", "matches"));
    lines.extend(query::help().map(|(term, what)| (term, what, "")));
    let mut health = Health::ALL.map(|health| format!("{} {}", pad.theme.sign(health), health.word()));
    health.rotate_left(1);
    lines.extend(head("signs", &format!("{}   - not observed", health.join("   "))));
    let fates = Fate::ALL.map(|fate| format!("{} {}", fate.sign(), fate.word()));
    lines.push(("chunks", fates.join("   "), ""));
    lines.extend(head("flags", "flags of a request, worst first"));
    lines.extend(Flag::ALL.map(|flag| (flag.word(), flag.what().into(), "")));
    lines.extend(head("columns", "of a request"));
    let columns = Column::all().map(Column::on_screen);
    lines.extend(columns.map(|column| (column.head, column.about.into(), "")));
    lines.push(("TTFT", "is not a column because the arrival of a request is not observed".into(), ""));
    let rows = usize::from(pad.height().saturating_sub(1));
    *pad.hits = Hits::default();
    pad.hits.page = rows;
    let top = scrolled.min(lines.len().saturating_sub(rows));
    let last = (top + rows).min(lines.len());
    pad.rule(0, &format!("help: lines {}-{last} of {} (Up and Down scroll, Esc closes)", top + 1, lines.len()));
    for (row, (key, what, place)) in lines[top..last].iter().enumerate() {
        let y = 1 + row as u16;
        pad.fit(2, y, 13, key, Ink::Head);
        pad.text(16, y, what, Ink::Plain);
        pad.right(y, &format!("{place} "), Ink::Dim);
    }
}

/// Draws the command palette: the actions that match the typed words.
pub(super) fn palette(pad: &mut Pad<'_>, words: &str, at: usize, ui: &Ui) {
    pad.clear();
    *pad.hits = Hits::default();
    let found = keys::found(words, ui);
    let at = at.min(found.len().saturating_sub(1));
    let rows = usize::from(pad.height().saturating_sub(1));
    let top = at.saturating_sub(rows.saturating_sub(1));
    pad.rule(0, &format!("actions: {}", found.len()));
    for (row, entry) in found.iter().skip(top).take(rows).enumerate() {
        let y = 1 + row as u16;
        pad.fit(2, y, 13, entry.shown, Ink::Head);
        pad.text(16, y, &entry.what, Ink::Plain);
        pad.right(y, &format!("{} ", entry.place), Ink::Dim);
        if top + row == at {
            pad.row_style(y, Ink::Selected);
        }
    }
    if found.is_empty() {
        pad.text(2, 1, "no matching action", Ink::Dim);
    }
}
