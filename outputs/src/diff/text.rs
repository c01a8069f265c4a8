//! The comparison for a terminal, and as Markdown for an issue.

use trace::detect::Severity;
use trace::words::{duration, known_or_dash, plural};

use super::measure::describe_seldom_values;
use super::wait_shift::LegCells;
use super::{
    ChangeVerdict, ComparedMeasure, Diff, FindingChange, FindingState, LegShift, RunSummary, TtftLegShift, headline,
};
use crate::report::brief::NO_INDENT;
use crate::report::hostile::{escape_markdown as escaped, lines as escape_lines};
use crate::report::markdown::write_table;
use crate::report::table::CellKind::{Number, Text};
use crate::report::table::Table;
use crate::report::write_wrapped;

/// Width of the name column.
const NAME_WIDTH: usize = 44;
/// Verdict on a measure of slots that are too few, behind the line about short runs.
const NO_VERDICT: &str = "-";

/// The comparison as text for a terminal.
pub(super) fn render_text(diff: &Diff) -> String {
    let mut out = String::new();
    write_verdict_and_runs(&mut out, diff);
    write_causes_and_wait_shifts(&mut out, diff);
    write_findings(&mut out, diff);
    if let Some(ttft) = &diff.ttft {
        write_leg_table(&mut out, "WHERE TTFT GOES, MEAN", ttft.legs.iter().map(TtftLegShift::table_cells));
    }
    if let Some(wait) = &diff.wait {
        write_leg_table(&mut out, "WHERE A CHUNK'S TIME GOES, MEAN", wait.legs.iter().map(LegShift::table_cells));
    }
    if !diff.measures.is_empty() {
        append_line!(out, "{:NAME_WIDTH$} {:>11} {:>11} {:>8}  VERDICT", "MEASURE", "A", "B", "CHANGE");
    }
    for measure in &diff.measures {
        write_measure_row(&mut out, measure, diff);
    }
    append_line!(out);
    write_wrapped(&mut out, &diff.method, "how  ", "     ");
    escape_lines(&out)
}

/// Writes the verdict, both runs, and what the verdict leaves out. An empty line follows.
fn write_verdict_and_runs(out: &mut String, diff: &Diff) {
    // The last two arguments of `write_wrapped` stand before the first line and before all further lines.
    write_wrapped(out, &diff.verdict, NO_INDENT, "  ");
    for (letter, side) in [("A", &diff.a), ("B", &diff.b)] {
        write_wrapped(out, &describe_run(side), &format!("{letter}  "), "   ");
        write_wrapped(out, &side.verdict, "   ", "     ");
    }
    if let Some(short_runs) = &diff.short_runs {
        write_wrapped(out, short_runs, NO_INDENT, "   ");
    }
    let others = headline::describe_others(&diff.outcomes, &diff.findings);
    if !others.is_empty() {
        write_wrapped(out, &others, "more: ", "   ");
    }
    let unchanged = headline::describe_unchanged_problems(&diff.outcomes, &diff.verdict);
    if !unchanged.is_empty() {
        write_wrapped(out, &unchanged, NO_INDENT, "   ");
    }
    append_line!(out);
}

/// Writes the causes of the changes, and where the waits went. An empty line follows, unless nothing is written.
fn write_causes_and_wait_shifts(out: &mut String, diff: &Diff) {
    for pattern in &diff.patterns {
        write_wrapped(out, &format!("{}: {}", pattern.title, pattern.summary), "=> ", "   ");
    }
    let shifts: Vec<&String> = describe_shifts(diff).collect();
    for shift in &shifts {
        write_wrapped(out, shift, "=> ", "   ");
    }
    if !diff.patterns.is_empty() || !shifts.is_empty() {
        append_line!(out);
    }
}

/// The sentences on where a chunk waits and where the time to first token goes, before and after.
fn describe_shifts(diff: &Diff) -> impl Iterator<Item = &String> {
    noticed_wait(diff).into_iter().chain(diff.ttft.iter().map(|ttft| &ttft.summary))
}

/// The sentence on the wait of a chunk before and after, if users notice that wait in either run.
fn noticed_wait(diff: &Diff) -> Option<&String> {
    diff.wait.as_ref().filter(|wait| wait.is_noticed()).map(|wait| &wait.summary)
}

/// Findings to list. Leaves out unchanged ones that are only information.
fn listed_findings(diff: &Diff) -> impl Iterator<Item = &FindingChange> {
    diff.findings.iter().filter(|change| change.state != FindingState::Unchanged || change.severity() > Severity::Info)
}

