//! The path from left to right, each hop with its rate, backlog and queue wait; a list if the screen is too narrow. The breakdown of time
//! on it in one line.

use outputs::report::Chunks;
use outputs::report::bar::{self, Segment};
use ratatui::layout::Rect;
use session::units::{format_count, format_duration, format_rate_per_second};
use trace::detect::{Finding, Severity};
use trace::path::Ends;
use trace::words::percent;

use super::pad::{NextColumn, NextRow, Pad, shorten_to_number, text_width};
use crate::state::Model;
use crate::state::action::{Action, Tab};
use crate::state::flags::Health;
use crate::state::model::HopSummary;
use crate::theme::{Ink, Theme};

/// Minimum and maximum width of an arrow with its numbers.
const MIN_ARROW_WIDTH: u16 = 15;
const MAX_ARROW_WIDTH: u16 = 2 * MIN_ARROW_WIDTH;
/// Rows of the drawing. The list needs one per hop and one for the client.
const DRAWING_ROWS: u16 = 4;
/// Cells below an arrow that its texts cannot use: an empty one, the sign and a space before a text.
const CELLS_BESIDE_TEXT: u16 = 3;
/// Cells of an arrow in the list, a space on both sides included, and empty cells behind each text.
const LIST_ARROW_WIDTH: u16 = 4;
const TEXT_DISTANCE: u16 = 2;

/// Cells of the bar of a breakdown on a screen of [`WIDE_COLUMNS`]; narrow ones need the room for the legend.
const BREAKDOWN_WIDTH: usize = 20;
const WIDE_COLUMNS: u16 = 100;

/// An arrow: a hop, or the deliveries to the client.
struct Arrow {
    /// Index of the hop; `None` for the deliveries to the client.
    hop_index: Option<usize>,
    ends: Ends<Box<str>>,
    /// Problem inside the process at its start.
    start_problem: Option<PlaceProblem>,
    health: Health,
    /// Whether its problem is over, beside numbers of the last seconds.
    is_over: bool,
    lines: [String; 3],
    /// Age of the oldest frame of an unhealthy hop, for the first line. A list has no room for it.
    oldest_wait_ns: Option<u64>,
}

/// How much of the text of an arrow's line is shown: all of it, or without words that its number can do without.
#[derive(Clone, Copy)]
enum LineForm {
    Whole,
    /// Without the remark what the number is taken over.
    NoRemark,
    /// With one word before the number: `p99 2.71 s`.
    OneLabel,
}

impl LineForm {
    /// The part of a line's text that this form shows. The text has labels, a number and a remark: `wait p99 2.71 s (run)`.
    fn shorten_line(self, text: &str) -> &str {
        if matches!(self, Self::Whole) {
            return text;
        }
        let without_remark = text.split_once(" (").map_or(text, |(labels_and_number, _)| labels_and_number);
        if matches!(self, Self::NoRemark) {
            return without_remark;
        }
        let Some(number_start) = start_index_of_number(without_remark) else { return without_remark };
        let (labels, number) = without_remark.split_at(number_start);
        let last_label_start = labels.trim_end().rfind(' ').map_or(0, |space| space + 1);
        let last_label = labels[last_label_start..].trim_end();
        // A word before a semicolon is a remark on the hop and no label of the number.
        if last_label.ends_with(';') { number } else { &without_remark[last_label_start..] }
    }

    /// The longest form in which this line of each arrow fits, so that all arrows have the same form. The shortest one if none fits.
    fn longest_fitting_for_line(arrows: &[Arrow], line: usize, width: u16) -> Self {
        let forms = [Self::Whole, Self::NoRemark, Self::OneLabel];
        let fitting = forms.into_iter().find(|form| form.line_width(arrows, line) <= width);
        fitting.unwrap_or(Self::OneLabel)
    }

    /// The longest form in which all lines of all arrows fit beside each other. The shortest one if none fits.
    fn longest_fitting_for_list(arrows: &[Arrow], width: u16) -> Self {
        let forms = [Self::Whole, Self::NoRemark, Self::OneLabel];
        let fitting = forms.into_iter().find(|form| list_width(arrows, *form) <= width);
        fitting.unwrap_or(Self::OneLabel)
    }

