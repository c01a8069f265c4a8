//! Bars over time, a few rows high.

use super::pad::Pad;
use crate::state::history::{History, Metric};
use crate::state::model::Health;
use crate::theme::STRONG;

const BLOCKS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
const ASCII: [&str; 9] = [" ", ".", ".", ":", ":", "i", "i", "|", "|"];
/// Cells kept for the label and for the scale.
const LABEL: u16 = 13;
const SCALE: u16 = 9;

/// One line over time.
pub(super) struct Line<'a> {
    pub(super) label: &'a str,
    pub(super) metric: Metric,
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

/// Draws `line` into all rows of the pad. A column that was not observed stays blank, one that is 0 has a dot.
pub(super) fn draw(pad: &mut Pad<'_>, line: &Line<'_>, history: &History, window: Window) {
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
    let levels = theme.pick(BLOCKS, ASCII);
    for (x, value) in values.iter().enumerate() {
        let Some(value) = value else { continue };
        let x = LABEL + 1 + x as u16;
        let filled = if top > 0.0 {
            (value / top * f64::from(rows) * 8.0).round() as u16
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
