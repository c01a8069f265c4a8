//! CPU tab: how the engine's threads spend their time (running, waiting for a CPU, throttled by a quota, asleep).

use outputs::report::{NO_THROTTLING, NO_WAITS, StackLine};
use session::units::{format_count, known_or_dash};
use trace::time_series::SlotValues;
use trace::words::{decimal_percent, percent};

use super::chart::{self, ChartSeries, TimeWindow};
use super::pad::{CellRow, List, NextRow, Pad};
use crate::state::Model;
use crate::state::action::Tab;
use crate::state::flags::Health;
use crate::state::threads::{ThreadLine, TimeShares};
use crate::state::ui::Ui;
use crate::theme::Ink;

/// Cells of a bar that represents one full core.
const CORE_BAR_WIDTH: usize = 40;
/// Maximum number of rows of one time series.
const MAX_CHART_ROWS: u16 = 4;
/// Threads that the list shows at least.
const MIN_LISTED_THREADS: u16 = 4;
const SHARE_WIDTH: u16 = 7;
/// Cells of a number beside a function, and distance between the starts of two such numbers.
const FUNCTION_NUMBER_WIDTH: u16 = 7;
const FUNCTION_NUMBER_PITCH: u16 = 8;
/// First cell of a function's name, behind its four numbers.
const FUNCTION_X: u16 = 35;
/// First cell of the thread's role, and cells for it.
const ROLE_X: u16 = 3;
const ROLE_WIDTH: u16 = 12;
/// First cell of the thread's name.
const NAME_X: u16 = 16;
/// Cells of the longest verdict, `waiting for a CPU`, and a space behind it.
const VERDICT_WIDTH: u16 = 18;
/// Rows above the threads: the title and the headings.
const HEADING_ROWS: u16 = 2;
/// From these widths on, the table has the throttled share, the share asleep with the names of threads, and their names as a whole.
const QUOTA_COLUMNS: u16 = 62;
const WIDE_COLUMNS: u16 = 80;
const WHOLE_NAME_COLUMNS: u16 = 84;
/// Cells of a thread's name: as a whole, of which the kernel keeps 15 characters, or cut.
const WHOLE_NAME_WIDTH: u16 = 15;
const CUT_NAME_WIDTH: u16 = 11;
/// Minimum shares for the verdicts: CPU-bound, and waiting for a CPU or throttled.
const MIN_BOUND_SHARE: f64 = 0.90;
const MIN_LACKING_SHARE: f64 = 0.10;

/// Draws the table of threads, and below it the curves of the selected one. If stacks were sampled, the functions in which threads of its
/// role ran follow.
pub(super) fn draw_cpu_tab(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    let threads = model.threads.as_deref().unwrap_or_default();
    let layout = ThreadTableLayout::for_width(pad.width());
    pad.draw_text(1, 0, &thread_table_title(threads, model), Ink::Dim);
    layout.draw_headings(pad, 1);
    let rows_below_headings = pad.height().saturating_sub(HEADING_ROWS);
    // The other half is for the curves of the selected thread.
    let max_threads = (rows_below_headings / 2).max(MIN_LISTED_THREADS);
    let selected = ui.selected_index(Tab::Cpu);
    let list = List { items: threads, selected, max_items: max_threads };
    let y = pad.draw_list(HEADING_ROWS, &list, |pad, y, _, thread| {
        draw_thread(pad, y, thread, model, &layout);
        y + 1
    });
    if let Some(thread) = threads.get(selected) {
        // Without stacks of its role, those of the first sampled role are shown.
        let stacks = model.stacks.iter().find(|stacks| stacks.role == thread.role).or(model.stacks.first());
        // With stacks, the table of functions gets the space of the charts.
        let chart_rows = if stacks.is_some() { 1 } else { MAX_CHART_ROWS };
        let y = draw_thread_charts(pad, y + 1, chart_rows, thread, model, ui);
        if let Some(stacks) = stacks {
            draw_functions(pad, y, stacks);
        }
    }
}

/// Title of the table: the time that its shares are about, and why a column has `-` in place of values.
fn thread_table_title(threads: &[ThreadLine], model: &Model) -> String {
    let mut title = format!("{}; * receives frames; waits: for a CPU", model.format_recent_seconds());
    let recent: Vec<TimeShares> = threads.iter().filter_map(|thread| thread.recent).collect();
    if recent.iter().any(|shares| shares.throttled.is_none()) {
        title = format!("{title}; quota -: {NO_THROTTLING}");
    }
    if recent.iter().any(|shares| shares.waiting.is_none()) {
        title = format!("{title}; waits -: {NO_WAITS}");
    }
    title
}

/// Columns of the table of threads. A narrow screen has neither the thread's name nor its time asleep.
struct ThreadTableLayout {
    /// 0 without names.
    name_width: u16,
    share_count: usize,
}

