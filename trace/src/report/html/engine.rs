//! Data from inside the engine: the functions it runs, and the request stages in its log.

use maud::{Markup, html};

use super::super::stages::StageTable;
use super::super::table::Kind::{Number, Rid, Text};
use super::super::{Clock, Report, StackLine};
use super::table::table;
use crate::words::{count, duration, known, percent, plural};

/// Maximum number of functions and pairs of stages listed; the JSON has more.
const LIMIT: usize = 12;
/// Maximum number of requests shown stage by stage.
const TABLES: usize = 5;

/// Stack samples by function.
pub(super) fn functions(report: &Report) -> Option<Markup> {
    let roles = report.stacks.as_ref()?;
    Some(html! { @for line in roles { (role(line)) } })
}

fn role(line: &StackLine) -> Markup {
    let columns = [
        ("Function", Rid),
        ("File", Rid),
        ("Innermost", Number),
        ("Anywhere", Number),
        ("Innermost while frames piled up", Number),
    ];
    let rows = line.functions.iter().take(LIMIT).map(|function| {
        [
            function.function.clone(),
            function.file.clone(),
            percent(function.all.own),
            percent(function.all.total),
            known(function.growing, |share| percent(share.own)),
        ]
    });
    html! {
        h3 { (line.role) }
        p.dim { (plural(line.running, "stack")) " of running threads, of " (count(line.stacks)) " read" }
        (table(columns, rows))
    }
}

/// Stages of requests, named by the engine.
pub(super) fn log(report: &Report, clock: &Clock) -> Option<Markup> {
    let log = report.stages.as_ref()?;
    let columns = [
        ("From", Text),
        ("To", Text),
        ("Requests", Number),
        ("p50", Number),
        ("p99", Number),
        ("max", Number),
    ];
    let pairs = log.between.iter().take(LIMIT).map(|pair| {
        let [p50, p99, max] = [pair.ns.p50, pair.ns.p99, pair.ns.max].map(duration);
        [pair.from.clone(), pair.to.clone(), count(pair.ns.count), p50, p99, max]
    });
    Some(html! {
        p {
            (plural(log.logged, "stage")) " of " (plural(log.requests, "request"))
            ", by the engine's own clock; not observed on a socket."
        }
        @if let Some(with) = &log.gap_with_states {
            p {
                "Gaps and the tokenizer's number of request states correlate with " (format!("{:.2}", with.spearman))
                " (Spearman's rank correlation, " (plural(with.n, "request")) ")."
            }
        }
        @for table in log.slowest.iter().take(TABLES) { (request(table, clock)) }
        @if !log.between.is_empty() {
            h3 { "From stage to stage" }
            (table(columns, pairs))
        }
    })
}

fn request(stages: &StageTable, clock: &Clock) -> Markup {
    let columns = [
        ("Stage", Text),
        ("By", Text),
        ("At", Number),
        ("Since the previous", Number),
        ("Tokens", Number),
        ("Pending", Number),
        ("States", Number),
    ];
    let rows = stages.stages.iter().map(|row| {
        [
            format!("{}{}", row.stage, if row.out_of_order { " (out of order)" } else { "" }),
            row.by.clone(),
            clock.time_of_day(row.at_ns).unwrap_or_else(|| duration(row.at_ns)),
            known(row.delta_ns, duration),
            known(row.tokens.map(u64::from), count),
            known(row.pending.map(u64::from), count),
            known(row.states.map(u64::from), count),
        ]
    });
    html! {
        h3.rid { (stages.rid) }
        p.dim { "gap " (duration(stages.gap_ns)) }
        (table(columns, rows))
    }
}
