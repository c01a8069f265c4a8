//! Findings tab: each finding with its start, state, evidence and advice.

use serde_json::Value;
use session::units::{clock, count, duration};
use trace::detect::Finding;
use trace::words::of_json;

use super::pad::Pad;
use crate::state::Model;
use crate::state::action::Tab;
use crate::state::flags::Health;
use crate::state::ui::Ui;
use crate::theme::Ink;

pub(super) fn draw(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    let mut y = 0;
    for line in &model.run.degraded {
        if y + 8 > pad.height() {
            break;
        }
        pad.text(1, y, "! degraded", Ink::Health(Health::Warning));
        y = pad.paragraph(12, y, 2, line, Ink::Plain);
    }
    if model.findings.is_empty() {
        pad.text(1, y, "no findings", Ink::Plain);
        return;
    }
    let max_rows = (pad.height() - y).saturating_sub(10).max(3);
    let selected = ui.place(Tab::Findings);
    y = pad.list(y, &model.findings, (selected, max_rows), |pad, y, _, finding| {
        line(pad, y, model.at_ns(finding), finding)
    });
    if let Some(finding) = model.findings.get(selected) {
        detail(pad, y, model.at_ns(finding), finding);
    }
}

fn line(pad: &mut Pad<'_>, y: u16, at_ns: u64, finding: &Finding) -> u16 {
    let verdict = &finding.verdict;
    let health = Health::from(verdict.severity);
    let ink = if finding.active { Ink::Health(health) } else { Ink::Dim };
    pad.text(1, y, &format!("{} {}", pad.theme.sign(health), health.word()), ink);
    pad.text(13, y, if finding.active { "now" } else { "over" }, ink);
    pad.number(18, y, 7, &clock(at_ns), Ink::Plain);
    pad.fit(27, y, 17, finding.kind, Ink::Strong);
    pad.text(45, y, &verdict.summary, Ink::Plain);
    y + 1
}

fn detail(pad: &mut Pad<'_>, y: u16, at_ns: u64, finding: &Finding) {
    let verdict = &finding.verdict;
    pad.rule(y, finding.kind);
    let mut y = pad.paragraph(1, y + 1, 3, &verdict.summary, Ink::Strong);
    let lasts = if finding.active { "and lasts" } else { "and is over" };
    let hop = if verdict.hop.is_empty() { String::new() } else { format!(", on {}", verdict.hop) };
    pad.text(1, y, &format!("began at {} {lasts}{hop}", clock(at_ns)), Ink::Plain);
    y += 1;
    if !verdict.rid.is_empty() {
        let x = pad.text(1, y, "worst rid ", Ink::Head);
        let x = pad.text(x, y, &verdict.rid, Ink::Plain);
        pad.text(x + 2, y, "(Enter: open)", Ink::Dim);
        y += 1;
    }
    let numbers: Vec<String> = verdict.evidence.iter().map(|(name, value)| number(name, value)).collect();
    if !numbers.is_empty() {
        pad.text(1, y, "evidence", Ink::Head);
        y = pad.paragraph(11, y, 4, &numbers.join(",  "), Ink::Plain);
    }
    if let Some(advice) = &verdict.advice {
        pad.text(1, y, "to do", Ink::Head);
        pad.paragraph(11, y, 4, advice, Ink::Strong);
    }
}

/// Formats `wait_ns: 1500000000` as `wait: 1.50 s`.
fn number(name: &str, value: &Value) -> String {
    let (name, shown) = match (name.strip_suffix("_ns"), value) {
        (Some(stem), Value::Number(n)) => (stem, n.as_u64().map_or(n.to_string(), duration)),
        (None, Value::Number(n)) => {
            (name, n.as_u64().map_or_else(|| format!("{:.3}", n.as_f64().unwrap_or(0.0)), count))
        }
        (_, other) => (name, of_json(other)),
    };
    format!("{} {shown}", name.replace('_', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_is_formatted_in_its_unit() {
        assert_eq!(number("longest_wait_ns", &1_500_000_000_u64.into()), "longest wait 1.50 s");
        assert_eq!(number("requests", &12_345.into()), "requests 12.3k");
        assert_eq!(number("share", &0.125.into()), "share 0.125");
        assert_eq!(number("by_cause", &serde_json::json!({"a": 1})), "by cause {\"a\":1}");
    }
}
