//! Findings tab: each finding with its start, state, evidence and advice.

use outputs::report::{EvidenceNumber, describe_episodes, describe_place, evidence_label};
use serde_json::Value;
use session::units::{format_bytes, format_count, format_duration, format_elapsed_clock};
use trace::detect::{Finding, FindingPhase};
use trace::words::{decimal_percent, json_text};

use super::pad::{List, NextRow, Pad};
use crate::state::Model;
use crate::state::action::Tab;
use crate::state::flags::Health;
use crate::state::ui::Ui;
use crate::theme::Ink;

/// Rows for the details of the selected line.
const DETAIL_ROWS: u16 = 11;
/// Findings and missing observations that the list shows at least.
const MIN_LISTED_ITEMS: u16 = 3;
/// Maximum number of rows for the verdict above the list.
const MAX_VERDICT_ROWS: u16 = 3;
/// Maximum numbers of rows for the parts of the selected finding: summary, time and place, changes of the receiver, evidence.
const MAX_SUMMARY_ROWS: u16 = 6;
const MAX_TIME_ROWS: u16 = 3;
const MAX_CHANGE_ROWS: u16 = 2;
const MAX_EVIDENCE_ROWS: u16 = 4;
/// From this width on, the list has the kind of a finding; from the second on, with room for the longest kind.
const KIND_COLUMNS: u16 = 80;
const LONGEST_KIND_COLUMNS: u16 = 100;
/// Cells of the longest kind, `dropped-chunks-predicted`.
const LONGEST_KIND: u16 = 24;
/// Cells of `rid-changed-worker`; few kinds are longer.
const USUAL_KIND: u16 = 18;
/// First cell and cells of the start of a finding, behind the longest severity, so that times are below each other.
const START_X: u16 = 12;
const START_WIDTH: u16 = 7;
/// First cell of the end of a finding, and of the texts behind it.
const END_X: u16 = 20;
const KIND_X: u16 = 31;
/// First cell of the texts of the details, behind the longest label.
const DETAIL_X: u16 = 11;

/// Hint on the key that opens the worst request, and its cells with two before it and one behind it.
const OPEN_HINT: &str = "(Enter: open)";
const OPEN_HINT_CELLS: u16 = 16;

