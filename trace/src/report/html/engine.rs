//! Data from inside the engine: the functions it runs, and the request stages in its log.

use maud::{Markup, html};

use super::super::stages::StageTable;
use super::super::table::Kind::{Number, Text};
use super::super::{Clock, Report, StackLine};
use super::tables::{draw, table};
use crate::words::{count, duration, plural};

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
    html! {
        h3 { (line.role) }
        p.dim { (plural(line.running, "stack")) " of running threads, of " (count(line.stacks)) " read" }
        (draw(super::super::table::functions(line, LIMIT)))
    }
}

/// Stages of requests, named by the engine.
pub(super) fn log(report: &Report, clock: &Clock) -> Option<Markup> {
    let log = report.stages.as_ref()?;
    let columns =
        [("From", Text), ("To", Text), ("Requests", Number), ("p50", Number), ("p99", Number), ("max", Number)];
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
                "Gaps and the receiver's number of request states correlate with " (format!("{:.2}", with.spearman))
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
    html! {
        h3.rid { (stages.rid) }
        p.dim { "gap " (duration(stages.gap_ns)) }
        (draw(super::super::table::stages(stages, clock)))
    }
}
