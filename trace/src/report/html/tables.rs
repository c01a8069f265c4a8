//! Tables behind the charts: losses with their proof, hops, threads, and missed observations.

use std::fmt::Write as _;

use super::super::hostile::{Html, plain};
use super::super::{HopLine, LossList, Report, brief, path_text};
use crate::words::{bytes, count, duration, plural, share};

fn opt(n: Option<u64>) -> String {
    n.map_or_else(|| String::from("-"), count)
}

/// Chunks by outcome, with the evidence for it.
pub(super) fn losses(report: &Report) -> String {
    let c = &report.chunks;
    let mut out = String::from("<table><tbody>\n");
    let mut row = |name: &str, n: Option<u64>, proof: &str| {
        let (value, proof) = match n {
            Some(n) => (format!("{} ({})", count(n), share(n, c.sent)), proof),
            None => (String::from("-"), "not observable with the attached probes"),
        };
        let _ = writeln!(
            out,
            "<tr><th>{name}</th><td class=\"n\">{value}</td><td>{proof}</td></tr>"
        );
    };
    row(
        "Dropped, confirmed",
        c.dropped_confirmed,
        "proven: a later delivery of the same request lacks them, and the counts confirm it",
    );
    row(
        "Dropped, predicted",
        c.dropped_predicted,
        "received in one wakeup with another chunk of their request, on a release that keeps only the last",
    );
    row(
        "Merged",
        c.merged,
        "delivered merged with another chunk: no token is lost, but they arrive late and in bursts",
    );
    row(
        "In flight",
        c.in_flight,
        "not delivered at the end of the capture, or when their request was closed",
    );
    row(
        "Unjudged",
        c.unjudged,
        "observations were missed during their delivery, or counts alone do not show its content",
    );
    let wire = report.tokens.missing_on_wire;
    let _ = writeln!(
        out,
        "<tr><th>Missing on the wire</th><td class=\"n\">{}</td><td>tokens that were sent according to a stream's own counts but that no frame carried</td></tr></tbody></table>",
        count(wire)
    );
    let losses = &report.losses;
    if let Some(list) = &losses.confirmed {
        affected_requests(&mut out, list, "Which tokens were lost: confirmed");
    }
    if let Some(list) = losses.predicted.as_ref().filter(|_| losses.confirmed.is_none()) {
        affected_requests(&mut out, list, "Which tokens are expected to be lost: predicted");
    }
    out
}

/// Maximum number of requests listed with missing positions; the JSON lists more.
const LOSSY: usize = 50;
/// Maximum number of ranges and ids per request.
const RANGES: usize = 40;

