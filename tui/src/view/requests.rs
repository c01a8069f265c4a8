//! Requests tab. Only the visible rows are formatted.

use ratatui::layout::Rect;
use session::units::{format_count, format_duration, known_or_dash};
use trace::columns::{self, COLUMNS, Emphasis};

use super::pad::{Pad, text_width};
use crate::state::Model;
use crate::state::action::Action;
use crate::state::filter::RequestFilter;
use crate::state::flags::Health;
use crate::state::request_row::{RequestColumn, RequestRow, RequestState};
use crate::state::request_table::SortOrder;
use crate::state::ui::Ui;
use crate::theme::Ink;

/// Width of a complete rid of 32 hex digits, used if there is room.
const WHOLE_RID_WIDTH: u16 = 32;
/// First cell of the first column; pins are marked left of it.
const FIRST_COLUMN_X: u16 = 2;
/// First row of the list, below the title and the headings.
const FIRST_ROW_Y: u16 = 2;

/// A column on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ShownColumn {
    column: RequestColumn,
    width: u16,
}

/// Maximum number of rows for the reason why no request is listed.
const MAX_REASON_ROWS: u16 = 3;

/// Draws the table of requests around the selected one. Pinned requests come first and have a mark, even if the filter does not match them.
pub(super) fn draw_requests_tab(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    let columns = fitting_columns(pad.width(), ui.sort.column);
    draw_request_counts_and_filter(pad, model, ui);
    draw_column_headings(pad, &columns, ui.sort);
    let rows = pad.height().saturating_sub(FIRST_ROW_Y);
    pad.click_areas.page_rows = rows.into();
    let count = model.table.visible_count();
    if model.table.matching_count == 0 {
        // Below the pinned rows, which are shown even if they do not match, and an empty row.
        let y = FIRST_ROW_Y + 1 + count as u16;
        pad.draw_paragraph(2, y, MAX_REASON_ROWS, &explain_empty_request_list(model, ui), Ink::Dim);
    }
    if count == 0 {
        return;
    }
    // A selected request that the filter hides has no position; the list then starts at its top.
    let selected = ui.selected_rid.as_ref().and_then(|rid| model.table.shown_position_of_rid(rid));
    let first = first_shown(selected.unwrap_or(0), count, rows.into());
    let shown = model.table.visible_rows(first..first + usize::from(rows));
    let common_start = common_start_bytes(shown.iter().map(|row| row.rid.as_str()));
    for (line, row) in (0..rows).zip(shown) {
        let position = first + usize::from(line);
        let y = FIRST_ROW_Y + line;
        if position < model.table.pinned_count {
            pad.draw_text(0, y, "*", Ink::Head);
        }
        draw_request_row(pad, y, &columns, &VisibleRow { row, common_start }, model, ui);
        pad.make_list_row_selectable(y, position, selected == Some(position));
    }
}

/// A row, and the number of bytes at the start of its rid that all visible rows share.
struct VisibleRow<'a> {
    row: &'a RequestRow,
    common_start: usize,
}

/// Number of bytes that all these texts have in common at their start; 0 for none, and for a single one.
fn common_start_bytes<'a>(mut texts: impl Iterator<Item = &'a str>) -> usize {
    let Some(first) = texts.next() else { return 0 };
    let mut common = texts.map(|text| equal_bytes_at_start(first, text)).min().unwrap_or(0);
    // Not within a character.
    while !first.is_char_boundary(common) {
        common -= 1;
    }
    common
}

/// Number of bytes at the start of two texts that are equal.
fn equal_bytes_at_start(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).take_while(|(of_a, of_b)| of_a == of_b).count()
}

/// Why no request is listed.
fn explain_empty_request_list(model: &Model, ui: &Ui) -> String {
    if model.table.row_count == 0 {
        return String::from("no request observed yet");
    }
    match model.explain_unobserved_term(&ui.filter) {
        Some(reason) => format!("{reason}; Esc clears the filter"),
        None if ui.filter.requests_counted_by_sole_finding().is_some() => String::from(
            "the finding's requests are not kept: they are too old, or only their responses were observed; Esc clears the filter",
        ),
        None => String::from("no request matches the filter; Esc clears it"),
    }
}

