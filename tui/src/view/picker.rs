//! Screen of `tokengap` without arguments: sources to watch.

use ratatui::Frame;

use super::pad::{ClickAreas, Pad};
use crate::state::flags::Health;
use crate::state::picker::{SourceKind, SourceOffer, SourcePicker};
use crate::theme::{Ink, Theme};

const KEY_HINTS: &str = "Up Down choose  Enter run  ? help  q quit  (tokengap --help has every command)";
const HELP: [(&str, &str); 9] = [
    ("Up Down j k", "choose; PgUp PgDn Home End move faster"),
    ("Enter", "run the selection, as a second click; asks before it attaches to an engine"),
    ("? Esc", "open or close this help"),
    ("q", "leave"),
    ("", ""),
    ("engines", "attach: passive, nothing in the engine changes"),
    ("published", "watch a run on the same screen"),
    ("recordings", "replay; tokengap report prints text, JSON or HTML"),
    ("demos", "need no engine, no root and no GPU"),
];

/// First row of the list, below the title and an empty row.
const FIRST_ROW_Y: u16 = 2;
/// First cell of the keys and of the offers.
const LIST_X: u16 = 3;
/// Cells for the keys in the help, and first cell of what they do.
const KEY_WIDTH: u16 = 13;
const KEY_TEXT_X: u16 = 17;
/// Fewest rows for a list of offers.
const MIN_ROWS: u16 = 6;
/// Rows for the title, an empty one, the warning, the command and the keys.
const OTHER_ROWS: u16 = 5;

enum PickerLine<'a> {
    Heading(SourceKind),
    /// An offer, with its index.
    Offer(usize, &'a SourceOffer),
    /// Reason for an empty group.
    Empty(&'static str),
}

/// Draws the screen on which a source is chosen. Returns where a click has an effect.
pub(crate) fn draw_picker(picker: &SourcePicker, theme: Theme, frame: &mut Frame<'_>) -> ClickAreas {
    let mut click_areas = ClickAreas::default();
    let mut pad = Pad::new(frame, theme, &mut click_areas);
    let height = pad.height();
    if height < MIN_ROWS {
        pad.draw_text(0, 0, "enlarge the terminal, or press q to quit", Ink::Plain);
        return click_areas;
    }
    // The last rows, from the top.
    let [warning_y, command_y, keys_y] = [height - 3, height - 2, height - 1];
    let x = pad.draw_text(1, 0, "tokengap", Ink::Head);
    pad.draw_text(x + 2, 0, "where an LLM server's tokens wait, and which never arrive", Ink::Dim);
    if picker.shows_help {
        for (y, (key, what)) in (FIRST_ROW_Y..).zip(HELP) {
            pad.draw_clipped(LIST_X, y, KEY_WIDTH, key, Ink::Head);
            pad.draw_text(KEY_TEXT_X, y, what, Ink::Plain);
        }
        pad.draw_text(1, keys_y, KEY_HINTS, Ink::Dim);
        return click_areas;
    }
    draw_offers(&mut pad, height - OTHER_ROWS, picker);
    draw_unsearched_places(&mut pad, warning_y, picker);
    draw_command_or_question(&mut pad, command_y, picker);
    pad.draw_text(1, keys_y, KEY_HINTS, Ink::Dim);
    click_areas
}

/// Draws the first of the places that could not be searched for engines, and the number of the others. Draws nothing without any.
fn draw_unsearched_places(pad: &mut Pad<'_>, y: u16, picker: &SourcePicker) {
    let Some(first) = picker.blind.first() else { return };
    let others = picker.blind.len() - 1;
    let more = if others > 0 { format!(" (and {others} more: tokengap attach lists them)") } else { String::new() };
    pad.draw_text(1, y, &format!("! {first}{more}"), Ink::Health(Health::Warning));
}

/// Draws the command of the selected offer, or the question whether to attach to its engine. Draws nothing without an offer.
fn draw_command_or_question(pad: &mut Pad<'_>, y: u16, picker: &SourcePicker) {
    let Some(offer) = picker.selected_offer() else { return };
    if picker.asks_to_attach() {
        let text = format!("! attach to {}, which is running? Enter: yes   Esc: no", offer.title);
        pad.draw_text(1, y, &text, Ink::Health(Health::Warning));
    } else {
        let x = pad.draw_text(1, y, "runs: ", Ink::Head);
        pad.draw_text(x, y, &format!("tokengap {}", offer.command.join(" ")), Ink::Strong);
    }
}

/// Draws the part of the offers that fits into `rows` rows and includes the selected one.
fn draw_offers(pad: &mut Pad<'_>, rows: u16, picker: &SourcePicker) {
    let lines = picker_lines(picker);
    pad.click_areas.page_rows = rows.into();
    let selected_line = lines
        .iter()
        .position(|line| matches!(line, PickerLine::Offer(index, _) if *index == picker.selected_index))
        .unwrap_or(0);
    // The selected line and the one behind it are shown, so that the list does not seem to end there.
    let first_line = (selected_line + 2).saturating_sub(rows.into());
    for (row, line) in lines.iter().skip(first_line).take(rows.into()).enumerate() {
        let y = FIRST_ROW_Y + row as u16;
        match line {
            PickerLine::Heading(kind) => pad.draw_heading(y, kind.label()),
            PickerLine::Empty(why) => {
                pad.draw_text(LIST_X, y, why, Ink::Dim);
            }
            PickerLine::Offer(index, offer) => {
                let width = title_width(picker, offer.kind).min(pad.width() / 2);
                pad.draw_clipped(LIST_X, y, width, &offer.title, Ink::Strong);
                pad.draw_text(LIST_X + width + 2, y, &offer.note, Ink::Plain);
                pad.make_list_row_selectable(y, *index, *index == picker.selected_index);
            }
        }
    }
}

/// Width of the widest title in a group, for aligning the notes.
fn title_width(picker: &SourcePicker, kind: SourceKind) -> u16 {
    let titles = picker.offers.iter().filter(|offer| offer.kind == kind);
    titles.map(|offer| offer.title.chars().count()).max().unwrap_or(0) as u16
}

/// The offers below the headings of their groups.
fn picker_lines(picker: &SourcePicker) -> Vec<PickerLine<'_>> {
    let mut lines = Vec::new();
    for kind in SourceKind::ALL {
        // Published runs are rare: an empty group of them would only take room.
        if kind == SourceKind::Served && picker.offers.iter().all(|offer| offer.kind != kind) {
            continue;
        }
        lines.push(PickerLine::Heading(kind));
        let lines_before = lines.len();
        let of_kind = picker.offers.iter().enumerate().filter(|(_, offer)| offer.kind == kind);
        lines.extend(of_kind.map(|(index, offer)| PickerLine::Offer(index, offer)));
        if lines.len() == lines_before {
            lines.push(PickerLine::Empty(match kind {
                SourceKind::Engine if picker.has_searched => "none found; looking again every second",
                SourceKind::Engine => "looking ...",
                _ => "none",
            }));
        }
    }
    lines
}
