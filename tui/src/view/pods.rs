//! Pods tab: one line per watched run, and the sum of all.

use session::units::{format_count, format_duration, format_rate, known_or_dash};

use super::pad::{CellRow, List, Pad};
use crate::state::Model;
use crate::state::action::Tab;
use crate::state::flags::Health;
use crate::state::pods::{KeyFigures, PodLine, PodState};
use crate::state::ui::Ui;
use crate::theme::Ink;

/// Width of the name, and first cells of the state and number columns.
const NAME_WIDTH: usize = 24;
const STATE_X: u16 = 28;
const NUMBERS_X: u16 = 42;
const NUMBER_WIDTH: u16 = 9;

pub(super) fn draw_tab(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    pad.draw_text(3, 0, "pod", Ink::Dim);
    pad.draw_text(STATE_X, 0, "state", Ink::Dim);
    let headings = ["token/s", "live", "gap p99", "backlog", "tok lost", "missed"];
    pad.draw_cells(number_cells(0), headings, Ink::Dim);
    let max_rows = pad.height().saturating_sub(8).max(2);
    let selected = ui.selected_index(Tab::Pods);
    let list = List { items: &model.pods, selected, max_items: max_rows };
    let y = pad.draw_list(1, &list, |pad, y, index, pod| {
        draw_pod(pad, y, pod, index == model.shown_pod);
        y + 1
    });
    let all = KeyFigures::combine(&model.pods);
    let records_missed = model.pods.iter().map(|pod| pod.records_missed).sum();
    pad.draw_text(3, y, &format!("all {}", model.pods.len()), Ink::Strong);
    draw_figures(pad, y, &all, records_missed);
    if let Some(pod) = model.pods.get(selected) {
        draw_pod_detail(pad, y + 2, pod);
    }
}

fn number_cells(y: u16) -> CellRow {
    CellRow { x: NUMBERS_X, y, pitch: NUMBER_WIDTH, width: NUMBER_WIDTH }
}

fn draw_pod(pad: &mut Pad<'_>, y: u16, pod: &PodLine, is_shown: bool) {
    let health = pod.figures.verdict.health;
    pad.draw_text(1, y, pad.theme.health_symbol(health), Ink::Health(health));
    let name: String = pod.name.chars().take(NAME_WIDTH).collect();
    pad.draw_text(3, y, &name, if is_shown { Ink::Strong } else { Ink::Plain });
    let state = format!("{} {}", pod.state.label(), format_duration(pod.state_age_ns));
    let ink = match pod.state {
        PodState::Live | PodState::Ended => Ink::Dim,
        PodState::Away | PodState::Silent | PodState::Lost => Ink::Health(Health::Warning),
    };
    pad.draw_text(STATE_X, y, &state, ink);
    draw_figures(pad, y, &pod.figures, pod.records_missed);
}

fn draw_figures(pad: &mut Pad<'_>, y: u16, figures: &KeyFigures, records_missed: u64) {
    let cells = [
        format_rate(figures.tokens_per_s),
        format_count(figures.requests_live),
        known_or_dash(figures.gap_p99_ns, format_duration),
        known_or_dash(figures.backlog_frames, format_count),
        known_or_dash(figures.tokens_lost, format_count),
    ];
    let end = NUMBERS_X + cells.len() as u16 * NUMBER_WIDTH;
    pad.draw_cells(number_cells(y), cells, Ink::Plain);
    let ink = if records_missed > 0 { Ink::Health(Health::Warning) } else { Ink::Dim };
    pad.draw_right_aligned(end, y, NUMBER_WIDTH, &format_count(records_missed), ink);
}

fn draw_pod_detail(pad: &mut Pad<'_>, y: u16, pod: &PodLine) {
    let verdict = &pod.figures.verdict;
    let x = pad.draw_text(1, y, verdict.health.label(), Ink::Health(verdict.health));
    pad.draw_text(x + 2, y, &verdict.text, Ink::Strong);
    if !pod.reason.is_empty() {
        pad.draw_text(1, y + 1, &pod.reason, Ink::Health(Health::Warning));
    }
    if pod.records_missed > 0 {
        let text = format!(
            "{} records missed: lost between the run and this screen, not in the engine",
            format_count(pod.records_missed)
        );
        pad.draw_text(1, y + 2, &text, Ink::Dim);
    }
}