/// Draws how many requests are shown and which are not, and the filter.
fn draw_request_counts_and_filter(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    let shown = format_count(model.table.matching_count as u64);
    let all = format_count(model.table.row_count as u64);
    let note = note_on_finished_requests_without_row(model, ui);
    let mut x = pad.draw_text(1, 0, &format!("{shown} of {all} requests{note}"), Ink::Plain);
    if !ui.filter.is_empty() {
        let missing = describe_missing_requests(model, ui);
        x = pad.draw_text(x + 2, 0, "filter: ", Ink::Head);
        // The key `/` shows the whole text.
        let text = pad.shorten_id(&ui.filter.text, pad.width().saturating_sub(x + text_width(&missing)));
        x = pad.draw_text(x, 0, &format!("{text}{missing}"), Ink::Head);
    }
    if ui.follows_worst {
        pad.draw_text(x + 2, 0, "following the worst", Ink::Head);
    }
}

/// Note on finished requests that have no row, because the table or the ledger keeps a limited number of them; empty without any.
fn note_on_finished_requests_without_row(model: &Model, ui: &Ui) -> String {
    let not_shown = format_count(model.rows_left_out + model.rows_evicted);
    if model.rows_left_out > 0 {
        let limit = ui.options.finished_rows;
        format!(" ({not_shown} older finished ones are in the totals; --rows {limit} is reached)")
    } else if model.rows_evicted > 0 {
        format!(" ({not_shown} older finished ones were evicted: only their totals remain)")
    } else {
        String::new()
    }
}

/// Note on requests that belong to the list and are not kept any more; empty without any.
fn describe_missing_requests(model: &Model, ui: &Ui) -> String {
    let kept = model.table.matching_count as u64;
    match ui.filter.requests_counted_by_sole_finding() {
        Some(counted) if counted > kept => {
            format!("; {} of its {} are kept", format_count(kept), format_count(counted))
        }
        _ if ui.filter.may_lack_requests() => String::from("; older chunks are evicted"),
        _ => String::new(),
    }
}

/// Draws the headings of the columns. A click on one sorts by it.
fn draw_column_headings(pad: &mut Pad<'_>, columns: &[ShownColumn], sort: SortOrder) {
    let arrow =
        if sort.is_descending { pad.theme.rich_or_ascii("▼", "v") } else { pad.theme.rich_or_ascii("▲", "^") };
    let mut x = FIRST_COLUMN_X;
    for &ShownColumn { column, width } in columns {
        let is_sorted = column == sort.column;
        let heading = format!("{}{}", column.definition_on_screen().head, if is_sorted { arrow } else { "" });
        let ink = if is_sorted { Ink::Head } else { Ink::Dim };
        if column.number_definition().is_none() {
            pad.draw_clipped(x, 1, width, &heading, ink);
        } else {
            pad.draw_right_aligned(x, 1, width, &heading, ink);
        }
        pad.add_click_area(Rect::new(x, 1, width, 1), Action::SortBy(column));
        x += width + 1;
    }
}

/// Columns that fit, from left to right; always includes the sorted one.
fn fitting_columns(width: u16, sorted_column: RequestColumn) -> Vec<ShownColumn> {
    let mut spare_width = width.saturating_sub(FIRST_COLUMN_X);
    let mut by_need: Vec<RequestColumn> = RequestColumn::all().collect();
    // The sorted column first, then the most important ones.
    by_need.sort_by_key(|column| (*column != sorted_column, column.definition_on_screen().need));
    let mut fitting: Vec<ShownColumn> = Vec::new();
    for column in by_need {
        let width = column.definition_on_screen().width;
        // A space separates two columns.
        if width < spare_width {
            spare_width -= width + 1;
            fitting.push(ShownColumn { column, width });
        }
    }
    distribute_spare_width(&mut fitting, spare_width);
    // Columns are ordered as they stand on the screen.
    fitting.sort_unstable();
    fitting
}

/// Widens columns by the cells that are left: rids grow to their whole width, the flags take the rest.
fn distribute_spare_width(columns: &mut [ShownColumn], mut spare_width: u16) {
    if let Some(rid) = columns.iter_mut().find(|shown| shown.column == RequestColumn::Rid) {
        let more = spare_width.min(WHOLE_RID_WIDTH - rid.width);
        rid.width += more;
        spare_width -= more;
    }
    if let Some(flags) = columns.iter_mut().find(|shown| shown.column == RequestColumn::Flags) {
        flags.width += spare_width;
    }
}

/// First visible row such that the selected one is visible, in the middle if possible.
fn first_shown(selected: usize, count: usize, rows: usize) -> usize {
    selected.saturating_sub(rows / 2).min(count.saturating_sub(rows))
}

