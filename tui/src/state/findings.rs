//! Converts findings into lines: active ones first, numbers as text.

use serde_json::Value;
use session::units::{count, duration};
use trace::detect::Finding;
use trace::{Analysis, MonoNs};

use super::model::FindingLine;

/// Findings at the same instant as all other numbers of the frame; active ones first, then by severity.
pub(crate) fn read(analysis: &Analysis, start: MonoNs) -> Vec<FindingLine> {
    let now = analysis.findings_now();
    let mut lines: Vec<FindingLine> = now.sorted().into_iter().map(|f| line(f, start)).collect();
    lines.sort_by_key(|f| !f.active);
    lines
}

fn line(finding: &Finding, start: MonoNs) -> FindingLine {
    let verdict = &finding.verdict;
    FindingLine {
        kind: finding.kind.to_owned(),
        health: verdict.severity.into(),
        active: finding.active,
        at_ns: finding.began.since(start),
        summary: verdict.summary.clone(),
        hop: verdict.hop.clone(),
        rid: verdict.rid.clone(),
        evidence: verdict.evidence.iter().map(|(name, value)| number(name, value)).collect(),
        advice: verdict.advice.clone(),
    }
}

/// Formats `wait_ns: 1500000000` as `wait: 1.50 s`.
fn number(name: &str, value: &Value) -> (String, String) {
    let shown = match (name.strip_suffix("_ns"), value) {
        (Some(stem), Value::Number(n)) => return (stem.replace('_', " "), n.as_u64().map_or(n.to_string(), duration)),
        (None, Value::Number(n)) => n.as_u64().map_or_else(|| format!("{:.3}", n.as_f64().unwrap_or(0.0)), count),
        (_, Value::String(text)) => text.clone(),
        (_, other) => other.to_string(),
    };
    (name.replace('_', " "), shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_is_formatted_in_its_unit() {
        assert_eq!(number("longest_wait_ns", &1_500_000_000_u64.into()), ("longest wait".into(), "1.50 s".into()));
        assert_eq!(number("requests", &12_345.into()), ("requests".into(), "12.3k".into()));
        assert_eq!(number("share", &0.125.into()), ("share".into(), "0.125".into()));
        assert_eq!(number("by_cause", &serde_json::json!({"a": 1})), ("by cause".into(), "{\"a\":1}".into()));
    }
}
