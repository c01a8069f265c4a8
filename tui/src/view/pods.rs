//! Runs tab: one line for each engine or watched run, the sum of all, and the pairs among them.

use std::cmp::Reverse;

use session::units::{format_count, format_duration, format_rate_per_second, known_or_dash};
use trace::words::{percent, plural};

use super::pad::{List, NextRow, Pad};
use crate::state::Model;
use crate::state::action::Tab;
use crate::state::flags::{Health, RunVerdict};
use crate::state::pods::{KeyFigures, PairLine, PairProblem, PodLine, PodState};
use crate::state::ui::Ui;
use crate::state::waiting::WaitingRequests;
use crate::theme::Ink;

/// Maximum number of pairs below the list.
const MAX_PAIRS: usize = 3;
/// Maximum number of rows for a pair, and for its finding.
const PAIR_ROWS: u16 = 2;
/// Maximum number of rows for the verdict on the selected run.
const MAX_VERDICT_ROWS: u16 = 2;
/// Runs that the list shows at least.
const MIN_LISTED_RUNS: u16 = 2;
/// Rows for the headings, the totals, the remark and the details of the selected run.
const OTHER_ROWS: u16 = 9;

/// Width of the narrowest screen with a column for the role.
const ROLE_SCREEN: u16 = 96;
/// The same for the finding. On narrower screens, an unhealthy run has a second row for it.
const FINDING_SCREEN: u16 = 140;

/// Column of the table, after the name.
struct RunColumn {
    heading: &'static str,
    width: u16,
    /// Width of the narrowest screen that shows it.
    min_screen: u16,
    align: Align,
    text: fn(&PodLine) -> String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

impl RunColumn {
    /// A column of texts, which begin at its left edge.
    const fn left(heading: &'static str, width: u16, min_screen: u16, text: fn(&PodLine) -> String) -> Self {
        Self { heading, width, min_screen, align: Align::Left, text }
    }

    /// A column of numbers, which end at its right edge.
    const fn right(heading: &'static str, width: u16, min_screen: u16, text: fn(&PodLine) -> String) -> Self {
        Self { heading, width, min_screen, align: Align::Right, text }
    }
}

/// Columns in their order.
const COLUMNS: [RunColumn; 15] = [
    RunColumn::left("state", 15, 0, |run| format!("{} {}", run.state.label(), format_duration(run.state_age_ns))),
    RunColumn::left("role", 8, ROLE_SCREEN, |run| run.role.to_owned()),
    RunColumn::left("port", 6, 132, |run| run.port.map_or_else(String::new, |port| port.to_string())),
    RunColumn::left("model", 15, 140, |run| run.model.clone()),
    RunColumn::right("token/s", 8, 96, |run| {
        if_observed(run, known_or_dash(run.figures.tokens_per_s, format_rate_per_second))
    }),
    RunColumn::right("requests", 9, 0, |run| if_observed(run, format_count(run.figures.requests_seen))),
    RunColumn::right("live", 6, 170, |run| if_observed(run, format_count(run.figures.requests_live))),
    RunColumn::right("TTFT p50", 9, 80, |run| known_or_dash(run.figures.ttft_p50_ns, format_duration)),
    RunColumn::right("TTFT p99", 9, 0, |run| known_or_dash(run.figures.ttft_p99_ns, format_duration)),
    RunColumn::left(" longest part", 14, 80, |run| format!(" {}", longest_part(&run.figures))),
    RunColumn::right("gap p99", 8, 170, |run| known_or_dash(run.figures.gap_p99_ns, format_duration)),
    RunColumn::right("backlog", 8, 170, |run| known_or_dash(run.figures.backlog_frames, format_count)),
    RunColumn::right("lost", 6, 0, |run| known_or_dash(run.figures.tokens_lost, format_count)),
    RunColumn::right("missed", 8, 170, |run| format_count(run.records_missed)),
    RunColumn::left("  finding", 26, FINDING_SCREEN, |run| {
        format!("  {}", run.figures.finding.as_deref().unwrap_or_default())
    }),
];

/// Hides the zeros of a run that was not observed yet.
fn if_observed(run: &PodLine, text: String) -> String {
    let is_unobserved = matches!(run.state, PodState::Away | PodState::Waiting) && run.figures.requests_seen == 0;
    if is_unobserved { "-".to_owned() } else { text }
}

/// Part of the time to first token that takes longest, with its share.
fn longest_part(figures: &KeyFigures) -> String {
    figures.worst_leg.as_ref().map_or_else(String::new, |leg| format!("{} {}", percent(leg.share), leg.name))
}

/// The longest part of the time to first token, and the requests that have no first token yet. Empty if neither is known.
fn describe_longest_part_and_waits(figures: &KeyFigures) -> String {
    let waiting = figures.waiting.map(|WaitingRequests { requests, longest_wait_ns }| {
        format!(
            "{} without a first token, the longest for {}",
            plural(requests, "request"),
            format_duration(longest_wait_ns)
        )
    });
    let Some(worst) = &figures.worst_leg else { return waiting.unwrap_or_default() };
    let part = format!("longest part of TTFT: {}", longest_part(figures));
    match waiting {
        // These requests are that part.
        Some(waiting) if worst.is_wait => format!("{part} ({waiting})"),
        Some(waiting) => format!("{part}, not counting {waiting}"),
        None => part,
    }
}

/// Division of the width between the name and the other columns.
struct RunTableLayout {
    columns: Vec<&'static RunColumn>,
    columns_x: u16,
}

impl RunTableLayout {
    const NAME_X: u16 = 3;
    const MIN_NAME: u16 = 15;
    const MAX_NAME: u16 = 30;

