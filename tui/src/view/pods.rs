//! Pods tab: one line per watched run, and the sum of all.

use session::units::{count, duration, known, rate};

use super::Hits;
use super::pad::Pad;
use crate::state::Model;
use crate::state::health::Health;
use crate::state::pods::{Brief, Link, PodLine};
use crate::state::tab::Tab;
use crate::state::ui::Ui;
use crate::theme::{PLAIN, STRONG};

/// Width of the name, and first cells of the state and number columns.
const NAME: usize = 24;
const STATE: u16 = 28;
const NUMBERS: u16 = 42;
const WIDE: u16 = 9;

pub(super) fn draw(pad: &mut Pad<'_>, model: &Model, ui: &Ui, hits: &mut Hits) {
    let theme = pad.theme();
    pad.text(3, 0, "pod", theme.dim());
    pad.text(STATE, 0, "state", theme.dim());
    let heads = ["token/s", "live", "gap p99", "backlog", "tok lost", "missed"];
    pad.numbers((NUMBERS, 0), (WIDE, WIDE), heads, theme.dim());
    let max_rows = pad.height().saturating_sub(8).max(2);
    let selected = ui.place(Tab::Pods);
    let y = hits.list((pad, 1), &model.pods, (selected, max_rows), |pad, y, place, pod| {
        line(pad, y, pod, place == model.pod);
        y + 1
    });
    let all = Brief::all(&model.pods);
    let missed = model.pods.iter().map(|p| p.missed).sum();
    pad.text(3, y, &format!("all {}", model.pods.len()), STRONG);
    numbers(pad, y, &all, missed);
    if let Some(pod) = model.pods.get(selected) {
        detail(pad, y + 2, pod);
    }
}

fn line(pad: &mut Pad<'_>, y: u16, pod: &PodLine, shown: bool) {
    let theme = pad.theme();
    let health = pod.brief.verdict.health;
    pad.text(1, y, theme.sign(health), theme.health(health));
    let name: String = pod.name.chars().take(NAME).collect();
    pad.text(3, y, &name, if shown { STRONG } else { PLAIN });
    let state = format!("{} {}", pod.link.word(), duration(pod.since_ns));
    let style = match pod.link {
        Link::Live | Link::Ended => theme.dim(),
        Link::Away | Link::Silent | Link::Lost => theme.health(Health::Warning),
    };
    pad.text(STATE, y, &state, style);
    numbers(pad, y, &pod.brief, pod.missed);
}

fn numbers(pad: &mut Pad<'_>, y: u16, brief: &Brief, missed: u64) {
    let theme = pad.theme();
    let cells = [
        rate(brief.tokens_per_s),
        count(brief.live),
        known(brief.gap_p99, duration),
        known(brief.backlog, count),
        known(brief.tokens_lost, count),
    ];
    let end = NUMBERS + cells.len() as u16 * WIDE;
    pad.numbers((NUMBERS, y), (WIDE, WIDE), cells, PLAIN);
    let style = if missed > 0 { theme.health(Health::Warning) } else { theme.dim() };
    pad.number(end, y, WIDE, &count(missed), style);
}

/// Draws details of the selected run.
fn detail(pad: &mut Pad<'_>, y: u16, pod: &PodLine) {
    let theme = pad.theme();
    let verdict = &pod.brief.verdict;
    let x = pad.text(1, y, verdict.health.word(), theme.health(verdict.health));
    pad.text(x + 2, y, &verdict.text, STRONG);
    if !pod.why.is_empty() {
        pad.text(1, y + 1, &pod.why, theme.health(Health::Warning));
    }
    if pod.missed > 0 {
        let text =
            format!("{} records missed: lost between the run and this screen, not in the engine", count(pod.missed));
        pad.text(1, y + 2, &text, theme.dim());
    }
}