/// Draws a request in one row.
fn draw_request_row(
    pad: &mut Pad<'_>,
    y: u16,
    columns: &[ShownColumn],
    visible: &VisibleRow<'_>,
    model: &Model,
    ui: &Ui,
) {
    let row = visible.row;
    let mut x = FIRST_COLUMN_X;
    for &ShownColumn { column, width } in columns {
        match column {
            RequestColumn::Flags => draw_flags(pad, x, y, width, row),
            RequestColumn::Rid => {
                let shown = pad.shorten_similar_id(&row.rid, visible.common_start, width);
                pad.draw_clipped(x, y, width, &shown, Ink::Plain);
                highlight_matches(pad, x, y, &shown, &ui.filter);
            }
            RequestColumn::State => {
                let ink = if row.state == RequestState::Waiting { Ink::Strong } else { Ink::Plain };
                pad.draw_clipped(x, y, width, row.state.label(), ink);
            }
            RequestColumn::Began => {
                pad.draw_clipped(x, y, width, &model.table.clock.format_moment(row.began_at()), Ink::Plain);
            }
            RequestColumn::Number(index) => draw_request_number(pad, x, y, width, row, &COLUMNS[index]),
        }
        x += width + 1;
    }
}

/// Highlights the parts of a drawn rid that the filter matches.
fn highlight_matches(pad: &mut Pad<'_>, x: u16, y: u16, shown_rid: &str, filter: &RequestFilter) {
    // ASCII letters keep their byte positions, so that a match is at the same place in the shown rid.
    let lower_rid = shown_rid.to_ascii_lowercase();
    for part in filter.required_rid_parts() {
        if let Some(start) = lower_rid.find(part) {
            let cells_before = text_width(&shown_rid[..start]);
            pad.draw_text(x + cells_before, y, &shown_rid[start..start + part.len()], Ink::Found);
        }
    }
}

/// Draws a number of the request, in the ink of its column.
fn draw_request_number(pad: &mut Pad<'_>, x: u16, y: u16, width: u16, row: &RequestRow, column: &columns::Column) {
    let number = (column.of)(row);
    let ink = match column.on_screen.map(|on_screen| on_screen.emphasis) {
        Some(Emphasis::Problem) if number.is_some_and(|number| number > 0) => Ink::Health(Health::Critical),
        Some(Emphasis::Strong) => Ink::Strong,
        _ => Ink::Plain,
    };
    let format = if column.is_duration { format_duration } else { format_count };
    pad.draw_right_aligned(x, y, width, &known_or_dash(number, format), ink);
}

/// Draws the flags of the request that fit into the column.
fn draw_flags(pad: &mut Pad<'_>, x: u16, y: u16, width: u16, row: &RequestRow) {
    let end_x = x + width;
    let mut flag_x = x;
    // Worst first, so the ones that do not fit matter least.
    for flag in row.flags.iter() {
        if flag_x >= end_x {
            break;
        }
        flag_x = pad.draw_clipped(flag_x, y, end_x - flag_x, flag.label(), Ink::Flag(flag)) + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sorted_column_is_shown_on_the_narrowest_screen() {
        for sorted in RequestColumn::all() {
            let shown = fitting_columns(60, sorted);
            assert!(shown.iter().any(|shown| shown.column == sorted), "{sorted:?}");
            assert!(shown.iter().map(|shown| shown.width + 1).sum::<u16>() <= 59, "{shown:?}");
        }
        assert_eq!(fitting_columns(200, RequestColumn::with_heading("gap")).len(), RequestColumn::all().count());
    }

    #[test]
    fn rids_share_their_common_start() {
        for (rids, expected) in [
            (vec!["chatcmpl-1-a", "chatcmpl-12-b"], 10),
            (vec!["5b92", "f00d"], 0),
            (vec!["aäb", "aåb"], 1),
            (vec!["only"], 0),
            (vec![], 0),
        ] {
            assert_eq!(common_start_bytes(rids.iter().copied()), expected, "{rids:?}");
        }
    }

    #[test]
    fn the_selected_row_is_visible() {
        for (selected, count, rows) in [(0, 5, 10), (9, 10, 5), (500, 10_000, 20), (9_999, 10_000, 20)] {
            let top = first_shown(selected, count, rows);
            assert!(top <= selected && selected < top + rows && top + rows <= count.max(rows));
        }
    }
}
