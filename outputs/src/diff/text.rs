//! The comparison for a terminal, and as Markdown for an issue.

use std::fmt::Write as _;

use trace::words::{duration, known, plural};

use super::{Compared, Diff, LegShift, Options, Side, WaitShift};
use crate::report::hostile::{lines, markdown as escaped};
use crate::report::markdown::table;
use crate::report::table::Kind::{Number, Text};
use crate::report::table::Table;
use crate::report::wrap;

/// Width of the name column.
const NAME: usize = 44;

pub(super) fn render(diff: &Diff) -> String {
    let mut out = String::new();
    wrap(&mut out, &diff.verdict, "", "  ");
    for (letter, side) in [("A", &diff.a), ("B", &diff.b)] {
        wrap(&mut out, &side_line(side), &format!("{letter}  "), "   ");
    }
    let _ = writeln!(out);
    for pattern in &diff.patterns {
        wrap(&mut out, &format!("{}: {}", pattern.title, pattern.summary), "=> ", "   ");
    }
    if let Some(wait) = &diff.wait {
        wrap(&mut out, &wait.summary, "=> ", "   ");
    }
    if !diff.patterns.is_empty() || diff.wait.is_some() {
        let _ = writeln!(out);
    }
    if let Some(wait) = &diff.wait {
        legs(&mut out, wait);
    }
    if !diff.measures.is_empty() {
        let _ = writeln!(out, "{:NAME$} {:>11} {:>11} {:>8}  VERDICT", "MEASURE, MEAN OF SLOTS", "A", "B", "CHANGE");
    }
    for measure in &diff.measures {
        line(&mut out, measure, &diff.options);
    }
    let _ = writeln!(out);
    wrap(&mut out, &diff.method, "how  ", "     ");
    lines(&out)
}

fn legs(out: &mut String, wait: &WaitShift) {
    let _ = writeln!(
        out,
        "{:NAME$} {:>11} {:>8} {:>11} {:>8}",
        "WHERE A CHUNK'S TIME GOES, MEAN", "A", "SHARE", "B", "SHARE"
    );
    for leg in &wait.legs {
        let [name, a, share_a, b, share_b] = leg.cells();
        let _ = writeln!(out, "{name:NAME$.NAME$} {a:>11} {share_a:>8} {b:>11} {share_b:>8}");
    }
    let _ = writeln!(out);
}

fn side_line(side: &Side) -> String {
    let slots = match side.slot_ns {
        Some(ns) => format!("{} of {} under load", plural(side.slots as u64, "slot"), duration(ns)),
        None => String::from("no time slots: no event was observed"),
    };
    format!("{}: {}, {}, {slots}", side.name, side.what, duration(side.window_ns))
}

fn line(out: &mut String, measure: &Compared, options: &Options) {
    let name = &measure.name;
    let (a, b) = (measure.unit.value(measure.a), measure.unit.value(measure.b));
    let _ =
        write!(out, "{name:NAME$.NAME$} {a:>11} {b:>11} {:>8}  {}", measure.change_text(), measure.verdict.as_str());
    if let Some(note) = &measure.note {
        let _ = write!(out, "\n      {note}");
    } else if let Some([low, high]) = measure.interval.filter(|_| measure.verdict.counts()) {
        let (low, high) = (measure.unit.signed(low), measure.unit.signed(high));
        let _ = write!(out, "\n      B - A lies between {low} and {high} ({})", options.confidence());
    }
    let _ = writeln!(out);
}

pub(super) fn markdown(diff: &Diff) -> String {
    let mut out = format!("## {}\n\n", escaped(&diff.verdict));
    for (letter, side) in [("A", &diff.a), ("B", &diff.b)] {
        let _ = writeln!(out, "- **{letter}** {}", escaped(&side_line(side)));
    }
    for pattern in &diff.patterns {
        let _ = writeln!(out, "- **{}** {}", escaped(&pattern.title), escaped(&pattern.summary));
    }
    if let Some(wait) = &diff.wait {
        let _ = writeln!(out, "- **{}**", escaped(&wait.summary));
        out.push('\n');
        let cell = |leg: &LegShift, n: usize| escaped(&leg.cells()[n]);
        let legs = Table::new(
            &wait.legs,
            [
                ("where a chunk's time goes, mean", Text, &|leg| cell(leg, 0)),
                ("A", Number, &|leg| cell(leg, 1)),
                ("share", Number, &|leg| cell(leg, 2)),
                ("B", Number, &|leg| cell(leg, 3)),
                ("share", Number, &|leg| cell(leg, 4)),
            ],
        );
        table(&mut out, &legs);
    }
    let heading = format!("{} interval of B - A", diff.options.confidence());
    let verdict = |measure: &Compared| {
        let bold = if measure.verdict.counts() { "**" } else { "" };
        let note = measure.note.as_ref().map_or_else(String::new, |note| format!(": {}", escaped(note)));
        format!("{bold}{}{bold}{note}", measure.verdict.as_str())
    };
    let measures = Table::new(
        &diff.measures,
        [
            ("measure, mean of slots", Text, &|m| escaped(&m.name)),
            ("A", Number, &|m| m.unit.value(m.a)),
            ("B", Number, &|m| m.unit.value(m.b)),
            ("change", Number, &|m| m.change_text()),
            (&heading, Number, &|m| {
                known(m.interval, |[low, high]| format!("{} to {}", m.unit.signed(low), m.unit.signed(high)))
            }),
            ("verdict", Text, &verdict),
        ],
    );
    out.push('\n');
    table(&mut out, &measures);
    let _ = writeln!(out, "\n{}", escaped(&diff.method));
    out
}
