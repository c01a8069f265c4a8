//! Bars over time, a few rows high.

use ratatui::style::Style;

use super::pad::Pad;
use crate::state::Model;
use crate::state::history::{History, Metric};
use crate::state::model::Health;
use crate::state::ui::{Ui, ZOOM};
use crate::state::units::clock;
use crate::theme::STRONG;

const BLOCKS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
const ASCII: [&str; 9] = [" ", ".", ".", ":", ":", "i", "i", "|", "|"];
const SECOND_NS: u64 = 1_000_000_000;
/// Cells kept for the label and for the scale.
const LABEL: u16 = 13;
const SCALE: u16 = 9;

/// One line over time.
pub(super) struct Line<'a, T> {
    pub(super) label: &'a str,
    pub(super) metric: Metric<T>,
    pub(super) show: fn(f64) -> String,
    pub(super) health: Health,
}

/// The part of time that is shown: it ends at second `end`, a column is `step` seconds.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub(super) end: u64,
    pub(super) step: u64,
}

/// How many columns of time there are at this width.
pub(super) fn columns(width: u16) -> u16 {
    width.saturating_sub(LABEL + SCALE + 2)
}

impl Window {
    /// The reader's part of time.
    pub(super) fn of(model: &Model, ui: &Ui) -> Self {
        Self {
            end: ui.time_end(model),
            step: ZOOM[ui.zoom],
        }
    }

    /// What `columns` of it are, in words.
    pub(super) fn words(self, columns: u16, model: &Model, ui: &Ui) -> String {
        let span = clock(u64::from(columns) * self.step * SECOND_NS);
        if self.end == model.history.newest() && ui.paused.is_none() {
            format!("the last {span}")
        } else {
            format!("{span} until {}", clock(self.end * SECOND_NS))
        }
    }
}

/// Draws `line` into all rows of the pad. A column that was not observed stays blank, one that is 0 has a dot.
pub(super) fn draw<T: Copy>(pad: &mut Pad<'_>, line: &Line<'_, T>, history: &History<T>, window: Window) {
    let theme = pad.theme();
    let rows = pad.height();
    if rows == 0 {
        return;
    }
    let width = columns(pad.width());
    let values = history.series(line.metric, window.end, window.step, width.into());
    let top = values.iter().flatten().copied().fold(0.0, f64::max);
    pad.fit(1, rows - 1, LABEL, line.label, theme.head());
    if values.iter().all(Option::is_none) {
        pad.text(LABEL + 1, rows - 1, "not seen here", theme.dim());
        return;
    }
    let style = if line.health >= Health::Warning {
        theme.health(line.health)
    } else {
        theme.line()
    };
    bars(pad, LABEL + 1, &values, style);
    let now = values.last().copied().flatten();
    pad.number(
        pad.width() - SCALE - 1,
        rows - 1,
        SCALE,
        &now.map_or_else(|| "-".into(), line.show),
        STRONG,
    );
    if rows > 1 {
        pad.number(
            pad.width() - SCALE - 1,
            0,
            SCALE,
            &format!("/{}", (line.show)(top)),
            theme.dim(),
        );
    }
}

/// Draws a bar for each value into all rows of the pad, from column `x` on, the largest as high as the pad.
pub(super) fn bars(pad: &mut Pad<'_>, x: u16, values: &[Option<f64>], style: Style) {
    let theme = pad.theme();
    let rows = pad.height();
    if rows == 0 {
        return;
    }
    let top = values.iter().flatten().copied().fold(0.0, f64::max);
    let levels = theme.pick(BLOCKS, ASCII);
    for (place, value) in values.iter().enumerate() {
        let Some(value) = value else { continue };
        let x = x + place as u16;
        let filled = if top > 0.0 {
            // What is little is still seen apart from nothing.
            ((value / top * f64::from(rows) * 8.0).round() as u16).max(u16::from(*value > 0.0))
        } else {
            0
        };
        if filled == 0 {
            pad.text(x, rows - 1, theme.pick("·", "_"), theme.dim());
        }
        for row in 0..rows {
            let level = filled.saturating_sub(row * 8).min(8);
            if level > 0 {
                pad.text(x, rows - 1 - row, levels[usize::from(level)], style);
            }
        }
    }
}
