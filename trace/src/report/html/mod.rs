//! The report as one HTML file for an incident, without scripts or external resources. Request ids may hold anything, so all text is
//! escaped, and the page's policy forbids scripts and loading.

mod engine;
mod over_time;
mod path;
mod plot;
mod requests;
mod spread;
mod tables;

use std::fmt::Write as _;

use super::hostile::Html;
use super::{Clock, FindingLine, Report, brief};
use crate::words::{count, duration, share};

const STYLE: &str = include_str!("style.css");

pub(super) fn render(report: &Report, clock: &Clock) -> String {
    let verdict = brief::verdict(report);
    let mut out = String::with_capacity(1 << 17);
    let _ = write!(
        out,
        concat!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">",
            r#"<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">"#,
            r#"<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="color-scheme" content="light dark">"#,
            "<title>tokengap: {}</title><style>{}</style></head><body><main>\n"
        ),
        Html(&verdict),
        STYLE
    );
    head(&mut out, report, clock, &verdict);
    facts(&mut out, report);
    section(&mut out, "Findings", &findings(report, clock));
    section(&mut out, "Where the time goes", &path::draw(report));
    section(&mut out, "Worst requests", &requests::table(report, clock));
    section(&mut out, "Lost tokens", &tables::losses(report));
    section(&mut out, "Cost of the streaming mode", &tables::modes(report));
    section(&mut out, "How long tokens waited", &spread::drawings(report));
    section(&mut out, "Over time", &over_time::drawings(report, clock));
    section(&mut out, "Hops", &tables::hops(report));
    section(&mut out, "CPU", &tables::cpu(report));
    section(&mut out, "Python functions of the engine", &engine::functions(report));
    section(&mut out, "The engine's own log", &engine::log(report, clock));
    section(&mut out, "Limits and cost of the observation", &tables::own(report));
    let lost = report.losses.confirmed.iter().flat_map(|list| &list.lines);
    let named = lost.flat_map(|line| &line.ranges).any(|range| !range.ids.is_empty());
    let _ = write!(
        out,
        "<footer>Made by tokengap from a {} report. Contains only numbers about requests and tokens: no prompt, no text, {}.</footer>\n</main></body></html>\n",
        Html(&report.schema),
        if named {
            "and token ids of lost tokens only"
        } else {
            "no token id"
        }
    );
    out
}

fn section(out: &mut String, heading: &str, body: &str) {
    if !body.is_empty() {
        let _ = write!(out, "<section><h2>{heading}</h2>\n{body}</section>\n");
    }
}

fn head(out: &mut String, report: &Report, clock: &Clock, verdict: &str) {
    let severity = match report.findings.first() {
        Some(worst) => worst.severity.as_str(),
        None if report.requests.seen == 0 => "none",
        None => "healthy",
    };
    let window = report.window_ns[1];
    let when = match (clock.wall(0), clock.wall(window)) {
        (Some(from), Some(to)) => format!("{from} to {to} ({})", duration(window)),
        _ => format!(
            "{}; the wall clock is unknown, so times are relative to the start of the capture",
            duration(window)
        ),
    };
    let _ = write!(
        out,
        "<header><h1>tokengap report: {} of {}</h1><p class=\"verdict {severity}\">{}</p><p><b>When</b> {}</p>",
        Html(&report.source.kind),
        Html(&brief::engine(report)),
        Html(verdict),
        Html(&when)
    );
    if let Some(worst) = report.findings.first() {
        let _ = write!(out, "<p><b>Since</b> {}</p>", Html(&clock.both(worst.at_ns)));
    }
    let _ = writeln!(
        out,
        "<p><b>Engine</b> {}: {}</p></header>",
        Html(&brief::engine(report)),
        Html(&brief::known_to_lose(report))
    );
}

/// A key number with the total it is part of.
fn fact(out: &mut String, name: &str, value: &str, note: &str) {
    let _ = write!(
        out,
        "<div><dt>{name}</dt><dd>{}<small>{}</small></dd></div>",
        Html(value),
        Html(note)
    );
}

