//! CPU: how the engine's threads spend their time: running, waiting for a CPU, held back by a quota, asleep.

use super::Hits;
use super::pad::Pad;
use crate::state::Model;
use crate::state::model::Health;
use crate::state::threads::{Shares, ThreadLine};
use crate::state::ui::Ui;
use crate::state::units::known;
use crate::theme::{PLAIN, STRONG};

/// Cells of a bar of one whole core.
const BAR: usize = 40;
/// Where the verdict and the bar begin.
const VERDICT: u16 = 65;
const BARS: u16 = 82;
/// Shares from which on a thread is said to be bound by, starved of, or denied a CPU.
const BOUND: f64 = 0.90;
const STARVED: f64 = 0.10;

pub(super) fn draw(pad: &mut Pad<'_>, model: &Model, ui: &Ui, hits: &mut Hits) {
    let theme = pad.theme();
    let threads = model.threads.as_deref().unwrap_or_default();
    pad.text(
        1,
        0,
        "the last 10 s of each thread; those that take frames are marked *",
        theme.dim(),
    );
    pad.text(3, 1, "role", theme.dim());
    pad.text(16, 1, "thread", theme.dim());
    for (place, head) in ["tid", "running", "waits", "quota", "asleep"].iter().enumerate() {
        pad.number(28 + place as u16 * 7, 1, 7, head, theme.dim());
    }
    let rows = pad.height().saturating_sub(2);
    hits.page = rows.into();
    let top = ui.thread.min(threads.len().saturating_sub(rows.into()));
    for (row, thread) in threads.iter().skip(top).take(rows.into()).enumerate() {
        line(pad, 2 + row as u16, thread);
    }
}

fn line(pad: &mut Pad<'_>, y: u16, thread: &ThreadLine) {
    let theme = pad.theme();
    let mark = if thread.takes { "*" } else { " " };
    pad.fit(3, y, 12, &format!("{mark}{}", thread.role), STRONG);
    pad.fit(16, y, 12, &thread.name, PLAIN);
    pad.number(28, y, 7, &thread.tid.to_string(), PLAIN);
    let Some(shares) = &thread.recent else {
        pad.text(1, y, theme.sign(Health::Unknown), theme.dim());
        pad.text(36, y, "not sampled in the last 10 s", theme.dim());
        return;
    };
    let (health, verdict) = verdict(shares);
    pad.text(1, y, theme.sign(health), theme.health(health));
    let percent = |s: Option<f64>| known(s, |s| format!("{:.1}%", s * 100.0));
    for (place, share) in [Some(shares.running), shares.waiting, shares.held, shares.blocked]
        .into_iter()
        .enumerate()
    {
        pad.number(35 + place as u16 * 7, y, 7, &percent(share), PLAIN);
    }
    pad.text(VERDICT, y, verdict, theme.health(health));
    let cells = |s: f64| (s.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    let x = pad.text(
        BARS,
        y,
        &theme.pick("█", "#").repeat(cells(shares.running)),
        theme.line(),
    );
    let lack = shares.waiting.unwrap_or(0.0) + shares.held.unwrap_or(0.0);
    pad.text(
        x,
        y,
        &theme.pick("░", "-").repeat(cells(lack)),
        theme.health(Health::Warning),
    );
}

/// A thread that is bound by its CPU, one that is starved of it and one that a quota holds back want three different cures.
pub(super) fn verdict(shares: &Shares) -> (Health, &'static str) {
    let least = |share: Option<f64>, bound| share.is_some_and(|s| s >= bound);
    if least(shares.held, STARVED) {
        (Health::Warning, "held by quota")
    } else if least(shares.waiting, STARVED) {
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

    #[test]
    fn bound_starved_and_throttled_are_three_verdicts() {
        let of = |running, waiting, held| {
            let blocked = None;
            verdict(&Shares {
                running,
                waiting: Some(waiting),
                held,
                blocked,
            })
            .1
        };
        assert_eq!(of(0.95, 0.01, Some(0.0)), "bound");
        assert_eq!(of(0.60, 0.30, None), "lacks a CPU");
        assert_eq!(of(0.50, 0.20, Some(0.4)), "held by quota");
        assert_eq!(of(0.10, 0.0, None), "has room");
    }
}