    /// Width of the longest text of this line.
    fn line_width(self, arrows: &[Arrow], line: usize) -> u16 {
        arrows.iter().map(|arrow| text_width(self.shorten_line(&arrow.lines[line]))).max().unwrap_or(0)
    }
}

/// Index of the first number in the text; `None` without a digit. The digits in `p99` are part of a word, so the word behind it is taken as
/// the number, or the whole text if no word follows.
fn start_index_of_number(text: &str) -> Option<usize> {
    let first_digit = text.find(|c: char| c.is_ascii_digit())?;
    let begins_word = first_digit == 0 || text[..first_digit].ends_with(' ');
    if begins_word {
        return Some(first_digit);
    }
    let next_word = text[first_digit..].find(' ').map(|space| first_digit + space + 1);
    Some(next_word.unwrap_or(0))
}

impl Arrow {
    /// Action of a click: opens the hop, or the findings for deliveries.
    fn click_action(&self) -> Action {
        self.hop_index.map_or(Action::OpenTab(Tab::Findings), |index| Action::OpenItem(Tab::Hops, index))
    }

    /// Name of the process at its start, behind the sign of its problem, if it has one.
    fn start_text(&self, theme: Theme) -> String {
        match &self.start_problem {
            Some(problem) => format!("{} {}", problem_sign(problem.health, problem.is_over, theme), self.ends.from),
            None => self.ends.from.to_string(),
        }
    }

    /// Sign of its health, in brackets if the problem is over: `(✗)`.
    fn sign(&self, theme: Theme) -> String {
        problem_sign(self.health, self.is_over, theme)
    }

    fn start_ink(&self) -> Ink {
        self.start_problem.as_ref().map_or(Ink::Strong, |problem| Ink::Health(problem.health))
    }
}

/// Draws the path from row `y` on. It is a list if the screen is low, or too narrow for arrows in one row. Returns the next free row.
pub(super) fn draw_path(pad: &mut Pad<'_>, y: u16, model: &Model, is_low: bool) -> NextRow {
    let arrows = arrows_of_path(model);
    if arrows.is_empty() {
        pad.draw_text(1, y, "no hop observed yet", Ink::Dim);
        return y + 1;
    }
    let names_width: u16 =
        arrows.iter().map(|arrow| text_width(&arrow.start_text(pad.theme))).sum::<u16>() + text_width("client");
    // One column stays empty at each edge.
    let arrow_width = pad.width().saturating_sub(2 + names_width) / arrows.len() as u16;
    // The list has the same numbers, one hop a row.
    if is_low || arrow_width < MIN_ARROW_WIDTH {
        draw_arrow_list(pad, y, &arrows)
    } else {
        draw_arrow_row(pad, y, &arrows, arrow_width.min(MAX_ARROW_WIDTH))
    }
}

/// The arrows of the hops in the order of the path, and behind them that of the deliveries to the client. Empty without hops.
fn arrows_of_path(model: &Model) -> Vec<Arrow> {
    let mut arrows = Vec::new();
    for index in indices_of_hop_chain(&model.hops) {
        arrows.push(hop_arrow(index, &model.hops[index], &model.format_rate_window()));
    }
    let Some(last) = arrows.last() else { return arrows };
    let to_client = arrow_to_client(model, &last.ends.to);
    arrows.push(to_client);
    for arrow in &mut arrows {
        arrow.start_problem = PlaceProblem::find(&model.findings, &arrow.ends.from);
    }
    arrows
}

/// Draws all arrows in one row, with their numbers below. Returns the next free row.
fn draw_arrow_row(pad: &mut Pad<'_>, y: u16, arrows: &[Arrow], arrow_width: u16) -> NextRow {
    let mut x = 1;
    let max_text_width = arrow_width - CELLS_BESIDE_TEXT;
    // A line has the same form in all arrows.
    let forms = [0, 1, 2].map(|line| LineForm::longest_fitting_for_line(arrows, line, max_text_width));
    for arrow in arrows {
        let start_x = x;
        x = pad.draw_text(x, y, &arrow.start_text(pad.theme), arrow.start_ink());
        draw_arrow(pad, x, y, arrow, arrow_width, forms);
        x += arrow_width;
        pad.add_click_area(Rect::new(start_x, y, x - start_x, DRAWING_ROWS), arrow.click_action());
    }
    pad.draw_text(x, y, "client", Ink::Strong);
    y + DRAWING_ROWS
}

