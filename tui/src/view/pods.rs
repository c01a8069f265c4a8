//! Pods tab: one line per watched run, and the sum of all.

use session::units::{count, duration, known, rate};

use super::pad::Pad;
use crate::state::Model;
use crate::state::action::Tab;
use crate::state::flags::Health;
use crate::state::pods::{Brief, Link, PodLine};
use crate::state::ui::Ui;
use crate::theme::Ink;

/// Width of the name, and first cells of the state and number columns.
const NAME: usize = 24;
const STATE: u16 = 28;
const NUMBERS: u16 = 42;
const WIDE: u16 = 9;

pub(super) fn draw(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    pad.text(3, 0, "pod", Ink::Dim);
    pad.text(STATE, 0, "state", Ink::Dim);
    let heads = ["token/s", "live", "gap p99", "backlog", "tok lost", "missed"];
    pad.numbers((NUMBERS, 0), (WIDE, WIDE), heads, Ink::Dim);
    let max_rows = pad.height().saturating_sub(8).max(2);
    let selected = ui.place(Tab::Pods);
    let y = pad.list(1, &model.pods, (selected, max_rows), |pad, y, place, pod| {
        line(pad, y, pod, place == model.pod);
        y + 1
    });
    let all = Brief::all(&model.pods);
    let missed = model.pods.iter().map(|p| p.missed).sum();
    pad.text(3, y, &format!("all {}", model.pods.len()), Ink::Strong);
    numbers(pad, y, &all, missed);
    if let Some(pod) = model.pods.get(selected) {
        detail(pad, y + 2, pod);
    }
}

fn line(pad: &mut Pad<'_>, y: u16, pod: &PodLine, shown: bool) {
    let health = pod.brief.verdict.health;
    pad.text(1, y, pad.theme.sign(health), Ink::Health(health));
    let name: String = pod.name.chars().take(NAME).collect();
    pad.text(3, y, &name, if shown { Ink::Strong } else { Ink::Plain });
    let state = format!("{} {}", pod.link.word(), duration(pod.since_ns));
    let ink = match pod.link {
        Link::Live | Link::Ended => Ink::Dim,
        Link::Away | Link::Silent | Link::Lost => Ink::Health(Health::Warning),
    };
    pad.text(STATE, y, &state, ink);
    numbers(pad, y, &pod.brief, pod.missed);
}

fn numbers(pad: &mut Pad<'_>, y: u16, brief: &Brief, missed: u64) {
    let cells = [
        rate(brief.tokens_per_s),
        count(brief.live),
        known(brief.gap_p99, duration),
        known(brief.backlog, count),
        known(brief.tokens_lost, count),
    ];
    let end = NUMBERS + cells.len() as u16 * WIDE;
    pad.numbers((NUMBERS, y), (WIDE, WIDE), cells, Ink::Plain);
    let ink = if missed > 0 { Ink::Health(Health::Warning) } else { Ink::Dim };
    pad.number(end, y, WIDE, &count(missed), ink);
}

fn detail(pad: &mut Pad<'_>, y: u16, pod: &PodLine) {
    let verdict = &pod.brief.verdict;
    let x = pad.text(1, y, verdict.health.word(), Ink::Health(verdict.health));
    pad.text(x + 2, y, &verdict.text, Ink::Strong);
    if !pod.why.is_empty() {
        pad.text(1, y + 1, &pod.why, Ink::Health(Health::Warning));
    }
    if pod.missed > 0 {
        let text =
            format!("{} records missed: lost between the run and this screen, not in the engine", count(pod.missed));
        pad.text(1, y + 2, &text, Ink::Dim);
    }
}
