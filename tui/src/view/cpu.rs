//! CPU tab: how the engine's threads spend their time (running, waiting for a CPU, throttled by a quota, asleep).

use outputs::report::StackLine;
use session::units::{count, known};
use trace::time_series::SlotValues;

use super::chart::{self, Line, Window};
use super::pad::Pad;
use crate::state::Model;
use crate::state::action::Tab;
use crate::state::curves::Metric;
use crate::state::flags::Health;
use crate::state::threads::{Shares, ThreadLine};
use crate::state::ui::Ui;
use crate::theme::Ink;

/// Cells of a bar that represents one full core.
const BAR: usize = 40;
/// Maximum number of rows of one time series.
const CHART_ROWS: u16 = 4;
/// First cells of the verdict and of the bar.
const VERDICT: u16 = 65;
const BARS: u16 = 82;
/// Minimum shares for the verdicts: CPU-bound, and starved or throttled.
const BOUND: f64 = 0.90;
const STARVED: f64 = 0.10;

pub(super) fn draw(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    let threads = model.threads.as_deref().unwrap_or_default();
    pad.text(1, 0, "last 10 s of each thread; * marks threads that receive frames", Ink::Dim);
    pad.text(3, 1, "role", Ink::Dim);
    pad.text(16, 1, "thread", Ink::Dim);
    pad.numbers((28, 1), (7, 7), ["tid", "runs", "waits", "quota", "asleep"], Ink::Dim);
    let max_rows = (pad.height().saturating_sub(2) / 2).max(4);
    let selected = ui.place(Tab::Cpu);
    let y = pad.list(2, threads, (selected, max_rows), |pad, y, _, thread| line(pad, y, thread));
    if let Some(thread) = threads.get(selected) {
        // With stack samples, the function table gets the space of the charts.
        let table = model.stacks.iter().find(|t| t.role == thread.role).or(model.stacks.first());
        let rows = if table.is_some() { 1 } else { CHART_ROWS };
        let y = over_time(pad, y + 1, rows, thread, model, ui);
        if let Some(table) = table {
            functions(pad, y, table);
        }
    }
}

/// Draws the functions in which the threads of a role ran.
fn functions(pad: &mut Pad<'_>, y: u16, table: &StackLine) {
    let title =
        format!("{}: functions in {} running stacks of {} read", table.role, count(table.running), count(table.stacks));
    pad.rule(y, &title);
    pad.numbers((1, y + 1), (8, 7), ["own", "total", "GIL", "growing"], Ink::Dim);
    pad.text(35, y + 1, "function", Ink::Dim);
    let percent = |share: f64| format!("{:.1}%", share * 100.0);
    for (row, stacks) in table.functions.iter().enumerate() {
        let y = y + 2 + row as u16;
        if y >= pad.height() {
            return;
        }
        let cells = [
            percent(stacks.all.own),
            percent(stacks.all.total),
            known(stacks.all.gil, percent),
            known(stacks.growing, |share| percent(share.own)),
        ];
        pad.numbers((1, y), (8, 7), cells, Ink::Plain);
        let x = pad.text(35, y, &stacks.function, Ink::Strong);
        pad.text(x + 2, y, &stacks.file, Ink::Dim);
    }
}