fn facts(out: &mut String, report: &Report) {
    let not_observed = || String::from("not observed");
    out.push_str("<dl class=\"facts\">");
    let requests = &report.requests;
    fact(
        out,
        "Requests",
        &count(requests.seen),
        &format!(
            "{} finished, {} aborted, {} live",
            count(requests.finished),
            count(requests.aborted),
            count(requests.live)
        ),
    );
    let gap = report.gap_ns.as_ref();
    let d = |ns: Option<u64>| ns.map_or_else(not_observed, duration);
    fact(
        out,
        "Gap, median",
        &d(gap.and_then(|g| g.p50)),
        &gap.map_or_else(not_observed, |g| {
            format!("p90 {}, p99 {}, max {}", d(g.p90), d(g.p99), d(g.max))
        }),
    );
    let tokens = &report.tokens;
    let reached = |n: Option<u64>| n.map_or_else(not_observed, count);
    fact(
        out,
        "Tokens sent",
        &count(tokens.sent),
        &format!(
            "{} received, {} delivered",
            reached(tokens.received),
            reached(tokens.delivered)
        ),
    );
    let chunks = &report.chunks;
    fact(
        out,
        "Tokens lost, confirmed",
        &reached(chunks.tokens_lost),
        &match (chunks.dropped_confirmed, chunks.dropped_predicted) {
            (Some(n), _) => format!("in {} chunks, {} of all", count(n), share(n, chunks.sent)),
            (None, Some(n)) => format!("{} chunks predicted to be lost", count(n)),
            (None, None) => not_observed(),
        },
    );
    let itl = &report.itl_ns;
    let p99 = |of: Option<super::Spread>| of.map_or_else(not_observed, |s| duration(s.p99));
    fact(
        out,
        "Inter-token latency p99, client",
        &p99(itl.delivered_by_token),
        &format!("as the engine sent {}", p99(itl.sent_by_token)),
    );
    let max = report
        .hops
        .iter()
        .filter_map(|h| Some((h.backlog_max_frames?, &h.name)))
        .max();
    fact(
        out,
        "Backlog, max",
        &max.map_or_else(not_observed, |(n, _)| format!("{} frames", count(n))),
        &max.map_or_else(String::new, |(_, name)| name.clone()),
    );
    let busiest = report.cpu.iter().flatten().filter(|c| c.receives);
    let busiest = busiest.max_by(|a, b| a.on_cpu.unwrap_or(0.0).total_cmp(&b.on_cpu.unwrap_or(0.0)));
    let percent = |s: Option<f64>| s.map_or_else(not_observed, crate::words::percent);
    fact(
        out,
        "Busiest consumer, on CPU",
        &busiest.map_or_else(not_observed, |c| percent(c.on_cpu)),
        &busiest.map_or_else(String::new, |c| {
            format!(
                "{} {}: {} waiting for a CPU, {} throttled",
                c.role,
                c.tid,
                percent(c.run_wait),
                percent(c.throttled)
            )
        }),
    );
    out.push_str("</dl>\n");
}

fn findings(report: &Report, clock: &Clock) -> String {
    if report.findings.is_empty() {
        return String::from("<p>None.</p>");
    }
    let mut out = String::from("<ol class=\"findings\">\n");
    for (n, finding) in report.findings.iter().enumerate() {
        one_finding(&mut out, n + 1, finding, clock);
    }
    out.push_str("</ol>\n");
    out
}

fn one_finding(out: &mut String, number: usize, finding: &FindingLine, clock: &Clock) {
    let severity = finding.severity.as_str();
    let _ = write!(
        out,
        "<li id=\"finding-{number}\" class=\"{severity}\"><h3>{number}. <span class=\"severity\">{severity}</span> {}</h3><p>{}</p><p class=\"dim\">Since {}",
        Html(&finding.kind),
        Html(&finding.summary),
        Html(&clock.both(finding.at_ns))
    );
    if let Some(hop) = &finding.hop {
        let _ = write!(out, ", on {}", Html(hop));
    }
    if !finding.rid.is_empty() {
        let _ = write!(out, ", worst <span class=\"rid\">{}</span>", Html(&finding.rid));
    }
    out.push_str("</p>");
    if let Some(advice) = &finding.advice {
        let _ = write!(out, "<p class=\"advice\">{}</p>", Html(advice));
    }
    if !finding.evidence.is_empty() {
        out.push_str("<dl class=\"evidence\">");
        for (name, value) in &finding.evidence {
            let _ = write!(
                out,
                "<div><dt>{}</dt><dd>{}</dd></div>",
                Html(name),
                Html(&evidence(name, value))
            );
        }
        out.push_str("</dl>");
    }
    out.push_str("</li>\n");
}

/// Formats a piece of evidence for people; names of durations end in `_ns`.
pub(super) fn evidence(name: &str, value: &serde_json::Value) -> String {
    match (value.as_u64(), value.as_f64(), value.as_str()) {
        (Some(ns), _, _) if name.ends_with("_ns") => duration(ns),
        (Some(n), _, _) => count(n),
        (None, Some(n), _) => format!("{n:.3}"),
        (_, _, Some(text)) => text.to_owned(),
        _ => value.to_string(),
    }
}
