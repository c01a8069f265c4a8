//! Playback position of a recording: speed, time, a bar with the findings, and gaps of the recording.

use std::cmp::Ordering;

use ratatui::layout::Rect;
use session::ScreenCommand;
use session::playback::{Play, PlaybackState, Position};
use session::units::{format_count, format_elapsed_clock, format_wall_time};

use super::draw_degraded_or_text;
use super::pad::{NextColumn, Pad, text_width};
use crate::state::Model;
use crate::state::action::Action;
use crate::state::flags::Health;
use crate::theme::Ink;

/// From this width on, the wall-clock time is shown.
const WIDE_COLUMNS: u16 = 100;
const BAR_MIN_WIDTH: u16 = 16;
const BAR_MAX_WIDTH: u16 = 80;

/// Draws where playback is: state, speed, time, and a bar to click on.
pub(super) fn draw_playback_position(pad: &mut Pad<'_>, model: &Model, position: &Position) {
    let x = draw_playback_state(pad, position);
    let end = format!(" {}", format_elapsed_clock(position.whole_ns));
    let missed = format!("missed {}  undecoded {}", format_count(model.run.missed), format_count(model.run.undecoded));
    let width_behind_bar = text_width(&end) + 2 + text_width(&missed);
    let spare_width = pad.width().saturating_sub(x + width_behind_bar);
    // The texts behind the bar are cut before it becomes too short to click on.
    let bar_width = spare_width.clamp(BAR_MIN_WIDTH, BAR_MAX_WIDTH);
    draw_playback_bar(pad, x, bar_width, model, position);
    let x = pad.draw_text(x + bar_width, 0, &end, Ink::Plain) + 2;
    // Set if playback started in the middle of the recording, so that what came before is unknown.
    if let Some(since) = position.since_ns {
        let text = format!("! begun at {}", format_elapsed_clock(since));
        pad.draw_text(x, 0, &text, Ink::Health(Health::Warning));
    } else {
        draw_degraded_or_text(pad, x, &missed, model);
    }
}

/// Draws the state of the playback, its speed and its time. Returns the next free column.
fn draw_playback_state(pad: &mut Pad<'_>, position: &Position) -> NextColumn {
    let state = match position.doing {
        PlaybackState::Playing => pad.theme.rich_or_ascii("▶", ">"),
        PlaybackState::Paused => "PAUSED",
        PlaybackState::Seeking => pad.theme.rich_or_ascii("▶▶", ">>"),
        PlaybackState::Ended => "END",
    };
    let x = pad.draw_text(1, 0, state, Ink::Head);
    let x = pad.draw_text(x + 1, 0, &position.speed.to_string(), Ink::Plain);
    let x = pad.draw_text(x + 2, 0, &format_elapsed_clock(position.at_ns), Ink::Strong) + 1;
    if pad.width() >= WIDE_COLUMNS
        && let Some(wall_time) = position.wall_ns.and_then(format_wall_time)
    {
        return pad.draw_text(x, 0, &format!("({wall_time}) "), Ink::Dim);
    }
    x
}

/// Draws the bar, with a mark at the start of each known finding. A click on a cell seeks to its time.
fn draw_playback_bar(pad: &mut Pad<'_>, x: u16, width: u16, model: &Model, position: &Position) {
    // At least 1, because it is a divisor.
    let whole_ns = position.whole_ns.max(1);
    let current = bar_cell(position.at_ns, whole_ns, width);
    for cell in 0..width {
        let (symbol, ink) = match cell.cmp(&current) {
            Ordering::Equal => (pad.theme.rich_or_ascii("●", "O"), Ink::Head),
            Ordering::Less => (pad.theme.rich_or_ascii("━", "="), Ink::Series),
            Ordering::Greater => (pad.theme.rich_or_ascii("─", "-"), Ink::Dim),
        };
        pad.draw_text(x + cell, 0, symbol, ink);
        let seek = ScreenCommand::Play(Play::To(time_of_cell(cell, whole_ns, width)));
        pad.add_click_area(Rect::new(x + cell, 0, 1, 1), Action::Command(seek));
    }
    // Drawn from last to first, because the first one is the most important and must stay visible in its cell.
    for finding in model.findings.iter().rev() {
        let last_cell = width.saturating_sub(1);
        let cell = bar_cell(model.finding_start_ns(finding), whole_ns, width).min(last_cell);
        let health = Health::from(finding.verdict.severity);
        // The sign of the current time stays visible.
        if cell != current {
            pad.draw_text(x + cell, 0, pad.theme.health_symbol(health), Ink::Health(health));
        }
    }
}

/// Time of this cell in a bar that covers the whole run. The last cell is the end of the run.
fn time_of_cell(cell: u16, whole_ns: u64, width: u16) -> u64 {
    let last_cell = width.saturating_sub(1).max(1);
    (u128::from(cell) * u128::from(whole_ns) / u128::from(last_cell)) as u64
}

/// Cell of this time in a bar that covers the whole run.
fn bar_cell(at_ns: u64, whole_ns: u64, width: u16) -> u16 {
    (u128::from(at_ns) * u128::from(width.saturating_sub(1)) / u128::from(whole_ns)) as u16
}
