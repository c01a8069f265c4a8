//! Requests tab. Only the visible rows are formatted.

use session::units::{count, duration, known};
use trace::columns::{self, COLUMNS, Emphasis, OnScreen};

use super::pad::Pad;
use crate::state::Model;
use crate::state::action::Action;
use crate::state::flags::Health;
use crate::state::row::{Column, Life, Row};
use crate::state::ui::Ui;
use crate::theme::Ink;

/// Width of a complete rid of 32 hex digits, used if there is room.
const WHOLE_RID: u16 = 32;

pub(super) fn draw(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    let columns = fitting(pad.width(), ui.sort.column);
    title(pad, model, ui);
    let mut x = 2;
    for &(column, width) in &columns {
        let sorted = column == ui.sort.column;
        let mark = match (sorted, ui.sort.descending) {
            (false, _) => "",
            (true, true) => pad.theme.pick("▼", "v"),
            (true, false) => pad.theme.pick("▲", "^"),
        };
        let head = format!("{}{mark}", column.on_screen().head);
        let ink = if sorted { Ink::Head } else { Ink::Dim };
        if column.number().is_none() {
            pad.fit(x, 1, width, &head, ink);
        } else {
            pad.number(x, 1, width, &head, ink);
        }
        pad.click((x, 1), (width, 1), Action::SortBy(column));
        x += width + 1;
    }
    let rows = pad.height().saturating_sub(2);
    pad.hits.page = rows.into();
    if model.table.visible_count() == 0 {
        let why = if model.table.used == 0 {
            "no request observed yet"
        } else {
            "no request matches the filter; Esc clears it"
        };
        pad.text(2, 3, why, Ink::Dim);
        return;
    }
    let selected = ui.selected.as_ref().and_then(|rid| model.table.place(rid));
    let top = first_shown(selected.unwrap_or(0), model.table.visible_count(), rows.into());
    let shown = model.table.visible_at(top..top + usize::from(rows));
    for (line, row) in (0..rows).zip(shown) {
        let place = top + usize::from(line);
        let y = 2 + line;
        row_line(pad, y, &columns, (row, place < model.table.pinned), ui);
        pad.list_row(y, place, selected == Some(place));
    }
}

fn title(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    let older = count(model.rows_left_out + model.rows_evicted);
    let note = match (model.rows_left_out, model.rows_evicted) {
        (0, 0) => String::new(),
        (0, _) => format!(" ({older} older finished ones were evicted: only their totals remain)"),
        _ => format!(" ({older} older finished ones are in the totals; --rows {} is reached)", ui.options.rows),
    };
    let [shown, all] = [model.table.visible_count(), model.table.used].map(|rows| count(rows as u64));
    let text = format!("{shown} of {all} requests{note}");
    let mut x = pad.text(1, 0, &text, Ink::Plain);
    if !ui.filter.is_empty() {
        x = pad.text(x + 2, 0, &format!("filter: {}", ui.filter.text), Ink::Head);
    }
    if ui.follow {
        pad.text(x + 2, 0, "following the worst", Ink::Head);
    }
}

/// Columns that fit, from left to right; always includes the sorted one.
fn fitting(width: u16, sorted: Column) -> Vec<(Column, u16)> {
    let mut left = width.saturating_sub(2);
    let mut by_need: Vec<(Column, OnScreen)> = Column::all().map(|column| (column, column.on_screen())).collect();
    by_need.sort_by_key(|(column, on_screen)| (*column != sorted, on_screen.need));
    let mut fit: Vec<(Column, u16)> = Vec::new();
    for (column, OnScreen { width, .. }) in by_need {
        if width < left {
            left -= width + 1;
            fit.push((column, width));
        }
    }
    for (column, width) in &mut fit {
        if *column == Column::Rid {
            let more = left.min(WHOLE_RID - *width);
            *width += more;
            left -= more;
        }
    }
    if let Some((_, width)) = fit.iter_mut().find(|c| c.0 == Column::Flags) {
        *width += left;
    }
    fit.sort_unstable();
    fit
}

/// First visible row such that the selected one is visible, in the middle if possible.
fn first_shown(selected: usize, count: usize, rows: usize) -> usize {
    selected.saturating_sub(rows / 2).min(count.saturating_sub(rows))
}

fn row_line(pad: &mut Pad<'_>, y: u16, columns: &[(Column, u16)], (row, pinned): (&Row, bool), ui: &Ui) {
    if pinned {
        pad.text(0, y, "*", Ink::Head);
    }
    let mut x = 2;
    for &(column, width) in columns {
        match column {
            Column::Flags => flags(pad, x, y, width, row),
            Column::Rid => {
                pad.fit(x, y, width, &row.rid, Ink::Plain);
                mark(pad, x, y, width, row, ui);
            }
            Column::State => {
                let ink = if row.life == Life::Waiting { Ink::Strong } else { Ink::Plain };
                pad.fit(x, y, width, row.life.word(), ink);
            }
            Column::Number(place) => {
                let (text, ink) = cell(row, &COLUMNS[place]);
                pad.number(x, y, width, &text, ink);
            }
        }
        x += width + 1;
    }
}

/// Highlights the part of the row's rid that the filter matches.
fn mark(pad: &mut Pad<'_>, x: u16, y: u16, width: u16, row: &Row, ui: &Ui) {
    let rid = row.rid.to_ascii_lowercase();
    for part in ui.filter.parts() {
        if let Some(from) = rid.find(part)
            && let Some(text) = row.rid.get(from..from + part.len())
            && rid.is_ascii()
            && from + part.len() <= usize::from(width)
        {
            pad.text(x + from as u16, y, text, Ink::Found);
        }
    }
}

fn cell(row: &Row, column: &columns::Column) -> (String, Ink) {
    let number = (column.of)(row);
    let ink = match column.on_screen.map(|on_screen| on_screen.emphasis) {
        Some(Emphasis::Problem) if number.is_some_and(|n| n > 0) => Ink::Health(Health::Critical),
        Some(Emphasis::Strong) => Ink::Strong,
        _ => Ink::Plain,
    };
    (known(number, if column.is_duration { duration } else { count }), ink)
}

fn flags(pad: &mut Pad<'_>, x: u16, y: u16, width: u16, row: &Row) {
    let end = x + width;
    let mut at = x;
    for flag in row.flags.iter() {
        if at >= end {
            break;
        }
        at = pad.fit(at, y, end - at, flag.word(), Ink::Flag(flag)) + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sorted_column_is_shown_on_the_narrowest_screen() {
        for sorted in Column::all() {
            let shown = fitting(80, sorted);
            assert!(shown.iter().any(|c| c.0 == sorted), "{sorted:?}");
            assert!(shown.iter().map(|c| c.1 + 1).sum::<u16>() <= 79, "{shown:?}");
        }
        assert_eq!(fitting(200, Column::headed("gap")).len(), Column::all().count());
    }

    #[test]
    fn the_selected_row_is_visible() {
        for (selected, count, rows) in [(0, 5, 10), (9, 10, 5), (500, 10_000, 20), (9_999, 10_000, 20)] {
            let top = first_shown(selected, count, rows);
            assert!(top <= selected && selected < top + rows && top + rows <= count.max(rows));
        }
    }
}