impl ThreadTableLayout {
    /// Columns for a screen of this width. The shares are, in this order: on a CPU, waiting for one, throttled by the quota, asleep.
    fn for_width(width: u16) -> Self {
        // The verdict behind the shares is always shown whole.
        let share_count = if width < QUOTA_COLUMNS {
            2
        } else if width < WIDE_COLUMNS {
            3
        } else {
            4
        };
        let name_width = if width < WIDE_COLUMNS {
            0
        } else if width < WHOLE_NAME_COLUMNS {
            CUT_NAME_WIDTH
        } else {
            WHOLE_NAME_WIDTH
        };
        Self { name_width, share_count }
    }

    /// Draws the headings of the columns.
    fn draw_headings(&self, pad: &mut Pad<'_>, y: u16) {
        pad.draw_text(ROLE_X, y, "role", Ink::Dim);
        if self.name_width > 0 {
            pad.draw_text(NAME_X, y, "thread", Ink::Dim);
        }
        // The shares follow the tid in cells of the same width.
        let headings = ["tid", "on CPU", "waits", "quota", "asleep"].into_iter().take(1 + self.share_count);
        let cells = CellRow { x: self.tid_x(), y, pitch: SHARE_WIDTH, width: SHARE_WIDTH };
        pad.draw_cells(cells, headings, Ink::Dim);
    }

    fn tid_x(&self) -> u16 {
        if self.name_width > 0 { NAME_X + self.name_width } else { NAME_X - 1 }
    }

    fn shares_x(&self) -> u16 {
        self.tid_x() + SHARE_WIDTH
    }

    fn verdict_x(&self) -> u16 {
        self.shares_x() + self.share_count as u16 * SHARE_WIDTH + 1
    }
}

/// Draws a table of the functions in which the threads of a role ran. Its numbers are shares of the stacks that were read while a thread
/// ran:
/// - `own`: stacks with the function innermost.
/// - `total`: stacks with the function anywhere.
/// - `GIL`: as `own`, counting only stacks that held Python's lock.
/// - `growing`: as `own`, counting only stacks that were read while frames piled up.
fn draw_functions(pad: &mut Pad<'_>, y: u16, stacks: &StackLine) {
    let title = format!(
        "{}: functions in {} running stacks of {} read",
        stacks.role,
        format_count(stacks.running),
        format_count(stacks.stacks)
    );
    pad.draw_heading(y, &title);
    let headings = CellRow { x: 1, y: y + 1, pitch: FUNCTION_NUMBER_PITCH, width: FUNCTION_NUMBER_WIDTH };
    pad.draw_cells(headings, ["own", "total", "GIL", "growing"], Ink::Dim);
    pad.draw_text(FUNCTION_X, y + 1, "function", Ink::Dim);
    for (y, function) in (y + 2..).zip(&stacks.functions) {
        // The screen has no further row.
        if y >= pad.height() {
            return;
        }
        let numbers = [
            format_percent(function.all.own),
            format_percent(function.all.total),
            known_or_dash(function.all.gil, format_percent),
            known_or_dash(function.growing, |shares| format_percent(shares.own)),
        ];
        pad.draw_cells(CellRow { y, ..headings }, numbers, Ink::Plain);
        let x = pad.draw_text(FUNCTION_X, y, &function.function, Ink::Strong);
        pad.draw_text(x + 2, y, &function.file, Ink::Dim);
    }
}

/// Formats a share with one decimal, such as `99.9 %`. The longer `100.0 %` would fill its column, so that becomes `100 %`.
fn format_percent(share: f64) -> String {
    if share >= 0.9995 { percent(share) } else { decimal_percent(share) }
}

/// Draws time series of the selected thread, each at most `max_rows` rows high. Returns the next free row.
fn draw_thread_charts(
    pad: &mut Pad<'_>,
    y: u16,
    max_rows: u16,
    thread: &ThreadLine,
    model: &Model,
    ui: &Ui,
) -> NextRow {
    let window = TimeWindow::selected(model, ui);
    let subject = format!("{} {} {}: ", thread.role, thread.name, thread.id.tid);
    window.draw_heading(pad, y, &subject, model);
    let Some(index) = model.curves.thread_index(thread.id) else {
        pad.draw_text(1, y + 1, "no curve: not among the threads that are kept second by second", Ink::Dim);
        return y + 2;
    };
    let charts = thread_series(index);
    // Without the row of the heading and that of the axis.
    let rows_for_charts = pad.height().saturating_sub(y + 2);
    let rows_per_chart = (rows_for_charts / charts.len() as u16).clamp(1, max_rows);
    let mut next_y = y + 1;
    for series in &charts {
        // The screen has no row for this chart and the axis below it.
        if next_y + rows_per_chart >= pad.height() {
            break;
        }
        chart::draw_chart(&mut pad.pad_of_rows(next_y, rows_per_chart), series, &model.curves, window);
        next_y += rows_per_chart;
    }
    let axis_y = next_y;
    window.draw_axis(pad, chart::FIRST_COLUMN_X, axis_y, chart::column_count(pad.width()), model);
    axis_y + 1
}

/// Time series of the thread with this index in the curves.
pub(super) fn thread_series(thread_index: usize) -> [ChartSeries<'static>; 3] {
    [
        ChartSeries::new("on CPU", percent, move |slot| Some(thread_shares(slot, thread_index)?.running)),
        ChartSeries::new("waits", percent, move |slot| thread_shares(slot, thread_index)?.waiting)
            .with_health(Health::Warning),
        ChartSeries::new("quota", percent, move |slot| thread_shares(slot, thread_index)?.throttled)
            .with_health(Health::Warning),
    ]
}

