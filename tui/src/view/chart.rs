//! Bar charts over time, a few rows high.

use std::ops::Range;

use ratatui::layout::Rect;
use session::units::{format_count, format_duration, format_elapsed_clock};
use trace::MonoNs;
use trace::stats::Tally;
use trace::time_series::SlotValues;

use super::pad::{CellRow, Pad, text_width};
use crate::state::Model;
use crate::state::action::Action;
use crate::state::curves::{Curves, SecondValue};
use crate::state::flags::Health;
use crate::state::ui::{SECONDS_PER_COLUMN, Ui};
use crate::theme::Ink;

const BLOCK_LEVELS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
const ASCII_LEVELS: [&str; 9] = [" ", ".", ".", ":", ":", "i", "i", "|", "|"];
const SECOND_NS: u64 = 1_000_000_000;
/// Heights of a bar that one row can show, besides none.
const LEVELS_PER_ROW: u16 = 8;
/// Cells reserved for the label, and for each of the last value and the maximum.
const LABEL_WIDTH: u16 = 14;
const NUMBER_WIDTH: u16 = 9;
const SCALE_WIDTH: u16 = 2 * NUMBER_WIDTH + 1;

/// One time series to draw.
pub(super) struct ChartSeries<'a> {
    pub(super) label: &'static str,
    pub(super) second_value: Box<SecondValue<'a>>,
    pub(super) format: fn(f64) -> String,
    pub(super) health: Health,
    /// Reason why no second can have a value.
    pub(super) unobserved: Option<&'static str>,
    /// When its observation ended.
    end: Option<SeriesEnd>,
}

/// End of the observation of a series.
struct SeriesEnd {
    /// First second of the run without a value.
    first_second: u64,
    text: String,
}

impl<'a> ChartSeries<'a> {
    /// A series that is healthy and observed during the whole run, unless a method below says otherwise.
    pub(super) fn new(
        label: &'static str,
        format: fn(f64) -> String,
        second_value: impl Fn(&SlotValues) -> Option<f64> + 'a,
    ) -> Self {
        Self { label, second_value: Box::new(second_value), format, health: Health::Good, unobserved: None, end: None }
    }

    /// Draws the series in the colour of this health.
    pub(super) fn with_health(self, health: Health) -> Self {
        Self { health, ..self }
    }

    /// Draws this reason in place of the series unless it is observed.
    pub(super) fn observed_if(self, is_observed: bool, reason: &'static str) -> Self {
        Self { unobserved: (!is_observed).then_some(reason), ..self }
    }

    /// Ends the series where its observation ended, at `end`. From then on, a text that says so takes the place of the values. `None` if it
    /// has not ended.
    pub(super) fn observed_until(self, end: Option<MonoNs>, model: &Model) -> Self {
        let end = end.map(|end| SeriesEnd {
            first_second: end.since(model.started_at).div_ceil(SECOND_NS),
            text: model.describe_observation_end(end),
        });
        Self { end, ..self }
    }

    /// Values of the series for a chart of this many `columns`. A column shows the value of one slot, which is a second or several. In a
    /// young run, several columns show the same slot. `Err` with the reason if no slot has a value.
    pub(super) fn column_values(
        &self,
        curves: &Curves,
        window: TimeWindow,
        columns: u16,
    ) -> Result<Vec<Option<f64>>, &str> {
        if let Some(reason) = self.unobserved {
            return Err(reason);
        }
        let slots = window.slot_count(curves, columns);
        let values = curves.column_values(&*self.second_value, window.end, window.step, slots.into());
        if values.iter().all(Option::is_none) {
            return Err(match self.end_before(window) {
                Some(end) => end.text.as_str(),
                None => "nothing to measure in this time",
            });
        }
        // A young run has fewer slots than columns. It fills the chart nevertheless, with several columns for each slot.
        let slot_of_column = |column: u16| usize::from(column) * values.len() / usize::from(columns);
        Ok((0..columns).map(|column| values[slot_of_column(column)]).collect())
    }

    /// Texts of the numbers beside the series. The last value is `none` if nothing was measured then, and `unknown` after the end of the
    /// observation.
    pub(super) fn format_numbers(&self, values: &[Option<f64>], window: TimeWindow) -> SeriesNumbers {
        let value_of_last_slot = values.last().copied().flatten();
        let last = match value_of_last_slot {
            Some(value) => (self.format)(value),
            None if self.end_before(window).is_some() => "unknown".to_owned(),
            None => "none".to_owned(),
        };
        SeriesNumbers { last, max: (self.format)(max_value(values)) }
    }

    /// End of the observation, if it comes before the end of the window.
    fn end_before(&self, window: TimeWindow) -> Option<&SeriesEnd> {
        self.end.as_ref().filter(|end| end.first_second <= window.end)
    }
}

/// Texts of the numbers beside a series.
pub(super) struct SeriesNumbers {
    pub(super) last: String,
    pub(super) max: String,
}

