//! Bar charts over time, a few rows high.

use session::units::clock;

use super::pad::Pad;
use super::position::wall;
use crate::state::Model;
use crate::state::action::Action;
use crate::state::curves::{Curves, Metric};
use crate::state::flags::Health;
use crate::state::ui::{Ui, ZOOM};
use crate::theme::Ink;

const BLOCKS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
const ASCII: [&str; 9] = [" ", ".", ".", ":", ":", "i", "i", "|", "|"];
const SECOND_NS: u64 = 1_000_000_000;
/// Cells reserved for the label and for the scale.
const LABEL: u16 = 14;
const SCALE: u16 = 11;

/// One time series to draw.
pub(super) struct Line<'a> {
    pub(super) label: &'a str,
    pub(super) metric: Metric<'a>,
    pub(super) show: fn(f64) -> String,
    pub(super) health: Health,
}

/// First cell of the time columns.
pub(super) const LEFT: u16 = LABEL + 1;

/// Shown time span: it ends at second `end`, and each column covers `step` seconds.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub(super) end: u64,
    pub(super) step: u64,
}

/// Number of time columns at this width.
pub(super) fn columns(width: u16) -> u16 {
    width.saturating_sub(LABEL + SCALE + 2)
}

impl Window {
    /// Time span selected by the user.
    pub(super) fn of(model: &Model, ui: &Ui) -> Self {
        Self { end: ui.time_end(model), step: ZOOM[ui.zoom] }
    }

    /// Number of slots with recorded data that fit into `columns`.
    fn slots(self, curves: &Curves, columns: u16) -> u16 {
        let since = curves.newest().saturating_sub(curves.depth());
        let recorded = (self.end.saturating_sub(since) + 1).div_ceil(self.step.max(1));
        columns.min(recorded.min(u64::from(u16::MAX)) as u16).max(1)
    }

    /// Value of each slot, stretched to `columns`.
    pub(super) fn values(self, curves: &Curves, metric: Metric<'_>, columns: u16) -> Vec<Option<f64>> {
        let slots = self.slots(curves, columns);
        let values = curves.values(metric, self.end, self.step, slots.into());
        let column = |at: u16| values[usize::from(at) * values.len() / usize::from(columns)];
        (0..columns).map(column).collect()
    }

    /// Describes the span shown in `columns`: start and end on the run's clock and by the wall clock.
    pub(super) fn words(self, columns: u16, model: &Model) -> String {
        let [from, to] = self.ends(columns, model);
        let wall = model.wall_start_ns.and_then(|start| wall(start + from).zip(wall(start + to)));
        let wall = wall.map_or_else(String::new, |(from, to)| format!(" ({from} to {to})"));
        format!("{} to {}{wall}, maximum of each {} s", clock(from), clock(to), self.step)
    }

    /// Start and end of the span shown in `columns`, in nanoseconds since the start of the run.
    fn ends(self, columns: u16, model: &Model) -> [u64; 2] {
        let slots = u64::from(self.slots(&model.curves, columns));
        let to = self.end + 1;
        [to.saturating_sub(slots * self.step), to].map(|second| second * SECOND_NS)
    }

    /// Makes each of `columns` clickable, in the area from `(x, y)` on, `rows` high. A click jumps to the second of the column.
    pub(super) fn clicks(self, pad: &mut Pad<'_>, (x, y): (u16, u16), (columns, rows): (u16, u16), curves: &Curves) {
        let slots = u64::from(self.slots(curves, columns));
        let first = (self.end + 1).saturating_sub(slots * self.step);
        for column in 0..columns {
            let slot = u64::from(column) * slots / u64::from(columns);
            pad.click((x + column, y), (1, rows), Action::At(first + slot * self.step));
        }
    }

    /// Draws a time axis below `columns` from `x` on: both ends, and the middle if there is room.
    pub(super) fn axis(self, pad: &mut Pad<'_>, (x, y): (u16, u16), columns: u16, model: &Model) {
        let [from, to] = self.ends(columns, model);
        let label = |ns: u64| {
            let wall = model.wall_start_ns.and_then(|start| wall(start + ns));
            wall.unwrap_or_else(|| clock(ns))
        };
        let texts = [from, u64::midpoint(from, to), to].map(label);
        let [first, middle, last] = texts.each_ref().map(|text| text.chars().count() as u16);
        pad.text(x, y, &texts[0], Ink::Dim);
        if columns >= 3 * (first + middle + last) {
            pad.text(x + columns / 2 - middle / 2, y, &texts[1], Ink::Dim);
        }
        pad.text((x + columns).saturating_sub(last), y, &texts[2], Ink::Dim);
    }
}

/// Draws `line` into all rows of the pad. An unobserved column stays blank; a zero is a dot.
pub(super) fn draw(pad: &mut Pad<'_>, line: &Line<'_>, curves: &Curves, window: Window) {
    let rows = pad.height();
    if rows == 0 {
        return;
    }
    let width = columns(pad.width());
    let values = window.values(curves, line.metric, width);
    let top = values.iter().flatten().copied().fold(0.0, f64::max);
    pad.fit(1, rows - 1, LABEL, line.label, Ink::Head);
    if values.iter().all(Option::is_none) {
        pad.text(LABEL + 1, rows - 1, "not observed here", Ink::Dim);
        return;
    }
    let ink = if line.health >= Health::Warning { Ink::Health(line.health) } else { Ink::Series };
    bars(pad, LABEL + 1, &values, ink);
    let now = values.last().copied().flatten();
    pad.number(pad.width() - SCALE - 1, rows - 1, SCALE, &now.map_or_else(|| "-".into(), line.show), Ink::Strong);
    if rows > 1 {
        pad.number(pad.width() - SCALE - 1, 0, SCALE, &format!("max {}", (line.show)(top)), Ink::Dim);
    }
}

/// Draws a bar for each value into all rows of the pad, from column `x` on. The largest bar fills the height.
pub(super) fn bars(pad: &mut Pad<'_>, x: u16, values: &[Option<f64>], ink: Ink) {
    let rows = pad.height();
    if rows == 0 {
        return;
    }
    let top = values.iter().flatten().copied().fold(0.0, f64::max);
    let levels = pad.theme.pick(BLOCKS, ASCII);
    for (place, value) in values.iter().enumerate() {
        let Some(value) = value else { continue };
        let x = x + place as u16;
        let filled = if top > 0.0 {
            // A small value must look different from zero.
            ((value / top * f64::from(rows) * 8.0).round() as u16).max(u16::from(*value > 0.0))
        } else {
            0
        };
        if filled == 0 {
            pad.text(x, rows - 1, pad.theme.pick("·", "_"), Ink::Dim);
        }
        for row in 0..rows {
            let level = filled.saturating_sub(row * 8).min(8);
            if level > 0 {
                pad.text(x, rows - 1 - row, levels[usize::from(level)], ink);
            }
        }
    }
}
