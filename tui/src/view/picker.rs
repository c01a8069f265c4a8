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
    let x = pad.draw_text(1, 0, "tokengap", Ink::Head);
    pad.draw_text(x + 2, 0, "where an LLM server's tokens wait, and which never arrive", Ink::Dim);
    if picker.shows_help {
        for (row, (key, what)) in HELP.iter().enumerate() {
            pad.draw_clipped(3, 2 + row as u16, 13, key, Ink::Head);
            pad.draw_text(17, 2 + row as u16, what, Ink::Plain);
        }
        pad.draw_text(1, height - 1, KEY_HINTS, Ink::Dim);
        return click_areas;
    }
    draw_offers(&mut pad, height - OTHER_ROWS, picker);
    if let Some(first) = picker.blind.first() {
        let others = picker.blind.len() - 1;
        let more = if others > 0 { format!(" (and {others} more: tokengap attach lists them)") } else { String::new() };
        pad.draw_text(1, height - 3, &format!("! {first}{more}"), Ink::Health(Health::Warning));
    }
    if let Some(offer) = picker.selected_offer() {
        if picker.asks_to_attach() {
            let text = format!("! attach to {}, which is running? Enter: yes   Esc: no", offer.title);
            pad.draw_text(1, height - 2, &text, Ink::Health(Health::Warning));
        } else {
            let x = pad.draw_text(1, height - 2, "runs: ", Ink::Head);
            pad.draw_text(x, height - 2, &format!("tokengap {}", offer.command.join(" ")), Ink::Strong);
        }
    }
    pad.draw_text(1, height - 1, KEY_HINTS, Ink::Dim);
    click_areas
}

/// Draws the part of the offers that fits into `rows` rows and includes the selected one.
fn draw_offers(pad: &mut Pad<'_>, rows: u16, picker: &SourcePicker) {
    let lines = picker_lines(picker);
    pad.click_areas.page_rows = rows.into();
    let selected_line = lines
        .iter()
        .position(|line| matches!(line, PickerLine::Offer(index, _) if *index == picker.selected_index))
        .unwrap_or(0);
    // The line after the selected one is shown too.
    let first_line = (selected_line + 2).saturating_sub(rows.into());
    for (row, line) in lines.iter().skip(first_line).take(rows.into()).enumerate() {
        let y = 2 + row as u16;
        match line {
            PickerLine::Heading(kind) => pad.draw_heading(y, kind.label()),
            PickerLine::Empty(why) => {
                pad.draw_text(3, y, why, Ink::Dim);
            }
            PickerLine::Offer(index, offer) => {
                let width = title_width(picker, offer.kind).min(pad.width() / 2);
                pad.draw_clipped(3, y, width, &offer.title, Ink::Strong);
                pad.draw_text(3 + width + 2, y, &offer.note, Ink::Plain);
                pad.finish_list_row(y, *index, *index == picker.selected_index);
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
