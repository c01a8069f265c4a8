//! CPU: each watched thread's share of a core over the run: running, waiting for a CPU, held back by a quota.

use trace::report::CpuLine;

use super::Hits;
use super::pad::Pad;
use crate::state::Model;
use crate::state::model::Health;
use crate::state::ui::Ui;
use crate::state::units::known;
use crate::theme::{PLAIN, STRONG};

/// Cells of a bar of one whole core.
const BAR: usize = 25;
/// Where the verdict and the bar begin.
const VERDICT: u16 = 50;
const BARS: u16 = 80;
/// Shares from which on a thread is said to be bound by, starved of, or denied a CPU.
const BOUND: f64 = 0.90;
const STARVED: f64 = 0.10;

pub(super) fn draw(pad: &mut Pad<'_>, model: &Model, ui: &Ui, hits: &mut Hits) {
    let theme = pad.theme();
    let threads = model.threads.as_deref().unwrap_or_default();
    if threads.is_empty() {
        pad.text(2, 1, "no thread has used a CPU yet", theme.dim());
        return;
    }
    for (x, head) in [(3, "thread of"), (VERDICT, "over the whole run")] {
        pad.text(x, 0, head, theme.dim());
    }
    for (place, head) in ["tid", "running", "waits", "quota"].iter().enumerate() {
        pad.number(16 + place as u16 * 8, 0, 8, head, theme.dim());
    }
    let rows = pad.height().saturating_sub(1);
    hits.page = rows.into();
    let top = ui.thread.min(threads.len().saturating_sub(rows.into()));
    for (row, thread) in threads.iter().skip(top).take(rows.into()).enumerate() {
        line(pad, 1 + row as u16, thread);
    }
}

fn line(pad: &mut Pad<'_>, y: u16, thread: &CpuLine) {
    let theme = pad.theme();
    let (health, verdict) = verdict(thread);
    let share = |s: Option<f64>| known(s, |s| format!("{:.1}%", s * 100.0));
    pad.text(1, y, theme.sign(health), theme.health(health));
    pad.fit(3, y, 13, &thread.role, STRONG);
    let cells = [
        thread.tid.to_string(),
        share(thread.on_cpu),
        share(thread.run_wait),
        share(thread.throttled),
    ];
    for (place, text) in cells.iter().enumerate() {
        pad.number(16 + place as u16 * 8, y, 8, text, PLAIN);
    }
    pad.text(VERDICT, y, verdict, theme.health(health));
    let cells = |s: Option<f64>| ((s.unwrap_or(0.0).clamp(0.0, 1.0) * BAR as f64).round() as usize).min(BAR);
    let running = cells(thread.on_cpu);
    let waiting = cells(thread.run_wait).min(BAR - running);
    let x = pad.text(BARS, y, &theme.pick("█", "#").repeat(running), theme.line());
    pad.text(
        x,
        y,
        &theme.pick("░", "-").repeat(waiting),
        theme.health(Health::Warning),
    );
}

/// A thread that is bound by its CPU, one that is starved of it and one that a quota holds back want three different cures.
fn verdict(thread: &CpuLine) -> (Health, &'static str) {
    let least = |share: Option<f64>, bound| share.is_some_and(|s| s >= bound);
    if least(thread.throttled, STARVED) {
        (Health::Warning, "held back by its CPU limit")
    } else if least(thread.run_wait, STARVED) {
        (Health::Warning, "waits for a CPU")
    } else if least(thread.on_cpu, BOUND) {
        (Health::Warning, "bound by its CPU")
    } else {
        (Health::Good, "has room")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_starved_and_throttled_are_three_verdicts() {
        let of = |on_cpu, run_wait, throttled| {
            let (on_cpu, run_wait) = (Some(on_cpu), Some(run_wait));
            verdict(&CpuLine {
                role: "tokenizer".into(),
                pid: 1,
                tid: 1,
                on_cpu,
                run_wait,
                throttled,
            })
            .1
        };
        assert_eq!(of(0.95, 0.01, Some(0.0)), "bound by its CPU");
        assert_eq!(of(0.60, 0.30, None), "waits for a CPU");
        assert_eq!(of(0.50, 0.20, Some(0.4)), "held back by its CPU limit");
        assert_eq!(of(0.10, 0.0, None), "has room");
    }
}
