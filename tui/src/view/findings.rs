//! Findings tab: each finding with its start, state, evidence and advice.

use session::units::clock;

use super::Hits;
use super::pad::Pad;
use crate::state::Model;
use crate::state::health::Health;
use crate::state::model::FindingLine;
use crate::state::tab::Tab;
use crate::state::ui::Ui;
use crate::theme::{PLAIN, STRONG};

pub(super) fn draw(pad: &mut Pad<'_>, model: &Model, ui: &Ui, hits: &mut Hits) {
    let theme = pad.theme();
    let mut y = 0;
    for line in &model.run.degraded {
        if y + 8 > pad.height() {
            break;
        }
        pad.text(1, y, "! degraded", theme.health(Health::Warning));
        y = pad.paragraph(12, y, 2, line, PLAIN);
    }
    if model.findings.is_empty() {
        pad.text(1, y, "no findings", PLAIN);
        return;
    }
    let max_rows = (pad.height() - y).saturating_sub(10).max(3);
    let selected = ui.place(Tab::Findings);
    y = hits.list((pad, y), &model.findings, (selected, max_rows), |pad, y, _, finding| line(pad, y, finding));
    if let Some(finding) = model.findings.get(selected) {
        detail(pad, y, finding);
    }
}

fn line(pad: &mut Pad<'_>, y: u16, finding: &FindingLine) -> u16 {
    let theme = pad.theme();
    let style = if finding.active { theme.health(finding.health) } else { theme.dim() };
    pad.text(1, y, &format!("{} {}", theme.sign(finding.health), finding.health.word()), style);
    pad.text(13, y, if finding.active { "now" } else { "over" }, style);
    pad.number(18, y, 7, &clock(finding.at_ns), PLAIN);
    pad.fit(27, y, 17, &finding.kind, STRONG);
    pad.text(45, y, &finding.summary, PLAIN);
    y + 1
}

fn detail(pad: &mut Pad<'_>, y: u16, finding: &FindingLine) {
    let theme = pad.theme();
    pad.rule(y, &finding.kind);
    let mut y = pad.paragraph(1, y + 1, 3, &finding.summary, STRONG);
    let lasts = if finding.active { "and lasts" } else { "and is over" };
    let hop = if finding.hop.is_empty() { String::new() } else { format!(", on {}", finding.hop) };
    pad.text(1, y, &format!("began at {} {lasts}{hop}", clock(finding.at_ns)), PLAIN);
    y += 1;
    if !finding.rid.is_empty() {
        let x = pad.text(1, y, "worst rid ", theme.head());
        let x = pad.text(x, y, &finding.rid, PLAIN);
        pad.text(x + 2, y, "(Enter: open)", theme.dim());
        y += 1;
    }
    let numbers: Vec<String> = finding.evidence.iter().map(|(name, value)| format!("{name} {value}")).collect();
    if !numbers.is_empty() {
        pad.text(1, y, "evidence", theme.head());
        y = pad.paragraph(11, y, 4, &numbers.join(",  "), PLAIN);
    }
    if let Some(advice) = &finding.advice {
        pad.text(1, y, "to do", theme.head());
        pad.paragraph(11, y, 4, advice, STRONG);
    }
}