/// Draws time series of the selected thread, each at most `max_rows` rows high. Returns the next free row.
fn over_time(pad: &mut Pad<'_>, y: u16, max_rows: u16, thread: &ThreadLine, model: &Model, ui: &Ui) -> u16 {
    let window = Window::of(model, ui);
    let time_range = window.words(chart::columns(pad.width()), model);
    let thread_name = format!("{} {} {}", thread.role, thread.name, thread.id.tid);
    pad.rule(y, &format!("{thread_name}: {time_range}"));
    let Some(index) = model.curves.thread_index(thread.id) else {
        pad.text(1, y + 1, "no curve: not among the threads that are kept second by second", Ink::Dim);
        return y + 2;
    };
    let of = |slot: &SlotValues| slot.threads.get(index)?.as_ref().map(Shares::of);
    let show = |share: f64| format!("{:.0}%", share * 100.0);
    let metrics: [(&str, Metric<'_>, Health); 3] = [
        ("running", Metric::Maximum(&|slot| Some(of(slot)?.running)), Health::Good),
        ("lacks a CPU", Metric::Maximum(&|slot| of(slot)?.waiting), Health::Warning),
        ("quota", Metric::Maximum(&|slot| of(slot)?.throttled), Health::Warning),
    ];
    let rows = (pad.height().saturating_sub(y + 1) / metrics.len() as u16).clamp(1, max_rows);
    for (place, &(label, metric, health)) in metrics.iter().enumerate() {
        let line = Line { label, metric, show, health };
        let y = y + 1 + place as u16 * rows;
        if y + rows <= pad.height() {
            chart::draw(&mut pad.below(y, rows), &line, &model.curves, window);
        }
    }
    y + 1 + rows * metrics.len() as u16
}

fn line(pad: &mut Pad<'_>, y: u16, thread: &ThreadLine) -> u16 {
    let mark = if thread.receives { "*" } else { " " };
    pad.fit(3, y, 12, &format!("{mark}{}", thread.role), Ink::Strong);
    pad.fit(16, y, 12, &thread.name, Ink::Plain);
    pad.number(28, y, 7, &thread.id.tid.to_string(), Ink::Plain);
    let Some(shares) = &thread.recent else {
        pad.text(1, y, pad.theme.sign(Health::Unknown), Ink::Dim);
        pad.text(36, y, "not sampled in the last 10 s", Ink::Dim);
        return y + 1;
    };
    let (health, verdict) = verdict(shares);
    pad.text(1, y, pad.theme.sign(health), Ink::Health(health));
    let percent = |s: Option<f64>| known(s, |s| format!("{:.1}%", s * 100.0));
    let cells = [Some(shares.running), shares.waiting, shares.throttled, shares.blocked].map(percent);
    pad.numbers((35, y), (7, 7), cells, Ink::Plain);
    pad.text(VERDICT, y, verdict, Ink::Health(health));
    let cells = |s: f64| (s.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    let x = pad.text(BARS, y, &pad.theme.pick("█", "#").repeat(cells(shares.running)), Ink::Series);
    let lack = shares.waiting.unwrap_or(0.0) + shares.throttled.unwrap_or(0.0);
    pad.text(x, y, &pad.theme.pick("░", "-").repeat(cells(lack)), Ink::Health(Health::Warning));
    y + 1
}

/// Tells CPU-bound, starved and throttled threads apart, because each needs a different fix.
pub(super) fn verdict(shares: &Shares) -> (Health, &'static str) {
    let reaches = |share: Option<f64>, bound| share.is_some_and(|s| s >= bound);
    if let Some(state) = shares.away {
        (Health::Warning, state.as_str())
    } else if reaches(shares.throttled, STARVED) {
        (Health::Warning, "throttled")
    } else if reaches(shares.waiting, STARVED) {
        (Health::Warning, "lacks a CPU")
    } else if shares.running >= BOUND {
        (Health::Warning, "bound")
    } else {
        (Health::Good, "has room")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::event::AwayState;

    #[test]
    fn bound_starved_and_throttled_have_distinct_verdicts() {
        let of = |running, waiting, throttled| {
            let blocked = None;
            verdict(&Shares { running, waiting: Some(waiting), throttled, blocked, away: None }).1
        };
        assert_eq!(of(0.95, 0.01, Some(0.0)), "bound");
        assert_eq!(of(0.60, 0.30, None), "lacks a CPU");
        assert_eq!(of(0.50, 0.20, Some(0.4)), "throttled");
        assert_eq!(of(0.10, 0.0, None), "has room");
        let stopped = Shares { away: Some(AwayState::Stopped), ..Shares::default() };
        assert_eq!(verdict(&stopped), (Health::Warning, "stopped"));
    }
}