fn affected_requests(out: &mut String, list: &LossList, heading: &str) {
    if list.lines.is_empty() {
        return;
    }
    let ids = list.lines.iter().any(|line| !line.ids(1).is_empty());
    let _ = write!(
        out,
        concat!(
            "<h3>{}</h3><p>{}, worst first.</p><div class=\"scroll\"><table><thead><tr><th>Request</th><th class=\"n\">Tokens sent</th>",
            "<th class=\"n\">Delivered</th><th class=\"n\">Lost</th><th class=\"n\">Chunks</th><th>Positions in the output, from 1</th>{}",
            "</tr></thead><tbody>\n"
        ),
        heading,
        plural(list.requests, "request"),
        if ids { "<th>Token ids</th>" } else { "" }
    );
    for line in list.lines.iter().take(LOSSY) {
        let _ = write!(
            out,
            "<tr><td class=\"rid\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td>",
            Html(&line.rid),
            count(line.tokens_sent),
            opt(line.tokens_delivered),
            count(line.tokens),
            count(line.chunks),
            line.places(RANGES)
        );
        if ids {
            let _ = write!(out, "<td>{}</td>", line.ids(RANGES));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    if list.lines.len() > LOSSY {
        let _ = writeln!(
            out,
            "<p class=\"dim\">The JSON lists {}.</p>",
            count(list.lines.len() as u64)
        );
    }
}

/// Ids and bytes on each hop, with the cost of the other mode.
pub(super) fn modes(report: &Report) -> String {
    let modes = &report.modes;
    if modes.hops.is_empty() && modes.client.is_none() {
        return String::new();
    }
    let mut out = format!(
        concat!(
            "<p class=\"dim\">Estimates assume {} bytes per id.</p><div class=\"scroll\"><table><thead><tr><th>Where</th>",
            "<th class=\"n\">Tokens</th><th class=\"n\">Ids listed</th><th class=\"n\">Repeats</th><th class=\"n\">Bytes</th>",
            "<th class=\"n\">Bytes per token</th><th class=\"n\">New ids only, estimate</th><th class=\"n\">All ids so far, estimate</th>",
            "</tr></thead><tbody>\n"
        ),
        modes.bytes_per_id
    );
    for line in modes.hops.iter().chain(&modes.client) {
        let size = |n: Option<u64>| n.map_or_else(|| String::from("-"), bytes);
        let _ = write!(out, "<tr><td class=\"hop\">{}</td>", Html(&line.name));
        for cell in [
            count(line.tokens),
            count(line.ids),
            count(line.ids_repeated),
            size(line.bytes),
            line.bytes_per_token
                .map_or_else(|| String::from("-"), |n| format!("{n:.0}")),
            size(line.bytes_if_incremental_estimate),
            size(line.bytes_if_cumulative_estimate),
        ] {
            let _ = write!(out, "<td class=\"n\">{cell}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

pub(super) fn hops(report: &Report) -> String {
    if report.hops.is_empty() {
        return String::new();
    }
    let mut out = String::from(concat!(
        "<div class=\"scroll\"><table><thead><tr><th>Hop</th><th class=\"n\">Frames sent</th><th class=\"n\">Received</th>",
        "<th class=\"n\">Chunks</th><th class=\"n\">Bytes</th><th class=\"n\">Backlog, max</th><th class=\"n\">In libzmq's inbox, max</th>",
        "<th class=\"n\">In the kernel, max</th><th class=\"n\">Queue wait p50</th><th class=\"n\">p99</th><th class=\"n\">max</th>",
        "<th class=\"n\">Frames per wakeup, max</th></tr></thead><tbody>\n"
    ));
    for hop in &report.hops {
        let queue_wait = |of: fn(&super::super::Spread) -> u64| {
            hop.queue_wait_ns
                .as_ref()
                .map_or_else(|| String::from("-"), |s| duration(of(s)))
        };
        let _ = write!(out, "<tr><td class=\"hop\">{}{}</td>", Html(&hop.name), workers(hop));
        for cell in [
            opt(hop.frames_sent),
            opt(hop.frames_received),
            count(hop.chunks),
            bytes(hop.bytes),
            opt(hop.backlog_max_frames),
            opt(hop.inbox_max_frames),
            hop.kernel_bytes_max.map_or_else(|| String::from("-"), bytes),
            queue_wait(|s| s.p50),
            queue_wait(|s| s.p99),
            queue_wait(|s| s.max),
            opt(hop.wakeup_frames_max.map(u64::from)),
        ] {
            let _ = write!(out, "<td class=\"n\">{cell}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

fn workers(hop: &HopLine) -> String {
    path_text::behind(hop).map_or_else(String::new, |workers| {
        format!("<br><small class=\"dim\">{workers}</small>")
    })
}

pub(super) fn cpu(report: &Report) -> String {
    let Some(lines) = report.cpu.as_ref().filter(|lines| !lines.is_empty()) else {
        return String::new();
    };
    let mut out = String::from(concat!(
        "<div class=\"scroll\"><table><thead><tr><th>Thread</th><th class=\"n\">On a CPU</th><th class=\"n\">Waiting for a CPU</th>",
        "<th class=\"n\">Throttled</th><th class=\"n\">Away from its poll</th><th>Receives frames</th></tr></thead><tbody>\n"
    ));
    for line in lines {
        let share = |of: Option<f64>| of.map_or_else(|| String::from("-"), |s| format!("{:.1} %", 100.0 * s));
        let name = format!("{} {}/{} {}", line.role, line.pid, line.tid, plain(&line.name));
        let _ = write!(out, "<tr><td>{}</td>", Html(&name));
        for cell in [line.on_cpu, line.run_wait, line.throttled, line.away_from_poll].map(share) {
            let _ = write!(out, "<td class=\"n\">{cell}</td>");
        }
        let _ = writeln!(out, "<td>{}</td></tr>", if line.receives { "yes" } else { "" });
    }
    out.push_str("</tbody></table></div>\n");
    out
}

pub(super) fn own(report: &Report) -> String {
    let own = &report.own;
    let mut out = String::from("<ul>\n");
    for what in brief::not_observed(report) {
        let _ = writeln!(out, "<li>Not observed: {}.</li>", Html(what));
    }
    for failure in brief::degraded(report) {
        let _ = writeln!(out, "<li>Unavailable or failed: {}.</li>", Html(&failure));
    }
    for (name, limit, times) in brief::limits_reached(report) {
        let _ = writeln!(
            out,
            "<li>The limit {} of {} was reached {}.</li>",
            Html(name),
            count(limit),
            plural(times, "time")
        );
    }
    let _ = write!(
        out,
        "<li>tokengap observed {} and missed {}; {} could not be read",
        plural(own.events, "event"),
        count(own.missed()),
        plural(own.frames_undecoded, "frame")
    );
    if let Some(ns) = own.cpu_ns {
        let _ = write!(out, "; it used {} of CPU", duration(ns));
    }
    if let Some(n) = own.rss_bytes {
        let _ = write!(out, " and {} of memory", bytes(n));
    }
    out.push_str(".</li>\n</ul>\n");
    out
}
