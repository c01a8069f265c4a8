//! The comparison as Markdown, for an issue.

use std::fmt::Write as _;

use super::Diff;
use super::text::side_line;
use super::wait::place;
use crate::report::hostile::markdown;
use crate::words::{duration, percent};

pub(super) fn render(diff: &Diff) -> String {
    let mut out = format!("## {}\n\n", markdown(&diff.verdict));
    for (letter, side) in [("A", &diff.a), ("B", &diff.b)] {
        let _ = writeln!(out, "- **{letter}** {}", markdown(&side_line(side)));
    }
    for pattern in &diff.patterns {
        let _ = writeln!(out, "- **{}** {}", markdown(&pattern.title), markdown(&pattern.summary));
    }
    if let Some(wait) = &diff.wait {
        let _ = writeln!(out, "- **{}**", markdown(&wait.summary));
        let _ = writeln!(
            out,
            "\n| where a chunk's time goes, mean | A | share | B | share |\n|---|--:|--:|--:|--:|"
        );
        let time = |ns: Option<u64>| ns.map_or_else(|| String::from("-"), duration);
        let part = |share: Option<f64>| share.map_or_else(|| String::from("-"), percent);
        for leg in &wait.legs {
            let name = markdown(&place(&leg.name, leg.kind));
            let (a, b) = (time(leg.a_ns), time(leg.b_ns));
            let _ = writeln!(
                out,
                "| {name} | {a} | {} | {b} | {} |",
                part(leg.a_share),
                part(leg.b_share)
            );
        }
    }
    let _ = writeln!(
        out,
        "\n| measure, mean of slots | A | B | change | 99 % interval of B - A | verdict |\n|---|--:|--:|--:|--:|---|"
    );
    for measure in &diff.measures {
        let interval = measure.interval.map_or_else(
            || String::from("-"),
            |[low, high]| format!("{} to {}", measure.unit.signed(low), measure.unit.signed(high)),
        );
        let verdict = match measure.verdict {
            verdict if verdict.counts() => format!("**{}**", verdict.as_str()),
            quiet => quiet.as_str().to_owned(),
        };
        let note = measure
            .note
            .as_ref()
            .map_or_else(String::new, |note| format!(": {}", markdown(note)));
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {interval} | {verdict}{note} |",
            markdown(&measure.name),
            measure.unit.value(measure.a),
            measure.unit.value(measure.b),
            measure.change_text(),
        );
    }
    let _ = writeln!(out, "\n{}", markdown(&diff.method));
    out
}