/// Writes the listed findings with their summaries in each run, and an empty line behind them.
fn write_findings(out: &mut String, diff: &Diff) {
    for change in listed_findings(diff) {
        let severity = change.severity().as_str();
        let title = format!("{} {severity} {}", change.state.as_str(), name_finding_with_numbers_or_note(change));
        // Further lines of the title, and of the summaries behind `A` and `B`, have this indent.
        let indent = "      ";
        write_wrapped(out, &title, NO_INDENT, indent);
        for (letter, side) in [("A", &change.a), ("B", &change.b)] {
            if let Some(side) = side {
                write_wrapped(out, &side.summary, &format!("   {letter}  "), indent);
            }
        }
    }
    if listed_findings(diff).next().is_some() {
        append_line!(out);
    }
}

/// Names a finding, with its numbers in both runs: `backlog on a->b: 20 -> 300`.
fn name_finding_with_numbers_or_note(change: &FindingChange) -> String {
    // A note says why the numbers cannot be compared.
    let details = change.note.as_deref().unwrap_or(&change.numbers);
    let separator = if details.is_empty() { "" } else { ": " };
    format!("{}{separator}{details}", change.name())
}

/// Writes a table with the time and share of each leg, a part of the path, in both runs. `heading` is that of the first column.
fn write_leg_table(out: &mut String, heading: &str, legs: impl Iterator<Item = LegCells>) {
    // Columns of times are 11 characters wide, and those of shares 8.
    append_line!(out, "{heading:NAME_WIDTH$} {:>11} {:>8} {:>11} {:>8}", "A", "SHARE", "B", "SHARE");
    for LegCells { place, a_time, a_share, b_time, b_share } in legs {
        let name = pad_name_to_column(&place);
        append_line!(out, "{name} {a_time:>11} {a_share:>8} {b_time:>11} {b_share:>8}");
    }
    append_line!(out);
}

/// Name, source, length and slots of a run.
fn describe_run(run: &RunSummary) -> String {
    let slots = match run.slot_ns {
        Some(ns) => format!("{} of {} under load", plural(run.slots as u64, "slot"), duration(ns)),
        None => String::from("no time slots: no event was observed"),
    };
    format!("{}: {}, {}, {slots}", run.name, run.what, duration(run.window_ns))
}

/// A name padded to the width of the first column. A longer name gets a line of its own, and the column below it is blank.
fn pad_name_to_column(name: &str) -> String {
    if name.chars().count() <= NAME_WIDTH {
        return format!("{name:NAME_WIDTH$}");
    }
    format!("{name}\n{:NAME_WIDTH$}", "")
}

/// Writes the row of a measure: its values in both runs, the change and the verdict. A note or the interval of the change follows on a line
/// of its own.
fn write_measure_row(out: &mut String, measure: &ComparedMeasure, diff: &Diff) {
    let name = pad_name_to_column(&measure.name);
    append!(
        out,
        "{name} {:>11} {:>11} {:>8}  {}",
        measure.unit.format_value(measure.a),
        measure.unit.format_value(measure.b),
        measure.change_text(),
        verdict_text(measure, diff)
    );
    // The note of all short runs is printed once, and not here.
    if let Some(note) = own_note(measure, diff) {
        append!(out, "\n      {note}");
    } else if let Some(interval) = measure.interval
        && measure.verdict.is_change()
    {
        let [low, high] = interval.map(|shift| measure.unit.format_signed(shift));
        append!(out, "\n      B - A lies between {low} and {high} ({})", diff.options.confidence_text());
    }
    append_line!(out);
}

/// Verdict of a measure. In short runs it is a dash if slots are too few, because the comparison says once that the runs are short.
fn verdict_text(measure: &ComparedMeasure, diff: &Diff) -> &'static str {
    let is_undecided = measure.verdict == ChangeVerdict::NotEnoughData;
    if is_undecided && is_note_about_missing_slots(measure, diff) { NO_VERDICT } else { measure.verdict.as_str() }
}

/// Whether the runs are short, and the measure's note is about its slots. Other notes are about the number of all tokens or requests.
fn is_note_about_missing_slots(measure: &ComparedMeasure, diff: &Diff) -> bool {
    let Some(short_runs) = &diff.short_runs else { return false };
    let seldom_values = describe_seldom_values(&diff.options);
    measure.note.as_ref().is_some_and(|note| note == short_runs || *note == seldom_values)
}

/// The note of a measure, unless it is the one about short runs, which the comparison has once.
fn own_note<'m>(measure: &'m ComparedMeasure, diff: &Diff) -> Option<&'m str> {
    measure.note.as_deref().filter(|note| Some(*note) != diff.short_runs.as_deref())
}