/// How the thread with this index spent the slot; `None` if it was not sampled.
fn thread_shares(slot: &SlotValues, index: usize) -> Option<TimeShares> {
    slot.threads.get(index)?.as_ref().map(TimeShares::from_time_use)
}

/// Draws a thread in one row: its name, how it spent its time, and the verdict.
fn draw_thread(pad: &mut Pad<'_>, y: u16, thread: &ThreadLine, model: &Model, layout: &ThreadTableLayout) {
    let mark = if thread.is_receiver { "*" } else { " " };
    pad.draw_clipped(ROLE_X, y, ROLE_WIDTH, &format!("{mark}{}", thread.role), Ink::Strong);
    if layout.name_width > 0 {
        let name = pad.shorten_id(&thread.name, layout.name_width);
        pad.draw_clipped(NAME_X, y, layout.name_width, &name, Ink::Plain);
    }
    pad.draw_right_aligned(layout.tid_x(), y, SHARE_WIDTH, &thread.id.tid.to_string(), Ink::Plain);
    let Some(shares) = &thread.recent else {
        // The thread has ended, or was not sampled for another reason.
        pad.draw_text(1, y, pad.theme.health_symbol(Health::Unknown), Ink::Dim);
        let since = thread.last_sample_at.map(|at| model.format_moment(at.since(model.started_at)));
        let text = known_or_dash(since, |since| format!("not sampled since {since}"));
        pad.draw_text(layout.shares_x() + 1, y, &text, Ink::Dim);
        return;
    };
    let ThreadVerdict { health, text } = judge_thread(shares);
    pad.draw_text(1, y, pad.theme.health_symbol(health), Ink::Health(health));
    let all_shares = [Some(shares.running), shares.waiting, shares.throttled, shares.blocked];
    let cells = all_shares.into_iter().take(layout.share_count).map(|share| known_or_dash(share, format_percent));
    let row = CellRow { x: layout.shares_x(), y, pitch: SHARE_WIDTH, width: SHARE_WIDTH };
    pad.draw_cells(row, cells, Ink::Plain);
    pad.draw_text(layout.verdict_x(), y, text, Ink::Health(health));
    draw_cpu_time_bar(pad, layout.verdict_x() + VERDICT_WIDTH, y, shares);
}

/// Draws a bar of the time on a CPU, continued by the time in which the thread could have run and had none.
fn draw_cpu_time_bar(pad: &mut Pad<'_>, x: u16, y: u16, shares: &TimeShares) {
    let running_bar = pad.theme.rich_or_ascii("█", "#").repeat(bar_width(shares.running));
    let x = pad.draw_text(x, y, &running_bar, Ink::Series);
    let lacking = shares.waiting.unwrap_or(0.0) + shares.throttled.unwrap_or(0.0);
    let lacking_bar = pad.theme.rich_or_ascii("░", "-").repeat(bar_width(lacking));
    pad.draw_text(x, y, &lacking_bar, Ink::Health(Health::Warning));
}

/// Cells of a bar for this share of one core.
fn bar_width(share: f64) -> usize {
    (share.clamp(0.0, 1.0) * CORE_BAR_WIDTH as f64).round() as usize
}

struct ThreadVerdict {
    health: Health,
    text: &'static str,
}

/// Tells CPU-bound, waiting and throttled threads apart, because each needs a different fix.
fn judge_thread(shares: &TimeShares) -> ThreadVerdict {
    let problem = if let Some(state) = shares.away {
        // A thread that is stopped or blocked needs no CPU.
        state.as_str()
    } else if shares.throttled.is_some_and(|share| share >= MIN_LACKING_SHARE) {
        "throttled"
    } else if shares.waiting.is_some_and(|share| share >= MIN_LACKING_SHARE) {
        "waiting for a CPU"
    } else if shares.running >= MIN_BOUND_SHARE {
        "CPU-bound"
    } else {
        return ThreadVerdict { health: Health::Good, text: "not CPU-bound" };
    };
    ThreadVerdict { health: Health::Warning, text: problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::event::AwayState;

    #[test]
    fn bound_waiting_and_throttled_have_distinct_verdicts() {
        let of = |running, waiting, throttled| {
            let blocked = None;
            judge_thread(&TimeShares { running, waiting: Some(waiting), throttled, blocked, away: None }).text
        };
        assert_eq!(of(0.95, 0.01, Some(0.0)), "CPU-bound");
        assert_eq!(of(0.60, 0.30, None), "waiting for a CPU");
        assert_eq!(of(0.50, 0.20, Some(0.4)), "throttled");
        assert_eq!(of(0.10, 0.0, None), "not CPU-bound");
        let stopped = TimeShares { away: Some(AwayState::Stopped), ..TimeShares::default() };
        let verdict = judge_thread(&stopped);
        assert_eq!((verdict.health, verdict.text), (Health::Warning, "stopped"));
    }
}