    /// Columns for a screen of this width.
    fn for_width(width: u16) -> Self {
        let columns: Vec<&RunColumn> = COLUMNS.iter().filter(|column| width >= column.min_screen).collect();
        // The last column is clipped at the edge.
        let columns_width: u16 = columns.iter().map(|column| column.width).sum();
        let columns_x =
            width.saturating_sub(columns_width).clamp(Self::NAME_X + Self::MIN_NAME, Self::NAME_X + Self::MAX_NAME);
        Self { columns, columns_x }
    }

    /// Draws the headings of the columns in the first row.
    fn draw_headings(&self, pad: &mut Pad<'_>) {
        pad.draw_text(Self::NAME_X, 0, "run", Ink::Dim);
        let mut x = self.columns_x;
        for column in &self.columns {
            draw_cell(pad, x, 0, column, column.heading, Ink::Dim);
            x += column.width;
        }
    }

    /// Draws the health, the name and the cells of a run.
    fn draw_run(&self, pad: &mut Pad<'_>, y: u16, run: &PodLine, name_ink: Ink) {
        let health = run.figures.verdict.health;
        pad.draw_text(1, y, pad.theme.health_symbol(health), Ink::Health(health));
        let name = pad.shorten_id(&run.name, self.columns_x.saturating_sub(Self::NAME_X + 1));
        pad.draw_text(Self::NAME_X, y, &name, name_ink);
        let mut x = self.columns_x;
        for column in &self.columns {
            draw_cell(pad, x, y, column, &(column.text)(run), ink_of_cell(column.heading, run));
            x += column.width;
        }
    }