/// The comparison as Markdown: the verdict as heading, a list of what changed, then tables of times and measures.
pub(super) fn render_markdown(diff: &Diff) -> String {
    let mut out = format!("## {}\n\n", escaped(&diff.verdict));
    write_runs_as_markdown(&mut out, diff);
    write_changes_as_markdown(&mut out, diff);
    if let Some(ttft) = &diff.ttft {
        write_legs_as_markdown(&mut out, "where TTFT goes, mean", ttft.legs.iter().map(TtftLegShift::table_cells));
    }
    if let Some(wait) = &diff.wait {
        let heading = "where a chunk's time goes, mean";
        write_legs_as_markdown(&mut out, heading, wait.legs.iter().map(LegShift::table_cells));
    }
    write_measures_as_markdown(&mut out, diff);
    append_line!(out, "\n{}", escaped(&diff.method));
    out
}

/// Writes the items of the list about the runs: what they are, and what the verdict leaves out.
fn write_runs_as_markdown(out: &mut String, diff: &Diff) {
    for (letter, side) in [("A", &diff.a), ("B", &diff.b)] {
        append_line!(out, "- **{letter}** {}: {}", escaped(&describe_run(side)), escaped(&side.verdict));
    }
    if let Some(short_runs) = &diff.short_runs {
        append_line!(out, "- {}", escaped(short_runs));
    }
    let others = headline::describe_others(&diff.outcomes, &diff.findings);
    if !others.is_empty() {
        append_line!(out, "- more: {}", escaped(&others));
    }
    let unchanged = headline::describe_unchanged_problems(&diff.outcomes, &diff.verdict);
    if !unchanged.is_empty() {
        append_line!(out, "- {}", escaped(&unchanged));
    }
}

/// Writes the items of the list about what changed: causes, findings, and where the waits went.
fn write_changes_as_markdown(out: &mut String, diff: &Diff) {
    for pattern in &diff.patterns {
        append_line!(out, "- **{}** {}", escaped(&pattern.title), escaped(&pattern.summary));
    }
    for change in listed_findings(diff) {
        // The second run first: it is the present state.
        let summaries: Vec<String> = change.b.iter().chain(&change.a).map(|side| escaped(&side.summary)).collect();
        let summaries = summaries.join("; before: ");
        let state = change.state.as_str();
        let severity = change.severity().as_str();
        append_line!(
            out,
            "- **{state} {severity}** {}: {summaries}",
            escaped(&name_finding_with_numbers_or_note(change))
        );
    }
    for shift in describe_shifts(diff) {
        append_line!(out, "- **{}**", escaped(shift));
    }
}

/// Writes a table with the time and share of each leg, a part of the path, in both runs. `heading` is that of the first column.
fn write_legs_as_markdown(out: &mut String, heading: &str, legs: impl Iterator<Item = LegCells>) {
    let legs = Table::new(
        &legs.collect::<Vec<_>>(),
        [
            (heading, Text, &|leg| escaped(&leg.place)),
            ("A", Number, &|leg| escaped(&leg.a_time)),
            ("share", Number, &|leg| escaped(&leg.a_share)),
            ("B", Number, &|leg| escaped(&leg.b_time)),
            ("share", Number, &|leg| escaped(&leg.b_share)),
        ],
    );
    out.push('\n');
    write_table(out, &legs);
}

/// Writes the table of all measures.
fn write_measures_as_markdown(out: &mut String, diff: &Diff) {
    let heading = format!("{} interval of B - A", diff.options.confidence_text());
    let measures = Table::new(
        &diff.measures,
        [
            ("measure", Text, &|measure| escaped(&measure.name)),
            ("A", Number, &|measure| measure.unit.format_value(measure.a)),
            ("B", Number, &|measure| measure.unit.format_value(measure.b)),
            ("change", Number, &|measure| measure.change_text()),
            (&heading, Number, &|measure| {
                known_or_dash(measure.interval, |[low, high]| {
                    format!("{} to {}", measure.unit.format_signed(low), measure.unit.format_signed(high))
                })
            }),
            ("verdict", Text, &|measure| verdict_cell(measure, diff)),
        ],
    );
    out.push('\n');
    write_table(out, &measures);
}

/// Verdict of a measure, with its note.
fn verdict_cell(measure: &ComparedMeasure, diff: &Diff) -> String {
    let bold = if measure.verdict.is_change() { "**" } else { "" };
    let verdict = verdict_text(measure, diff);
    match own_note(measure, diff).map(escaped) {
        // Behind a dash, a colon would be odd.
        Some(note) if verdict == NO_VERDICT => note,
        Some(note) => format!("{bold}{verdict}{bold}: {note}"),
        None => format!("{bold}{verdict}{bold}"),
    }
}
