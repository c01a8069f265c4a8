//! Pods tab: one line per watched run, and the sum of all.

use session::units::{format_count, format_duration, format_rate, known_or_dash};

use super::pad::{CellRow, List, Pad};
use crate::state::Model;
use crate::state::action::Tab;
use crate::state::flags::Health;
use crate::state::pods::{KeyFigures, PodLine, PodState};
use crate::state::ui::Ui;
use crate::theme::Ink;

/// Columns of numbers, and how a narrow screen without the last two is divided.
const HEADINGS: [&str; 6] = ["token/s", "gap p99", "backlog", "tok lost", "live", "missed"];

/// Division of the width between names, states and numbers.
struct PodTableLayout {
    numbers_x: u16,
    number_count: usize,
    pitch: u16,
}

impl PodTableLayout {
    fn for_width(width: u16) -> Self {
        const MAX_NUMBERS_X: u16 = 42;
        let number_count = if width < 76 { HEADINGS.len() - 2 } else { HEADINGS.len() };
        let pitch = if width < 96 { 8 } else { 9 };
        let numbers_x = width.saturating_sub(number_count as u16 * pitch).min(MAX_NUMBERS_X);
        Self { numbers_x, number_count, pitch }
    }

    fn state_x(&self) -> u16 {
        self.numbers_x.saturating_sub(14)
    }

    fn number_cells(&self, y: u16) -> CellRow {
        CellRow { x: self.numbers_x, y, pitch: self.pitch, width: self.pitch }
    }
}

pub(super) fn draw_tab(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    let layout = PodTableLayout::for_width(pad.width());
    pad.draw_text(3, 0, "run", Ink::Dim);
    pad.draw_text(layout.state_x(), 0, "state", Ink::Dim);
    pad.draw_cells(layout.number_cells(0), HEADINGS.iter().take(layout.number_count), Ink::Dim);
    let max_rows = pad.height().saturating_sub(8).max(2);
    let selected = ui.selected_index(Tab::Pods);
    let list = List { items: &model.pods, selected, max_items: max_rows };
    let y = pad.draw_list(1, &list, |pad, y, index, pod| {
        draw_pod(pad, y, &layout, pod, index == model.shown_pod);
        y + 1
    });
    let all = KeyFigures::combine(&model.pods);
    let records_missed = model.pods.iter().map(|pod| pod.records_missed).sum();
    pad.draw_text(3, y, &format!("all {}", model.pods.len()), Ink::Strong);
    draw_figures(pad, y, &layout, &all, records_missed);
    if let Some(pod) = model.pods.get(selected) {
        draw_pod_detail(pad, y + 2, pod);
    }
}

fn draw_pod(pad: &mut Pad<'_>, y: u16, layout: &PodTableLayout, pod: &PodLine, is_shown: bool) {
    let health = pod.figures.verdict.health;
    pad.draw_text(1, y, pad.theme.health_symbol(health), Ink::Health(health));
    let name = pad.shorten_id(&pod.name, layout.state_x().saturating_sub(4));
    pad.draw_text(3, y, &name, if is_shown { Ink::Strong } else { Ink::Plain });
    let state = format!("{} {}", pod.state.label(), format_duration(pod.state_age_ns));
    let ink = match pod.state {
        PodState::Live | PodState::Ended => Ink::Dim,
        PodState::Away | PodState::Silent | PodState::Lost | PodState::Waiting => Ink::Health(Health::Warning),
    };
    pad.draw_text(layout.state_x(), y, &state, ink);
    draw_figures(pad, y, layout, &pod.figures, pod.records_missed);
}

fn draw_figures(pad: &mut Pad<'_>, y: u16, layout: &PodTableLayout, figures: &KeyFigures, records_missed: u64) {
    let cells = [
        format_rate(figures.tokens_per_s),
        known_or_dash(figures.gap_p99_ns, format_duration),
        known_or_dash(figures.backlog_frames, format_count),
        known_or_dash(figures.tokens_lost, format_count),
        format_count(figures.requests_live),
    ];
    let row = layout.number_cells(y);
    let missed_x = row.x + cells.len() as u16 * row.pitch;
    let has_missed = layout.number_count > cells.len();
    pad.draw_cells(row, cells.into_iter().take(layout.number_count), Ink::Plain);
    if has_missed {
        let ink = if records_missed > 0 { Ink::Health(Health::Warning) } else { Ink::Dim };
        pad.draw_right_aligned(missed_x, y, row.width, &format_count(records_missed), ink);
    }
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
            "{} records missed: lost on the way to this screen, not in the engine",
            format_count(pod.records_missed)
        );
        pad.draw_text(1, y + 2, &text, Ink::Dim);
    }
}