/// Draws an arrow of `arrow_width` cells from column `x` on, and its three lines below it, each in its form. The first line begins with the
/// sign of the arrow's health. It ends with the age of the oldest frame, if there is room.
fn draw_arrow(pad: &mut Pad<'_>, x: u16, y: u16, arrow: &Arrow, arrow_width: u16, forms: [LineForm; 3]) {
    let health_ink = Ink::Health(arrow.health);
    // The arrow has a space at both ends, and a head of one cell.
    let shaft_width = usize::from(arrow_width) - 3;
    let shaft = pad.theme.rich_or_ascii("─", "-").repeat(shaft_width);
    let head = pad.theme.rich_or_ascii("▶", ">");
    pad.draw_text(x + 1, y, &format!("{shaft}{head}"), health_ink);
    let [first_form, other_forms @ ..] = forms;
    // A space comes before the text.
    let line_width = arrow_width - 1;
    let first_text = text_of_first_line(arrow, first_form, line_width, pad.theme);
    pad.draw_clipped(x + 1, y + 1, line_width, &first_text, health_ink);
    let other_lines = arrow.lines[1..].iter().zip(other_forms);
    for (line_y, (line, form)) in (y + 2..).zip(other_lines) {
        let text = shorten_to_number(form.shorten_line(line), arrow_width - CELLS_BESIDE_TEXT);
        // Indented by the cells of the sign.
        pad.draw_clipped(x + 1, line_y, line_width, &format!("  {text}"), Ink::Plain);
    }
}

/// Text of an arrow's first line in at most `width` cells: the sign of its health, the line in this form, and the age of the oldest frame
/// if there is room.
fn text_of_first_line(arrow: &Arrow, form: LineForm, width: u16, theme: Theme) -> String {
    let sign = arrow.sign(theme);
    let oldest = arrow.oldest_wait_ns.map_or_else(String::new, |wait_ns| format!(" {}", format_duration(wait_ns)));
    let with_oldest = format!("{}{oldest}", form.shorten_line(&arrow.lines[0]));
    // A space follows the sign.
    let free_width = width - 1 - text_width(&sign);
    format!("{sign} {}", shorten_to_number(&with_oldest, free_width))
}

/// Draws one arrow per row, with its three lines beside it, all in the same form. Returns the next free row.
fn draw_arrow_list(pad: &mut Pad<'_>, y: u16, arrows: &[Arrow]) -> NextRow {
    let name_widths = arrows
        .iter()
        .map(|arrow| text_width(&arrow.start_text(pad.theme)) + LIST_ARROW_WIDTH + text_width(&arrow.ends.to));
    // The names follow the signs and a space. A sign in brackets has three cells, one of them left of the other signs.
    let names_x = if arrows.iter().any(|arrow| arrow.is_over) { 4 } else { 3 };
    let texts_x = names_x + name_widths.max().unwrap_or(0) + TEXT_DISTANCE;
    let form = LineForm::longest_fitting_for_list(arrows, pad.width().saturating_sub(texts_x));
    for (y, arrow) in (y..).zip(arrows) {
        pad.add_click_area(Rect::new(0, y, pad.width(), 1), arrow.click_action());
        // A sign in brackets begins one cell further left, so that all signs are below each other.
        let sign_x = u16::from(!arrow.is_over);
        pad.draw_text(sign_x, y, &arrow.sign(pad.theme), Ink::Health(arrow.health));
        let arrow_symbol = pad.theme.rich_or_ascii("─▶", "->");
        let name = format!("{} {arrow_symbol} {}", arrow.start_text(pad.theme), arrow.ends.to);
        pad.draw_text(names_x, y, &name, Ink::Strong);
        draw_lines_of_arrow(pad, texts_x, y, arrow, arrows, form);
    }
    y + arrows.len() as u16
}

