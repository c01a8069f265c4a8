//! The comparison for a terminal.

use std::fmt::Write as _;

use super::{Compared, Diff, Options, Side, WaitShift};
use crate::report::hostile::lines;
use crate::report::wrap;
use crate::words::{duration, plural};

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

pub(super) fn side_line(side: &Side) -> String {
    let slots = match side.slot_ns {
        Some(ns) => format!("{} of {} under load", plural(side.slots as u64, "slot"), duration(ns)),
        None => String::from("no time slots: written by a version without them"),
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
