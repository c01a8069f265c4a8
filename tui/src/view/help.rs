//! Dialogs over the tab: the help, generated from the key table and the filter syntax, and the command palette.

use super::pad::{ClickAreas, Pad, text_width, wrap_text};
use crate::keys::{self, BINDINGS};
use crate::state::Model;
use crate::state::action::Tab;
use crate::state::chunk_status::{STATES, chunk_state_label, tick_symbol};
use crate::state::filter;
use crate::state::flags::{Flag, Health};
use crate::state::request_row::RequestColumn;
use crate::state::ui::Ui;
use crate::theme::{Ink, Theme};

/// First cell of the key of a line, and cells for it.
const KEY_X: u16 = 2;
const KEY_WIDTH: u16 = 13;
/// First cell of the text of a line, behind its key.
const TEXT_X: u16 = 16;

/// A line of the help.
struct HelpLine {
    key: &'static str,
    text: String,
    /// Where the key applies.
    context: &'static str,
}

impl HelpLine {
    fn new(key: &'static str, text: impl Into<String>) -> Self {
        Self { key, text: text.into(), context: "" }
    }

    fn empty() -> Self {
        Self::new("", "")
    }
}

/// Draws the help over the tab, scrolled down by this number of lines.
pub(super) fn draw_help(pad: &mut Pad<'_>, scrolled_lines: usize, ui: &Ui, model: &Model) {
    pad.clear();
    let lines = wrap_long_lines(help_lines(pad.theme, ui, model), pad.width());
    let rows = usize::from(pad.height().saturating_sub(1));
    // Clicks on the tab below have no effect.
    *pad.click_areas = ClickAreas::default();
    pad.click_areas.page_rows = rows;
    pad.click_areas.last_scroll = lines.len().saturating_sub(rows);
    let first = scrolled_lines.min(pad.click_areas.last_scroll);
    let end = (first + rows).min(lines.len());
    let title = format!("help: lines {}-{end} of {} (Up and Down scroll, Esc closes)", first + 1, lines.len());
    pad.draw_heading(0, &title);
    for (row, line) in lines[first..end].iter().enumerate() {
        draw_dialog_line(pad, 1 + row as u16, line.key, &line.text, line.context);
    }
}

/// Draws a key, what it does, and where it applies at the right edge.
fn draw_dialog_line(pad: &mut Pad<'_>, y: u16, key: &str, text: &str, context: &str) {
    pad.draw_clipped(KEY_X, y, KEY_WIDTH, key, Ink::Head);
    pad.draw_clipped(TEXT_X, y, width_of_text(pad.width(), context), text, Ink::Plain);
    pad.draw_at_right_edge(y, &format!("{context} "), Ink::Dim);
}

/// Cells for the text of a line, between its key and its context, which has a space on both sides.
fn width_of_text(width: u16, context: &str) -> u16 {
    width.saturating_sub(TEXT_X + 1 + text_width(context) + 1)
}

/// Breaks the text of each line that is too long for the screen into further lines, which have no key.
fn wrap_long_lines(lines: Vec<HelpLine>, width: u16) -> Vec<HelpLine> {
    let mut all = Vec::new();
    for HelpLine { key, text, context } in lines {
        if text_width(&text) <= width_of_text(width, context) {
            all.push(HelpLine { key, text, context });
            continue;
        }
        let mut rows = wrap_text(&text, width_of_text(width, context).into()).into_iter();
        all.push(HelpLine { context, ..HelpLine::new(key, rows.next().unwrap_or_default()) });
        all.extend(rows.map(|row| HelpLine::new("", row)));
    }
    all
}

/// All lines of the help: keys, filter terms, signs, flags and columns. On the tab Requests, the column that it is sorted by comes first.
fn help_lines(theme: Theme, ui: &Ui, model: &Model) -> Vec<HelpLine> {
    let mut lines = Vec::new();
    if ui.tab == Tab::Requests {
        let sorted = ui.sort.column.definition_on_screen();
        lines.push(HelpLine { context: "the column sorted by", ..HelpLine::new(sorted.head, sorted.about) });
        lines.push(HelpLine::empty());
    }
    for binding in BINDINGS.iter().filter(|binding| binding.has_effect(model)) {
        let context = binding.context_name();
        lines.push(HelpLine { context, ..HelpLine::new(binding.shown_keys, binding.description) });
    }
    lines.push(HelpLine::empty());
    lines.push(HelpLine::new("filter", "matches"));
    lines.extend(filter::syntax_help().map(|(term, meaning)| HelpLine::new(term, meaning)));
    lines.push(HelpLine::empty());
    lines.push(HelpLine::new("signs", explain_signs(theme)));
    let chunk_signs = STATES.map(|state| format!("{} {}", tick_symbol(state), chunk_state_label(state)));
    lines.push(HelpLine::new("chunks", chunk_signs.join("   ")));
    lines.push(HelpLine::empty());
    lines.push(HelpLine::new("flags", "flags of a request, worst first"));
    lines.extend(Flag::ALL.map(|flag| HelpLine::new(flag.label(), flag.explanation())));
    lines.push(HelpLine::empty());
    lines.push(HelpLine::new("columns", "of a request"));
    let columns = RequestColumn::all().map(RequestColumn::definition_on_screen);
    lines.extend(columns.map(|column| HelpLine::new(column.head, column.about)));
    lines
}

/// The signs of health with their words, and those of missing and zero values.
fn explain_signs(theme: Theme) -> String {
    let mut health = Health::ALL.map(|health| format!("{} {}", theme.health_symbol(health), health.label()));
    // `Unknown` comes first, but is listed last.
    health.rotate_left(1);
    let zero = theme.rich_or_ascii("·", "_");
    format!("{}   - not observed   {zero} 0 in a curve", health.join("   "))
}

/// Draws the command palette: the actions that match the typed words.
pub(super) fn draw_palette(pad: &mut Pad<'_>, words: &str, selected: usize, ui: &Ui) {
    pad.clear();
    // Clicks on the tab below have no effect.
    *pad.click_areas = ClickAreas::default();
    let entries = keys::palette_entries(words, ui);
    let selected = selected.min(entries.len().saturating_sub(1));
    let rows = usize::from(pad.height().saturating_sub(1));
    // Scrolled only as far as the selected action needs to be visible.
    let first = selected.saturating_sub(rows.saturating_sub(1));
    pad.draw_heading(0, &format!("actions: {}", entries.len()));
    for (row, entry) in entries.iter().skip(first).take(rows).enumerate() {
        let y = 1 + row as u16;
        draw_dialog_line(pad, y, entry.shown_keys, &entry.description, entry.context);
        if first + row == selected {
            pad.style_row(y, Ink::Selected);
        }
    }
    if entries.is_empty() {
        pad.draw_text(KEY_X, 1, "no matching action", Ink::Dim);
    }
}