/// Draws the lines of an arrow beside each other in row `y`, from column `x` on. Each is aligned with those of the other `arrows`, and left
/// out rather than cut.
fn draw_lines_of_arrow(pad: &mut Pad<'_>, mut x: u16, y: u16, arrow: &Arrow, arrows: &[Arrow], form: LineForm) {
    for (column, line) in arrow.lines.iter().enumerate() {
        // The first line has the number that the health is about.
        let ink = if column == 0 { Ink::Health(arrow.health) } else { Ink::Plain };
        let free_width = pad.width().saturating_sub(x);
        let text = shorten_to_number(form.shorten_line(line), free_width);
        if text_width(&text) <= free_width {
            pad.draw_text(x, y, &text, ink);
        }
        x += form.line_width(arrows, column) + TEXT_DISTANCE;
    }
}

/// Width of the three columns of the list, with the spaces between them.
fn list_width(arrows: &[Arrow], form: LineForm) -> u16 {
    let column_widths: u16 = (0..3).map(|column| form.line_width(arrows, column)).sum();
    column_widths + 2 * TEXT_DISTANCE
}

/// Indices of hops that form a chain from the first one on: each begins where the one before ends. The Hops tab shows the others, too.
fn indices_of_hop_chain(hops: &[HopSummary]) -> Vec<usize> {
    let mut chain = Vec::new();
    let Some(first) = hops.first() else { return chain };
    let mut sender = &first.ends.from;
    loop {
        // No hop is used twice, so a cycle ends the chain.
        let next = (0..hops.len()).find(|index| !chain.contains(index) && hops[*index].ends.from == *sender);
        let Some(next) = next else { return chain };
        chain.push(next);
        sender = &hops[next].ends.to;
    }
}

/// The arrow of a hop, with its rate, backlog and queue wait. The caller adds the problem inside the process at its start.
fn hop_arrow(hop_index: usize, hop: &HopSummary, rate_window: &str) -> Arrow {
    let backlog = match hop.backlog_frames {
        Some(frames) => format!("backlog {}", format_count(frames)),
        None => "backlog unknown".into(),
    };
    let rate = match hop.rates {
        Some(rates) => format!("{} frames/s ({rate_window})", format_rate_per_second(rates.frames)),
        None => "rate unknown".to_owned(),
    };
    let mut lines = [rate, backlog, describe_wait_or_relay_delay(hop)];
    // Frames that wait on an unhealthy hop come first.
    let has_problem = hop.health >= Health::Warning && hop.backlog_frames.is_some_and(|frames| frames > 0);
    if has_problem {
        lines.swap(0, 1);
    }
    // A frame that was sent at this instant has not waited.
    let oldest_wait_ns = hop.oldest_wait_ns.filter(|wait_ns| has_problem && *wait_ns > 0);
    Arrow {
        hop_index: Some(hop_index),
        ends: hop.ends.clone(),
        start_problem: None,
        health: hop.health,
        is_over: hop.has_recovered,
        lines,
        oldest_wait_ns,
    }
}

/// 99th percentile of the waits on the hop or, if they are not known, of the delay in tokengap's relay. Otherwise why there is none.
fn describe_wait_or_relay_delay(hop: &HopSummary) -> String {
    // Only observed receives show a backlog and waits.
    let observes_receives = hop.backlog_max_frames.is_some();
    if let Some(queue_wait) = hop.queue_wait {
        format!("wait p99 {} (run)", format_duration(queue_wait.p99))
    } else if let Some(relay_delay) = hop.relay_delay {
        format!("relay {} p99 (run)", format_duration(relay_delay.p99))
    } else if observes_receives {
        "no wait yet".into()
    } else {
        "wait not observed".into()
    }
}

/// The worst findings about a process or a hop, of those that need attention.
struct PlaceProblem {
    health: Health,
    /// Every finding of this severity is over.
    is_over: bool,
}

