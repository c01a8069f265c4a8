//! Tables: attribution of time, losses with their proof, the cost of the streaming mode, and missed observations.

use maud::{Markup, Render, html};

use super::super::table::Kind::{self, Hop, Number};
use super::super::table::{self as report_table, Table};
use super::super::{LossList, Report, bar, brief};
use crate::words::{bytes, count, duration, known, percent, plural, share};

/// Renders a table that scrolls sideways if it is wider than the page. Values that are text are escaped.
pub(super) fn table<R: Render, const N: usize>(
    columns: [(&str, Kind); N],
    rows: impl IntoIterator<Item = [R; N]>,
) -> Markup {
    let class = |kind: Kind| match kind {
        Kind::Text => None,
        Number => Some("n"),
        Kind::Rid => Some("rid"),
        Hop => Some("hop"),
    };
    html! {
        div.scroll {
            table {
                thead {
                    tr {
                        @for (name, kind) in columns {
                            th class=[class(kind).filter(|_| kind == Number)] { (name) }
                        }
                    }
                }
                tbody {
                    @for row in rows {
                        tr {
                            @for (cell, (_, kind)) in row.into_iter().zip(columns) {
                                td class=[class(kind)] { (cell) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Renders a table of the report.
pub(super) fn draw<const N: usize>(of: Table<N>) -> Markup {
    table(of.columns, of.rows)
}

/// Colours of segments; further ones share the last.
const COLOURS: [&str; 6] = ["c0", "c1", "c2", "c3", "c4", "c5"];

pub(super) fn path(report: &Report) -> Option<Markup> {
    let segments = bar::segments(&report.path);
    let colour = |place: usize| COLOURS[place.min(COLOURS.len() - 1)];
    (!segments.is_empty()).then(|| {
        html! {
            p.shares {
                @for (place, part) in segments.iter().enumerate() {
                    span.bar.(colour(place)) style={ "flex:" (format!("{:.4}", part.share)) }
                        title={ (percent(part.share)) " " (part.name) } {}
                }
            }
            p {
                @for (place, part) in segments.iter().enumerate() {
                    span.key.(colour(place)) {} " " (percent(part.share)) " " (part.name) " "
                }
            }
            (draw(report_table::path(&report.path)))
        }
    })
}

/// Chunks by outcome, with the evidence for it.
pub(super) fn losses(report: &Report) -> Markup {
    let (c, losses) = (&report.chunks, &report.losses);
    let predicted = losses.predicted.as_ref().filter(|_| losses.confirmed.is_none());
    let outcomes = [
        (
            "Dropped, confirmed",
            c.dropped_confirmed,
            "proven: a later delivery of the same request lacks them, and the counts confirm it",
        ),
        (
            "Dropped, predicted",
            c.dropped_predicted,
            "received in one wakeup with another chunk of their request, on a release that keeps only the last",
        ),
        (
            "Merged",
            c.merged,
            "delivered merged with another chunk: no token is lost, but they arrive late and in bursts",
        ),
        ("In flight", c.in_flight, "not delivered at the end of the capture, or when their request was closed"),
        (
            "Unjudged",
            c.unjudged,
            "observations were missed during their delivery, or counts alone do not show its content",
        ),
    ];
    html! {
        table {
            tbody {
                @for (name, chunks, proof) in outcomes {
                    tr {
                        th { (name) }
                        td.n { (known(chunks, |n| format!("{} ({})", count(n), share(n, c.sent)))) }
                        td { (if chunks.is_some() { proof } else { "not observable with the attached probes" }) }
                    }
                }
                tr {
                    th { "Missing on the wire" }
                    td.n { (count(report.tokens.missing_on_wire)) }
                    td { "tokens that were sent according to a stream's own counts but that no frame carried" }
                }
            }
        }
        @if let Some(list) = &losses.confirmed {
            (affected_requests(list, "Which tokens were lost: confirmed"))
        }
        @if let Some(list) = predicted {
            (affected_requests(list, "Which tokens are expected to be lost: predicted"))
        }
        @if let Some(calls) = &report.tool_calls {
            h3 { "Tool calls of responses" }
            p { (calls.summary()) }
            ul {
                @for (rid, explanation) in calls.notable() {
                    li { code { (rid) } ": " (explanation) }
                }
            }
        }
    }
}

/// Maximum number of requests listed with missing positions; the JSON lists more.
const LOSSY: usize = 50;
/// Maximum number of ranges and ids per request.
const RANGES: usize = 40;

fn affected_requests(list: &LossList, heading: &str) -> Markup {
    if list.lines.is_empty() {
        return Markup::default();
    }
    html! {
        h3 { (heading) }
        p { (plural(list.requests, "request")) ", worst first." }
        (draw(report_table::losses(list, LOSSY, RANGES)))
        @if list.lines.len() > LOSSY {
            p.dim { "The JSON lists " (count(list.lines.len() as u64)) "." }
        }
    }
}

/// Ids and bytes on each hop, with the cost of the other mode.
pub(super) fn modes(report: &Report) -> Option<Markup> {
    let modes = &report.modes;
    let columns = [
        ("Where", Hop),
        ("Tokens", Number),
        ("Ids listed", Number),
        ("Repeats", Number),
        ("Bytes", Number),
        ("Bytes per token", Number),
        ("New ids only, estimate", Number),
        ("All ids so far, estimate", Number),
    ];
    let mut lines = modes.hops.iter().chain(&modes.client).peekable();
    lines.peek()?;
    let rows = lines.map(|line| {
        [
            line.name.clone(),
            count(line.tokens),
            count(line.ids),
            count(line.ids_repeated),
            known(line.bytes, bytes),
            known(line.bytes_per_token, |n| format!("{n:.0}")),
            known(line.bytes_if_incremental_estimate, bytes),
            known(line.bytes_if_cumulative_estimate, bytes),
        ]
    });
    Some(html! {
        p.dim { "Estimates assume " (modes.bytes_per_id) " bytes per id." }
        (table(columns, rows))
    })
}

pub(super) fn own(report: &Report) -> Markup {
    let own = &report.own;
    html! {
        ul {
            @for what in brief::not_observed(report) {
                li { "Not observed: " (what) "." }
            }
            @for failure in brief::degraded(report) {
                li { "Unavailable or failed: " (failure) "." }
            }
            @for (name, limit, times) in brief::limits_reached(report) {
                li { "The limit " (name) " of " (count(limit)) " was reached " (plural(times, "time")) "." }
            }
            li {
                "tokengap observed " (plural(own.events, "event")) " and missed " (count(own.missed())) "; "
                (plural(own.frames_undecoded, "frame")) " could not be read"
                @if let Some(ns) = own.cpu_ns { "; it used " (duration(ns)) " of CPU" }
                @if let Some(n) = own.rss_bytes { " and " (bytes(n)) " of memory" }
                "."
            }
        }
    }
}
