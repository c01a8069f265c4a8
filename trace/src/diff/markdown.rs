//! The comparison as Markdown, for an issue.

use std::fmt::Write as _;

use super::Diff;
use super::text::side_line;
use crate::report::hostile::markdown;
use crate::report::markdown::table;
use crate::report::table::Kind::{Number, Text};
use crate::words::known;

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
        let columns = [
            ("where a chunk's time goes, mean", Text),
            ("A", Number),
            ("share", Number),
            ("B", Number),
            ("share", Number),
        ];
        let rows = wait.legs.iter().map(|leg| leg.cells().map(|cell| markdown(&cell)));
        out.push('\n');
        table(&mut out, columns, rows);
    }
    let interval = format!("{} interval of B - A", diff.options.confidence());
    let columns = [
        ("measure, mean of slots", Text),
        ("A", Number),
        ("B", Number),
        ("change", Number),
        (&*interval, Number),
        ("verdict", Text),
    ];
    let rows = diff.measures.iter().map(|measure| {
        let unit = measure.unit;
        let interval = |[low, high]: [f64; 2]| format!("{} to {}", unit.signed(low), unit.signed(high));
        let bold = if measure.verdict.counts() { "**" } else { "" };
        let note = measure.note.as_ref();
        let note = note.map_or_else(String::new, |note| format!(": {}", markdown(note)));
        [
            markdown(&measure.name),
            unit.value(measure.a),
            unit.value(measure.b),
            measure.change_text(),
            known(measure.interval, interval),
            format!("{bold}{}{bold}{note}", measure.verdict.as_str()),
        ]
    });
    out.push('\n');
    table(&mut out, columns, rows);
    let _ = writeln!(out, "\n{}", markdown(&diff.method));
    out
}