impl PlaceProblem {
    /// The problem at a place, which is the name of a process or of a hop. `None` if no warning is about it. A problem that is over keeps
    /// its severity.
    fn find(findings: &[Finding], place_name: &str) -> Option<Self> {
        let of_place = findings.iter().filter(|finding| finding.verdict.hop == place_name);
        let worst_severity = of_place.clone().map(|finding| finding.verdict.severity).max()?;
        let mut worst_findings = of_place.filter(|finding| finding.verdict.severity == worst_severity);
        let is_over = worst_findings.all(|finding| finding.ended_at().is_some());
        (worst_severity > Severity::Info).then_some(Self { health: worst_severity.into(), is_over })
    }
}

/// Sign of a problem, in brackets if it is over: `(✗)`.
pub(super) fn problem_sign(health: Health, is_over: bool, theme: Theme) -> String {
    let symbol = theme.health_symbol(health);
    if is_over { format!("({symbol})") } else { symbol.to_owned() }
}

/// The arrow from the last role to the client, with the outcomes of its chunks.
fn arrow_to_client(model: &Model, last_role: &str) -> Arrow {
    let chunks = &model.chunks;
    let drops = match describe_outcome("dropped", chunks.dropped_confirmed, chunks.dropped_predicted) {
        Some(drops) => format!("{drops} (run)"),
        None => "drops unknown".into(),
    };
    let lost = match chunks.tokens_lost {
        Some(tokens) => format!("lost {} tok", format_count(tokens)),
        None => "delivery unknown".into(),
    };
    let merged = describe_outcome("merged", chunks.merged, model.merged_predicted);
    let merged = merged.unwrap_or_else(|| "merged unknown".into());
    let ends = Ends::new(last_role, "client").to_owned();
    let problem = PlaceProblem::find(&model.findings, &ends.to_string());
    let delivery_health = health_of_deliveries(chunks);
    // The problem is over with the finding, unless the counts show more harm than the finding does, such as proven losses.
    let is_over = problem.as_ref().is_some_and(|problem| problem.is_over && problem.health >= delivery_health);
    Arrow {
        hop_index: None,
        ends,
        start_problem: None,
        health: problem.map_or(delivery_health, |problem| problem.health.max(delivery_health)),
        is_over,
        lines: [drops, lost, merged],
        oldest_wait_ns: None,
    }
}

/// Health of the deliveries to the client: by the dropped chunks, or by the predicted ones if deliveries are not observed.
fn health_of_deliveries(chunks: &Chunks) -> Health {
    match chunks.dropped_confirmed {
        Some(dropped) if dropped > 0 => Health::Critical,
        Some(_) if chunks.delivered.is_some_and(|delivered| delivered > 0) => Health::Good,
        None if chunks.dropped_predicted.is_some_and(|predicted| predicted > 0) => Health::Warning,
        // Nothing was delivered, or no delivery is observed: a prediction of no drop proves nothing.
        Some(_) | None => Health::Unknown,
    }
}

/// Number of chunks with this outcome, or a predicted number with a `?`; `None` if neither is known.
fn describe_outcome(outcome: &str, observed: Option<u64>, predicted: Option<u64>) -> Option<String> {
    if let Some(observed) = observed {
        return Some(format!("{outcome} {}", format_count(observed)));
    }
    // A prediction of none is no observation.
    let predicted = predicted.filter(|predicted| *predicted > 0)?;
    Some(format!("{outcome}? {}", format_count(predicted)))
}

/// Room for the legend of a breakdown.
#[derive(Clone, Copy)]
pub(super) struct LegendRoom {
    pub(super) max_rows: u16,
    /// What shows the parts for which there is no room: a key, or `enlarge`.
    pub(super) more: &'static str,
}

/// Draws the breakdown of a time into parts: its title, a bar, and behind the bar a legend in the rows of `room`. Draws nothing without
/// parts. Returns the next free row.
pub(super) fn draw_breakdown(pad: &mut Pad<'_>, y: u16, title: &str, parts: &[Segment], room: LegendRoom) -> NextRow {
    if parts.is_empty() {
        return y;
    }
    let bar_x = pad.draw_text(1, y, title, Ink::Head) + 1;
    let legend_x = draw_breakdown_bar(pad, bar_x, y, parts);
    draw_legend(pad, legend_x, y, parts, room)
}

