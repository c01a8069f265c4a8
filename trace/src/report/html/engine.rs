//! Data from inside the engine: the functions it runs, and the request stages in its log.

use std::fmt::Write as _;

use super::super::hostile::Html;
use super::super::stages::StageTable;
use super::super::{Clock, Report, StackLine};
use crate::words::{count, duration, percent, plural};

/// Maximum number of functions and pairs of stages listed; the JSON has more.
const LIMIT: usize = 12;
/// Maximum number of requests shown stage by stage.
const TABLES: usize = 5;

/// Stack samples by function.
pub(super) fn functions(report: &Report) -> String {
    report.stacks.iter().flatten().map(role).collect()
}

fn role(line: &StackLine) -> String {
    let mut out = format!(
        concat!(
            "<h3>{}</h3><p class=\"dim\">{} of running threads, of {} read</p><div class=\"scroll\"><table><thead><tr><th>Function</th>",
            "<th>File</th><th class=\"n\">Innermost</th><th class=\"n\">Anywhere</th><th class=\"n\">Innermost while frames piled up</th>",
            "</tr></thead><tbody>\n"
        ),
        Html(&line.role),
        plural(line.running, "stack"),
        count(line.stacks)
    );
    for function in line.functions.iter().take(LIMIT) {
        let growing = function
            .growing
            .map_or_else(|| String::from("-"), |share| percent(share.own));
        let _ = writeln!(
            out,
            "<tr><td class=\"rid\">{}</td><td class=\"rid\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{growing}</td></tr>",
            Html(&function.function),
            Html(&function.file),
            percent(function.all.own),
            percent(function.all.total)
        );
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// Stages of requests, named by the engine.
pub(super) fn log(report: &Report, clock: &Clock) -> String {
    let Some(log) = &report.stages else {
        return String::new();
    };
    let mut out = format!(
        "<p>{} of {}, by the engine's own clock; not observed on a socket.</p>\n",
        plural(log.logged, "stage"),
        plural(log.requests, "request")
    );
    if let Some(with) = &log.gap_with_states {
        let _ = writeln!(
            out,
            "<p>Gaps and the tokenizer's number of request states correlate with {:.2} (Spearman's rank correlation, {}).</p>",
            with.spearman,
            plural(with.n, "request")
        );
    }
    for table in log.slowest.iter().take(TABLES) {
        request(&mut out, table, clock);
    }
    if !log.between.is_empty() {
        out.push_str(concat!(
            "<h3>From stage to stage</h3><div class=\"scroll\"><table><thead><tr><th>From</th><th>To</th><th class=\"n\">Requests</th>",
            "<th class=\"n\">p50</th><th class=\"n\">p99</th><th class=\"n\">max</th></tr></thead><tbody>\n"
        ));
        for pair in log.between.iter().take(LIMIT) {
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
                Html(&pair.from),
                Html(&pair.to),
                count(pair.ns.count),
                duration(pair.ns.p50),
                duration(pair.ns.p99),
                duration(pair.ns.max)
            );
        }
        out.push_str("</tbody></table></div>\n");
    }
    out
}

fn request(out: &mut String, table: &StageTable, clock: &Clock) {
    let _ = write!(
        out,
        concat!(
            "<h3 class=\"rid\">{}</h3><p class=\"dim\">gap {}</p><div class=\"scroll\"><table><thead><tr><th>Stage</th><th>By</th>",
            "<th class=\"n\">At</th><th class=\"n\">Since the previous</th><th class=\"n\">Tokens</th><th class=\"n\">Pending</th>",
            "<th class=\"n\">States</th></tr></thead><tbody>\n"
        ),
        Html(&table.rid),
        duration(table.gap_ns)
    );
    let opt = |n: Option<u32>| n.map_or_else(|| String::from("-"), |n| count(n.into()));
    for row in &table.stages {
        let at = clock.time_of_day(row.at_ns).unwrap_or_else(|| duration(row.at_ns));
        let _ = writeln!(
            out,
            concat!(
                "<tr><td>{}{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>",
                "<td class=\"n\">{}</td><td class=\"n\">{}</td></tr>"
            ),
            Html(&row.stage),
            if row.out_of_order { " (out of order)" } else { "" },
            Html(&row.by),
            at,
            row.delta_ns.map_or_else(|| String::from("-"), duration),
            opt(row.tokens),
            opt(row.pending),
            opt(row.states)
        );
    }
    out.push_str("</tbody></table></div>\n");
}