/// A line of the list.
#[derive(Clone, Copy)]
enum FindingListItem<'a> {
    Finding(&'a Finding),
    /// An observation that is missing.
    Degraded(&'a str),
}

/// Draws the list of findings and missing observations, and below it the details of the selected one.
pub(super) fn draw_findings_tab(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    let degraded = model.run.degraded.iter().map(|text| FindingListItem::Degraded(text));
    let lines: Vec<FindingListItem<'_>> = model.findings.iter().map(FindingListItem::Finding).chain(degraded).collect();
    let y = draw_whole_verdict(pad, model);
    let max_items = pad.height().saturating_sub(y + DETAIL_ROWS).max(MIN_LISTED_ITEMS);
    let selected = ui.selected_index(Tab::Findings);
    let y = pad.draw_list(y, &List { items: &lines, selected, max_items }, |pad, y, _, line| {
        match line {
            FindingListItem::Finding(finding) => draw_finding(pad, y, model, finding),
            FindingListItem::Degraded(text) => {
                let x = pad.draw_text(1, y, "! degraded", Ink::Health(Health::Warning));
                pad.draw_text(x + 2, y, text, Ink::Plain);
            }
        }
        y + 1
    });
    match lines.get(selected) {
        // The list is empty.
        None => {}
        Some(FindingListItem::Finding(finding)) => draw_finding_detail(pad, y, model, finding),
        Some(FindingListItem::Degraded(text)) => {
            pad.draw_heading(y, "degraded");
            let max_rows = pad.height().saturating_sub(y + 1).max(1);
            pad.draw_paragraph(1, y + 1, max_rows, text, Ink::Plain);
        }
    }
}

/// Draws the whole verdict on a run without a warning, because the first line of the screen may cut it. Returns the next free row.
fn draw_whole_verdict(pad: &mut Pad<'_>, model: &Model) -> NextRow {
    // The verdict is the text of a finding, which the list below shows.
    if model.verdict.health >= Health::Warning {
        return 0;
    }
    let y = pad.draw_paragraph(1, 0, MAX_VERDICT_ROWS, &model.verdict.text, Ink::Plain);
    if model.findings.is_empty() {
        pad.draw_text(1, y, "no findings", Ink::Plain);
        return y + 1;
    }
    y
}

/// Draws a finding in one row: severity, time, kind and summary.
fn draw_finding(pad: &mut Pad<'_>, y: u16, model: &Model, finding: &Finding) {
    let verdict = &finding.verdict;
    let health = Health::from(verdict.severity);
    let ink = Ink::Health(health);
    pad.draw_text(1, y, &format!("{} {}", pad.theme.health_symbol(health), health.label()), ink);
    pad.draw_right_aligned(START_X, y, START_WIDTH, &format_elapsed_clock(model.finding_start_ns(finding)), Ink::Plain);
    let end_ink = if model.phase_of(finding) == FindingPhase::Lasts { ink } else { Ink::Dim };
    pad.draw_text(END_X, y, &model.format_finding_end(finding), end_ink);
    // On a narrow screen, only the details have the kind.
    let mut x = KIND_X;
    if pad.width() >= KIND_COLUMNS {
        let kind_width = if pad.width() >= LONGEST_KIND_COLUMNS { LONGEST_KIND } else { USUAL_KIND };
        pad.draw_clipped(x, y, kind_width, finding.kind, Ink::Strong);
        x += kind_width + 1;
    }
    pad.draw_text(x, y, &verdict.summary, Ink::Plain);
}

/// Draws everything known of a finding from row `y` on.
fn draw_finding_detail(pad: &mut Pad<'_>, y: u16, model: &Model, finding: &Finding) {
    let verdict = &finding.verdict;
    pad.draw_heading(y, finding.kind);
    let y = pad.draw_paragraph(1, y + 1, MAX_SUMMARY_ROWS, &verdict.summary, Ink::Strong);
    let mut y = pad.draw_paragraph(1, y, MAX_TIME_ROWS, &describe_time_and_place(model, finding), Ink::Plain);
    // Some findings are about no single request.
    if !verdict.rid.is_empty() {
        draw_worst_rid(pad, y, &verdict.rid);
        y += 1;
    }
    if let Some(changes) = &model.receiver_changes {
        pad.draw_text(1, y, "changed", Ink::Head);
        y = pad.draw_paragraph(DETAIL_X, y, MAX_CHANGE_ROWS, changes, Ink::Plain);
    }
    let numbers: Vec<String> = verdict.evidence.iter().map(|(name, value)| format_evidence(name, value)).collect();
    if !numbers.is_empty() {
        pad.draw_text(1, y, "evidence", Ink::Head);
        y = pad.draw_paragraph(DETAIL_X, y, MAX_EVIDENCE_ROWS, &numbers.join(",  "), Ink::Plain);
    }
    if let Some(advice) = &verdict.advice {
        pad.draw_text(1, y, "to do", Ink::Head);
        let max_rows = pad.height().saturating_sub(y).max(1);
        pad.draw_paragraph(DETAIL_X, y, max_rows, advice, Ink::Strong);
    }
}

/// Draws the worst request of a finding in one row, with the key that opens it.
fn draw_worst_rid(pad: &mut Pad<'_>, y: u16, rid: &str) {
    let x = pad.draw_text(1, y, "worst rid ", Ink::Head);
    let shown_rid = pad.shorten_id(rid, pad.width().saturating_sub(x + OPEN_HINT_CELLS));
    let x = pad.draw_text(x, y, &shown_rid, Ink::Plain);
    pad.draw_text(x + 2, y, OPEN_HINT, Ink::Dim);
}

/// Describes when the finding occurred, with its episodes if it paused in between. If it is about a hop or a process, says which.
fn describe_time_and_place(model: &Model, finding: &Finding) -> String {
    let span = describe_time_of_finding(model, finding);
    let episodes = finding.times.episodes().iter();
    let episodes = episodes.map(|episode| [episode.first, episode.last].map(|at| model.format_exact_moment(at)));
    let episodes = describe_episodes(episodes, finding.times.joined());
    let hop = &finding.verdict.hop;
    let place = if hop.is_empty() { String::new() } else { format!("; {}", describe_place(hop)) };
    format!("{span}{episodes}{place}")
}

/// When the finding began and ended, or whether it lasts.
fn describe_time_of_finding(model: &Model, finding: &Finding) -> String {
    let began = model.format_exact_moment(finding.began);
    let last = model.format_exact_moment(finding.last_at);
    let duration_ns = finding.last_at.since(finding.began);
    // True if the detectors ran at the shown moment, and found it again.
    let occurs_now = finding.last_at.since(model.started_at) >= model.running_ns;
    if finding.active && occurs_now {
        let lasting = if model.is_at_end() { "lasted to the end of the run" } else { "lasts now" };
        return format!("began at {began}, {lasting} (for {})", format_duration(duration_ns));
    }
    if duration_ns == 0 {
        return format!("occurred at {began}");
    }
    let ended = if finding.active { "last occurred" } else { "ended" };
    format!("began at {began}, {ended} at {last} (after {})", format_duration(duration_ns))
}

/// Formats `wait_ns: 1500000000` as `wait 1.50 s`.
fn format_evidence(name: &str, value: &Value) -> String {
    let label = evidence_label(name);
    let Value::Number(number) = value else { return format!("{label} {}", json_text(value)) };
    let shown = match EvidenceNumber::of_evidence(name, number) {
        EvidenceNumber::Duration(ns) => format_duration(ns),
        EvidenceNumber::Bytes(bytes) => format_bytes(bytes),
        EvidenceNumber::Identifier(id) => id.to_string(),
        EvidenceNumber::Count(count) => format_count(count),
        EvidenceNumber::Share(share) => decimal_percent(share),
        EvidenceNumber::Other { number, unit } => format!("{number:.2}{unit}"),
    };
    format!("{label} {shown}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_is_formatted_in_its_unit() {
        assert_eq!(format_evidence("longest_wait_ns", &1_500_000_000_u64.into()), "longest wait 1.50 s");
        assert_eq!(format_evidence("requests", &12_345.into()), "requests 12.3k");
        assert_eq!(format_evidence("io_pid", &59_512.into()), "io pid 59512");
        assert_eq!(format_evidence("ttft_share", &0.125.into()), "ttft share 12.5 %");
        assert_eq!(format_evidence("run_wait", &0.255.into()), "waiting for a CPU 25.5 %");
        assert_eq!(format_evidence("kernel_bytes_max", &0.into()), "kernel bytes max 0 B");
        assert_eq!(format_evidence("imbalance", &2.19.into()), "imbalance 2.19 times an even share");
        assert_eq!(format_evidence("by_cause", &serde_json::json!({"a": 1})), "by cause {\"a\":1}");
    }
}