    /// Draws the totals, in the columns of numbers that can be summed, or of which the largest stands for all.
    fn draw_totals(&self, pad: &mut Pad<'_>, y: u16, all: &PodLine) {
        let mut x = self.columns_x;
        for column in &self.columns {
            let is_number = column.align == Align::Right;
            // Several runs have no common median.
            if is_number && column.heading != "TTFT p50" {
                draw_cell(pad, x, y, column, &(column.text)(all), Ink::Plain);
            }
            x += column.width;
        }
    }
}

/// Draws the text of a cell, aligned as its column is.
fn draw_cell(pad: &mut Pad<'_>, x: u16, y: u16, column: &RunColumn, text: &str, ink: Ink) {
    match column.align {
        Align::Left => {
            pad.draw_clipped(x, y, column.width.saturating_sub(1), text, ink);
        }
        Align::Right => pad.draw_right_aligned(x, y, column.width, text, ink),
    }
}

/// Ink of a cell in the column with this heading.
fn ink_of_cell(heading: &str, run: &PodLine) -> Ink {
    // Warnings first, for the columns that show a problem of the run or of its connection.
    let needs_attention = match heading {
        "state" => !matches!(run.state, PodState::Live | PodState::Ended),
        "lost" => run.figures.tokens_lost.is_some_and(|lost| lost > 0),
        "missed" => run.records_missed > 0,
        _ => false,
    };
    if needs_attention {
        return Ink::Health(Health::Warning);
    }
    match heading {
        "state" | "missed" => Ink::Dim,
        // This heading has two spaces, which set the column apart from the numbers before it.
        "  finding" => Ink::Health(run.figures.verdict.health),
        _ => Ink::Plain,
    }
}

/// Draws the list of runs, their totals, the pairs, and the details of the selected run.
pub(super) fn draw_pods_tab(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    let layout = RunTableLayout::for_width(pad.width());
    layout.draw_headings(pad);
    let max_rows = pad.height().saturating_sub(OTHER_ROWS + max_rows_of_pairs(&model.pairs)).max(MIN_LISTED_RUNS);
    let selected = ui.selected_index(Tab::Pods);
    let list = List { items: &model.pods, selected, max_items: max_rows };
    let explained = indices_of_runs_to_explain(&model.pods, pad.width(), usize::from(max_rows));
    let y = pad.draw_list(1, &list, |pad, y, index, run| {
        // The run whose details the other tabs have.
        let name_ink = if index == model.shown_pod { Ink::Strong } else { Ink::Plain };
        layout.draw_run(pad, y, run, name_ink);
        if explained.contains(&index) {
            // The second row of the run.
            let text = describe_worst_finding_of_run(run, pad.width());
            pad.draw_text(RunTableLayout::NAME_X + 2, y + 1, &text, Ink::Health(run.figures.verdict.health));
            return y + 2;
        }
        y + 1
    });
    pad.draw_text(RunTableLayout::NAME_X, y, &format!("all {}", model.pods.len()), Ink::Strong);
    layout.draw_totals(pad, y, &line_of_totals(&model.pods));
    let mut y = draw_pairs(pad, y + 1, &model.pairs);
    if let Some(note) = &model.run_list_note {
        pad.draw_text(1, y, note, Ink::Health(Health::Warning));
        y += 1;
    }
    if let Some(run) = model.pods.get(selected) {
        draw_run_detail(pad, y + 1, run);
    }
}

/// A line with the sums of all runs.
fn line_of_totals(runs: &[PodLine]) -> PodLine {
    let records_missed = runs.iter().map(|run| run.records_missed).sum();
    // With this state, `if_observed` shows the numbers even if they are 0.
    let state = PodState::Live;
    PodLine { figures: KeyFigures::combine(runs), records_missed, state, ..PodLine::default() }
}

/// Indices of the unhealthy runs that get a second row for their problem: the worst ones, as many as there are free rows. Empty on a screen
/// with a column for the finding.
fn indices_of_runs_to_explain(runs: &[PodLine], screen_width: u16, max_rows: usize) -> Vec<usize> {
    if screen_width >= FINDING_SCREEN {
        return Vec::new();
    }
    let mut explained: Vec<usize> = (0..runs.len()).filter(|index| is_unhealthy(&runs[*index])).collect();
    explained.sort_by_key(|index| Reverse((runs[*index].figures.verdict.health, runs[*index].figures.worst_rank)));
    // Each run has one row already.
    explained.truncate(max_rows.saturating_sub(runs.len()));
    explained
}

/// Whether the verdict on the run is at least a warning.
fn is_unhealthy(run: &PodLine) -> bool {
    run.figures.verdict.health >= Health::Warning
}

/// Severity, kind and text of a run's worst finding, with its role where no column has that.
fn describe_worst_finding_of_run(run: &PodLine, screen_width: u16) -> String {
    let verdict = &run.figures.verdict;
    let role = if screen_width < ROLE_SCREEN { run.role } else { "" };
    let words = [role, verdict.health.label(), run.figures.finding.as_deref().unwrap_or_default()];
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    format!("{}: {}", words.join(" "), verdict.text)
}

/// Maximum number of rows that these pairs take, with their findings and the number of the pairs that are not shown.
fn max_rows_of_pairs(pairs: &[PairLine]) -> u16 {
    let shown = &pairs[..pairs.len().min(MAX_PAIRS)];
    let findings = shown.iter().filter(|pair| pair.finding.is_some()).count();
    let row_of_number = u16::from(pairs.len() > MAX_PAIRS);
    (shown.len() + findings) as u16 * PAIR_ROWS + row_of_number
}

/// Draws the pairs among the runs, each a prefill and a decode server of the same requests: the number of these requests, what takes most
/// of their time to first token, and the worst finding. Returns the next free row.
fn draw_pairs(pad: &mut Pad<'_>, mut y: u16, pairs: &[PairLine]) -> NextRow {
    let arrow = pad.theme.rich_or_ascii("→", "->");
    for pair in pairs.iter().take(MAX_PAIRS) {
        let x = pad.draw_text(1, y, "pair", Ink::Head);
        y = pad.draw_paragraph(x + 1, y, PAIR_ROWS, &pair.describe(arrow), Ink::Plain);
        if let Some(PairProblem { kind, verdict: RunVerdict { health, text, .. }, .. }) = &pair.finding {
            let text = format!("{} {} {kind}: {text}", pad.theme.health_symbol(*health), health.label());
            y = pad.draw_paragraph(x + 1, y, PAIR_ROWS, &text, Ink::Health(*health));
        }
    }
    if pairs.len() > MAX_PAIRS {
        pad.draw_text(1, y, &format!("{} more pairs: in the report at the end (q)", pairs.len() - MAX_PAIRS), Ink::Dim);
        y += 1;
    }
    y
}

/// Draws the whole verdict of the run, and facts for which the table may be too narrow. A missed record is one that did not reach this
/// screen.
fn draw_run_detail(pad: &mut Pad<'_>, y: u16, run: &PodLine) {
    let verdict = &run.figures.verdict;
    let x = pad.draw_text(1, y, verdict.health.label(), Ink::Health(verdict.health));
    // Each of the three lines below the verdict has a fixed row.
    let facts_y = pad.draw_paragraph(x + 2, y, MAX_VERDICT_ROWS, &verdict.text, Ink::Strong);
    pad.draw_text(1, facts_y, &describe_run(run), Ink::Dim);
    if !run.reason.is_empty() {
        pad.draw_text(1, facts_y + 1, &run.reason, Ink::Health(Health::Warning));
    }
    if run.records_missed > 0 {
        let text = format!(
            "{} records missed: lost on the way to this screen, not in the engine",
            format_count(run.records_missed)
        );
        pad.draw_text(1, facts_y + 2, &text, Ink::Dim);
    }
}

/// Name, role, port and model of the run, and the longest part of its time to first token, as far as these are known.
fn describe_run(run: &PodLine) -> String {
    let port = run.port.map_or_else(String::new, |port| format!("port {port}"));
    let longest = describe_longest_part_and_waits(&run.figures);
    let facts = [run.name.as_str(), run.role, port.as_str(), run.model.as_str(), longest.as_str()];
    let known: Vec<&str> = facts.into_iter().filter(|fact| !fact.is_empty()).collect();
    known.join(", ")
}

#[cfg(test)]
mod tests;