/// Formats a duration in nanoseconds.
pub(super) fn format_ns(ns: f64) -> String {
    format_duration(ns as u64)
}

/// 99th percentile of the durations that ended in a second, in nanoseconds.
pub(super) fn p99_ns(durations: &Tally) -> Option<f64> {
    durations.quantile(0.99).map(|ns| ns as f64)
}

/// Formats a value of a series that counts.
pub(super) fn format_whole(value: f64) -> String {
    format_count(value as u64)
}

/// First cell of the time columns.
pub(super) const FIRST_COLUMN_X: u16 = LABEL_WIDTH + 1;

/// Shown time span.
#[derive(Clone, Copy)]
pub(super) struct TimeWindow {
    /// Last second, counted from the start of the run.
    pub(super) end: u64,
    /// Seconds per slot.
    pub(super) step: u64,
    /// Idle seconds after `end` that are left out, because the run is over.
    pub(super) idle_after_s: u64,
}

/// Number of time columns at this width.
pub(super) fn column_count(width: u16) -> u16 {
    width.saturating_sub(LABEL_WIDTH + SCALE_WIDTH + 2)
}

impl TimeWindow {
    /// Time span selected by the user.
    pub(super) fn selected(model: &Model, ui: &Ui) -> Self {
        Self {
            end: ui.last_shown_second(model),
            step: SECONDS_PER_COLUMN[ui.zoom_level],
            idle_after_s: ui.idle_seconds_left_out(model),
        }
    }

    /// Number of slots, of `step` seconds each, that are shown in `columns`: those from the oldest kept second on, at least 1 and at most
    /// one in each column.
    fn slot_count(self, curves: &Curves, columns: u16) -> u16 {
        let oldest = curves.newest_second().saturating_sub(curves.seconds_before_newest());
        let kept_seconds = self.end.saturating_sub(oldest) + 1;
        let kept_slots = kept_seconds.div_ceil(self.step.max(1));
        kept_slots.min(columns.into()).max(1) as u16
    }

    /// Describes the span shown in `columns` and what a column shows.
    pub(super) fn describe(self, columns: u16, curves: &Curves) -> String {
        let span = self.shown_span(columns, curves);
        let [from, to] = [span.start, span.end].map(format_elapsed_clock);
        match self.step {
            1 => format!("{from} to {to}, each second"),
            step => format!("{from} to {to}, maximum of each {step} s"),
        }
    }

    /// The idle time that is left out, with the key that shows it; empty without any.
    fn describe_idle_time(self) -> String {
        match self.idle_after_s {
            0 => String::new(),
            idle_s => {
                format!("; nothing until {} (Right)", format_elapsed_clock((self.end + 1 + idle_s) * SECOND_NS))
            }
        }
    }

    /// Title of the last value beside a series, which says when it was measured:
    /// - `so far`: in the newest second of a run that goes on.
    /// - `in 400 ms`: in the last second of a run that ended after this part of it.
    /// - `at 0:12`: in this second.
    /// - `from 0:10`: in several seconds, from this one on.
    pub(super) fn title_of_last_value(self, model: &Model) -> String {
        let is_second_unfinished = model.curves.is_current(self.end);
        if is_second_unfinished && !model.is_at_end() {
            return "so far".to_owned();
        }
        let is_one_second = self.step == 1;
        if is_second_unfinished && is_one_second {
            let length_ns = model.running_ns.saturating_sub(self.end * SECOND_NS);
            return format!("in {}", format_duration(length_ns));
        }
        let first_second = (self.end + 1).saturating_sub(self.step);
        let preposition = if is_one_second { "at" } else { "from" };
        format!("{preposition} {}", format_elapsed_clock(first_second * SECOND_NS))
    }

    /// Draws the heading of charts, with the titles of the numbers beside them.
    pub(super) fn draw_heading(self, pad: &mut Pad<'_>, y: u16, subject: &str, model: &Model) {
        let width = pad.width() - SCALE_WIDTH - 1;
        let title = format!("{subject}{}", self.describe(column_count(pad.width()), &model.curves));
        let whole_title = format!("{title}{}", self.describe_idle_time());
        // The axis has the shown time, too.
        let width_with_spaces = text_width(&whole_title) + 2;
        let title = if width_with_spaces <= width { whole_title } else { title };
        pad.left_columns(width).draw_heading(y, &title);
        let titles = SeriesNumbers { last: self.title_of_last_value(model), max: "max".to_owned() };
        draw_last_and_max(pad, y, &titles, Ink::Dim);
    }

    /// Span shown in `columns`, in nanoseconds since the start of the run. A second that is not over ends now.
    fn shown_span(self, columns: u16, curves: &Curves) -> Range<u64> {
        let end = if curves.is_current(self.end) { self.end } else { self.end + 1 };
        self.first_shown_second(columns, curves) * SECOND_NS..end * SECOND_NS
    }

    /// First second shown in `columns`, counted from the start of the run.
    fn first_shown_second(self, columns: u16, curves: &Curves) -> u64 {
        (self.end + 1).saturating_sub(u64::from(self.slot_count(curves, columns)) * self.step)
    }

