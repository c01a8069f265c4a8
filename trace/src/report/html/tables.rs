//! Tables behind the charts: losses with their proof, hops, threads, and missed observations.

use maud::{Markup, Render, html};

use super::super::hostile::plain;
use super::super::table::Kind::{Hop, Number, Text};
use super::super::{HopLine, LossList, Report, Spread, brief, path_text};
use super::table::table;
use crate::words::{bytes, count, duration, known, plural, share};

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
        (
            "In flight",
            c.in_flight,
            "not delivered at the end of the capture, or when their request was closed",
        ),
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
    let has_ids = list.lines.iter().any(|line| !line.ids(1).is_empty());
    html! {
        h3 { (heading) }
        p { (plural(list.requests, "request")) ", worst first." }
        div.scroll {
            table {
                thead {
                    tr {
                        th { "Request" }
                        @for name in ["Tokens sent", "Delivered", "Lost", "Chunks"] { th.n { (name) } }
                        th { "Positions in the output, from 1" }
                        @if has_ids { th { "Token ids" } }
                    }
                }
                tbody {
                    @for line in list.lines.iter().take(LOSSY) {
                        tr {
                            td.rid { (line.rid) }
                            td.n { (count(line.tokens_sent)) }
                            td.n { (known(line.tokens_delivered, count)) }
                            td.n { (count(line.tokens)) }
                            td.n { (count(line.chunks)) }
                            td { (line.places(RANGES)) }
                            @if has_ids { td { (line.ids(RANGES)) } }
                        }
                    }
                }
            }
        }
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

pub(super) fn hops(report: &Report) -> Option<Markup> {
    let columns = [
        ("Hop", Hop),
        ("Frames sent", Number),
        ("Received", Number),
        ("Chunks", Number),
        ("Bytes", Number),
        ("Backlog, max", Number),
        ("In libzmq's inbox, max", Number),
        ("In the kernel, max", Number),
        ("Queue wait p50", Number),
        ("p99", Number),
        ("max", Number),
        ("Frames per wakeup, max", Number),
    ];
    let rows = report.hops.iter().map(|hop| {
        let queue_wait = |of: fn(&Spread) -> u64| known(hop.queue_wait_ns.as_ref().map(of), duration).render();
        [
            hop_name(hop),
            known(hop.frames_sent, count).render(),
            known(hop.frames_received, count).render(),
            count(hop.chunks).render(),
            bytes(hop.bytes).render(),
            known(hop.backlog_max_frames, count).render(),
            known(hop.inbox_max_frames, count).render(),
            known(hop.kernel_bytes_max, bytes).render(),
            queue_wait(|s| s.p50),
            queue_wait(|s| s.p99),
            queue_wait(|s| s.max),
            known(hop.wakeup_frames_max.map(u64::from), count).render(),
        ]
    });
    (!report.hops.is_empty()).then(|| table(columns, rows))
}

fn hop_name(hop: &HopLine) -> Markup {
    html! {
        (hop.name)
        @if let Some(workers) = path_text::behind(hop) { br; small.dim { (workers) } }
    }
}

pub(super) fn cpu(report: &Report) -> Option<Markup> {
    let lines = report.cpu.as_ref().filter(|lines| !lines.is_empty())?;
    let columns = [
        ("Thread", Text),
        ("On a CPU", Number),
        ("Waiting for a CPU", Number),
        ("Throttled", Number),
        ("Away from its poll", Number),
        ("Receives frames", Text),
    ];
    let rows = lines.iter().map(|line| {
        let share = |of: Option<f64>| known(of, |share| format!("{:.1} %", 100.0 * share));
        [
            format!("{} {}/{} {}", line.role, line.pid, line.tid, plain(&line.name)),
            share(line.on_cpu),
            share(line.run_wait),
            share(line.throttled),
            share(line.away_from_poll),
            String::from(if line.receives { "yes" } else { "" }),
        ]
    });
    Some(table(columns, rows))
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