/// Draws the name, the share and the symbol of each part, the largest part first. Begins in row `y` at column `x`, and goes on at the left
/// edge of the next row. Parts that do not fit into the rows of `room` are counted. Returns the next free row.
fn draw_legend(pad: &mut Pad<'_>, mut x: u16, y: u16, parts: &[Segment], room: LegendRoom) -> NextRow {
    // With their indices on the path, by which the bar has chosen their symbols.
    let mut legend: Vec<(usize, &Segment)> = parts.iter().enumerate().collect();
    legend.sort_by(|(_, a), (_, b)| b.share.total_cmp(&a.share));
    let mut row_y = y;
    for (drawn, &(index, part)) in legend.iter().enumerate() {
        let text = format!("{} {}", percent(part.share), part.name);
        // A space, the symbol and another space come before the text.
        let fits = x + 3 + text_width(&text) <= pad.width();
        let is_last_row = row_y + 1 >= y + room.max_rows;
        // The largest part is drawn even if it does not fit.
        let is_largest = drawn == 0;
        if !fits && !is_last_row {
            row_y += 1;
            x = 0;
        } else if !fits && !is_largest {
            pad.draw_text(x + 1, row_y, &format!("{} more: {}", legend.len() - drawn, room.more), Ink::Dim);
            break;
        }
        let (symbol, ink) = breakdown_symbol_and_ink(index, pad.theme);
        x = pad.draw_text(x + 1, row_y, symbol, ink);
        x = pad.draw_text(x + 1, row_y, &text, Ink::Plain);
    }
    row_y + 1
}

/// Draws the bar of a breakdown, in which each part has its share of the cells. Returns the next free column.
fn draw_breakdown_bar(pad: &mut Pad<'_>, mut x: u16, y: u16, parts: &[Segment]) -> NextColumn {
    let bar_width = if pad.width() < WIDE_COLUMNS { BREAKDOWN_WIDTH / 2 } else { BREAKDOWN_WIDTH };
    for (index, cells) in bar::cells_per_segment(parts, bar_width).into_iter().enumerate() {
        let (symbol, ink) = breakdown_symbol_and_ink(index, pad.theme);
        x = pad.draw_text(x, y, &symbol.repeat(cells), ink);
    }
    x
}

/// Symbol and style of the part with this index: neighbours differ in the bar, and in the legend, which has another order.
fn breakdown_symbol_and_ink(index: usize, theme: Theme) -> (&'static str, Ink) {
    let symbols = theme.rich_or_ascii(
        ["█", "▒", "░", "▚", "▄", "▌", "▓", "▀", "▐", "▞", "▖", "▝"],
        ["#", "=", "-", "+", ":", ".", "*", "o", "x", "~", "@", "%"],
    );
    let inks = [Ink::Series, Ink::Head, Ink::Dim];
    (symbols[index % symbols.len()], inks[index % inks.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_line_keeps_its_number_and_the_word_before_it() {
        for (whole, expected) in [
            ("wait p99 2.71 s (run)", "p99 2.71 s"),
            ("0 frames/s (last 10 s)", "0 frames/s"),
            ("34.3 frames/s (last 10 s)", "34.3 frames/s"),
            ("backlog 1,519", "backlog 1,519"),
            ("relay 12 us p99 (run)", "relay 12 us p99"),
            ("wait not observed", "wait not observed"),
            ("dropped? 12 (run)", "dropped? 12"),
            ("no wait p99", "no wait p99"),
        ] {
            assert_eq!(LineForm::OneLabel.shorten_line(whole), expected);
        }
        assert_eq!(LineForm::NoRemark.shorten_line("wait p99 2.71 s (run)"), "wait p99 2.71 s");
    }

    #[test]
    fn each_part_of_a_bar_has_its_own_symbol() {
        for locale in ["C", "C.UTF-8"] {
            let theme = Theme::for_environment(None, |name| if name == "LC_ALL" { locale } else { "" }.to_owned());
            let mut symbols: Vec<&str> = (0..12).map(|index| breakdown_symbol_and_ink(index, theme).0).collect();
            symbols.sort_unstable();
            symbols.dedup();
            assert_eq!(symbols.len(), 12);
        }
    }
}