    /// Makes each column of `area` clickable. A click jumps to the second of the column.
    pub(super) fn add_click_areas(self, pad: &mut Pad<'_>, area: Rect, curves: &Curves) {
        let slots = u64::from(self.slot_count(curves, area.width));
        let first_second = self.first_shown_second(area.width, curves);
        for column in 0..area.width {
            let slot = u64::from(column) * slots / u64::from(area.width);
            let column_area = Rect { x: area.x + column, width: 1, ..area };
            pad.add_click_area(column_area, Action::GoToSecond(first_second + slot * self.step));
        }
    }

    /// Draws a time axis below `columns` from `x` on: both ends, and the middle if there is room.
    pub(super) fn draw_axis(self, pad: &mut Pad<'_>, x: u16, y: u16, columns: u16, model: &Model) {
        let span = self.shown_span(columns, &model.curves);
        let middle_ns = u64::midpoint(span.start, span.end);
        let [first, middle, last] = [span.start, middle_ns, span.end].map(|ns| model.format_moment(ns));
        pad.draw_text(x, y, &first, Ink::Dim);
        let middle_width = text_width(&middle);
        let labels_width = text_width(&first) + middle_width + text_width(&last);
        // Two thirds of the axis stay free, so that the labels are not too close to each other.
        let has_room_for_middle = columns >= 3 * labels_width;
        if has_room_for_middle {
            let middle_x = x + columns / 2 - middle_width / 2;
            pad.draw_text(middle_x, y, &middle, Ink::Dim);
        }
        let last_x = (x + columns).saturating_sub(text_width(&last));
        pad.draw_text(last_x, y, &last, Ink::Dim);
    }
}

/// Draws the series into all rows of the pad. An unobserved column stays blank; a zero is a dot.
pub(super) fn draw_chart(pad: &mut Pad<'_>, series: &ChartSeries<'_>, curves: &Curves, window: TimeWindow) {
    let rows = pad.height();
    if rows == 0 {
        return;
    }
    pad.draw_clipped(1, rows - 1, LABEL_WIDTH, series.label, Ink::Head);
    let values = match series.column_values(curves, window, column_count(pad.width())) {
        Ok(values) => values,
        Err(reason) => {
            pad.draw_text(FIRST_COLUMN_X, rows - 1, reason, Ink::Dim);
            return;
        }
    };
    let ink = if series.health >= Health::Warning { Ink::Health(series.health) } else { Ink::Series };
    draw_bars(pad, FIRST_COLUMN_X, &values, ink);
    draw_last_and_max(pad, rows - 1, &series.format_numbers(&values, window), Ink::Strong);
}

/// Draws the last value and the maximum at the right edge.
fn draw_last_and_max(pad: &mut Pad<'_>, y: u16, numbers: &SeriesNumbers, ink: Ink) {
    let x = pad.width() - SCALE_WIDTH - 1;
    let row = CellRow { x, y, pitch: NUMBER_WIDTH + 1, width: NUMBER_WIDTH };
    pad.draw_cells(row, [&numbers.last, &numbers.max], ink);
}

/// The largest known value; 0 without any.
fn max_value(values: &[Option<f64>]) -> f64 {
    values.iter().flatten().copied().fold(0.0, f64::max)
}

/// Draws a bar for each value into all rows of the pad, from column `x` on. The largest bar fills the height.
pub(super) fn draw_bars(pad: &mut Pad<'_>, x: u16, values: &[Option<f64>], ink: Ink) {
    let rows = pad.height();
    if rows == 0 {
        return;
    }
    let max = max_value(values);
    let symbols = pad.theme.rich_or_ascii(BLOCK_LEVELS, ASCII_LEVELS);
    for (column_x, value) in (x..).zip(values) {
        let Some(value) = value else { continue };
        let bar_levels = height_in_levels(*value, max, rows);
        if bar_levels == 0 {
            pad.draw_text(column_x, rows - 1, pad.theme.rich_or_ascii("·", "_"), Ink::Dim);
        }
        for rows_below in 0..rows {
            // The part of the bar in this row. Each number of levels has its own symbol.
            let filled_levels = bar_levels.saturating_sub(rows_below * LEVELS_PER_ROW).min(LEVELS_PER_ROW);
            if filled_levels > 0 {
                pad.draw_text(column_x, rows - 1 - rows_below, symbols[usize::from(filled_levels)], ink);
            }
        }
    }
}

/// Height of the bar of this value in levels, of which a row has [`LEVELS_PER_ROW`]. A bar of the value `max` fills all rows.
fn height_in_levels(value: f64, max: f64, rows: u16) -> u16 {
    if max <= 0.0 {
        return 0;
    }
    let levels = (value / max * f64::from(rows) * f64::from(LEVELS_PER_ROW)).round() as u16;
    // A small value must look different from zero.
    if value > 0.0 { levels.max(1) } else { levels }
}
