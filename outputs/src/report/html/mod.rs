//! The report as one HTML file for an incident, without scripts or external resources. Request ids may hold anything, so all text is
//! escaped, and the page's policy forbids scripts and loading.

mod charts;
mod plot;
mod tables;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use trace::words::{count, decimal_percent, duration, json_text, percent, plural, share};

use super::brief::{self, unobserved_text as not_observed};
use super::hostile::lines as escape_lines;
use super::judged::headline;
use super::{Clock, EvidenceNumber, FindingLine, Report};

const STYLE: &str = include_str!("style.css");
/// The page runs no script and loads nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// The report as an HTML page.
pub(super) fn render_page(report: &Report, clock: &Clock) -> String {
    let lost = report.losses.confirmed.iter().flat_map(|list| &list.lines);
    let has_token_ids = lost.flat_map(|line| &line.ranges).any(|range| !range.ids.is_empty());
    let headline = headline(report, clock);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width,initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "tokengap: " (headline) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    (page_header(report, clock, &headline))
                    (key_numbers(report))
                    (draw_section("Findings", Some(finding_list(report, clock))))
                    (draw_section("Where TTFT goes on both servers", tables::draw_pair_ttft(report, clock)))
                    (draw_section("Where TTFT goes", tables::draw_ttft(report)))
                    (draw_section("Where a chunk's time goes", tables::draw_path(report)))
                    (draw_section("Worst requests", tables::draw_slowest_requests(report, clock)))
                    (draw_section("Lost tokens", Some(tables::draw_losses(report, clock))))
                    (draw_section("Cost of the streaming mode", tables::draw_mode_table(report)))
                    (draw_section("How long tokens waited", Some(charts::draw_wait_distributions(report))))
                    (draw_section("Over time", Some(charts::draw_time_series_charts(report, clock))))
                    (draw_section("Hops", super::table::hop_table(report).map(tables::draw_table)))
                    (draw_section("CPU", super::table::cpu_table(report).map(tables::draw_table)))
                    (draw_section("Python functions of the engine", tables::draw_python_functions(report)))
                    (draw_section("The engine's own log", tables::draw_engine_log(report, clock)))
                    (draw_section("Limits and cost of the observation", Some(tables::draw_unobserved_limits_and_costs(report))))
                    footer {
                        "Made by tokengap from a " (report.schema) " report. Contains only numbers about requests and tokens: no prompt, no text, "
                        (if has_token_ids { "and token ids of lost tokens only" } else { "no token id" }) "."
                    }
                }
            }
        }
    };
    // Names come from the wire and must not hide or reverse text.
    escape_lines(&page.into_string())
}

/// A section with a heading; nothing if it would be empty.
fn draw_section(heading: &str, body: Option<Markup>) -> Markup {
    html! {
        @if let Some(body) = body.filter(|body| !body.0.is_empty()) {
            section { h2 { (heading) } (body) }
        }
    }
}

/// The head of the page: the verdict, the capture, the worst finding and the engine.
fn page_header(report: &Report, clock: &Clock, headline: &str) -> Markup {
    let engine = brief::describe_engine(report);
    html! {
        header {
            h1 { "tokengap report: " (report.source.kind) " of " (engine) }
            p.verdict.(css_class_of_verdict(report)) { (headline) }
            p { b { "Capture" } " " (clock.describe_capture(report.capture_length_ns())) }
            @if let Some(worst) = report.worst_finding() {
                p { b { "Worst finding" } " " (brief::describe_finding_times(worst, clock)) }
            }
            p { b { "Engine" } " " (engine) ": " (brief::describe_known_losses(report)) }
        }
    }
}

/// Style of the verdict: the severity of the worst finding. Without findings, a run is healthy only if it could have shown all kinds.
fn css_class_of_verdict(report: &Report) -> &'static str {
    match report.worst_finding() {
        Some(worst) => worst.severity.as_str(),
        None if report.judged.iter().all(|judgement| judgement.judged) => "healthy",
        None => "none",
    }
}

/// Key numbers, each with the total it is part of.
fn key_numbers(report: &Report) -> Markup {
    let requests = &report.requests;
    let tokens = &report.tokens;
    let chunks = &report.chunks;
    let itl = &report.itl_ns;
    let gap = report.gap_ns.as_ref();
    let backlogs = report.hops.iter().filter_map(|hop| Some((hop.backlog_max_frames?, &hop.name)));
    // Compares the frames first. The name decides only between hops with equal backlogs.
    let longest_backlog = backlogs.max();
    let receivers = report.cpu.iter().flatten().filter(|thread| thread.receives);
    let busiest = receivers.max_by(|left, right| left.on_cpu.unwrap_or(0.0).total_cmp(&right.on_cpu.unwrap_or(0.0)));
    html! {
        dl.facts {
            (key_number("Requests", &count(requests.seen), &brief::describe_request_outcomes(requests)))
            (key_number(
                "Gap, median",
                &duration_or_unobserved(gap.and_then(|gap| gap.p50)),
                &gap.map_or_else(not_observed, |gap| {
                    let [p90, p99, max] = [gap.p90, gap.p99, gap.max].map(duration_or_unobserved);
                    format!("p90 {p90}, p99 {p99}, max {max}")
                }),
            ))
            (key_number(
                "Tokens sent",
                &count(tokens.sent),
                &format!(
                    "{} received, {} delivered",
                    count_or_unobserved(tokens.received),
                    count_or_unobserved(tokens.delivered)
                ),
            ))
            (key_number(
                "Tokens lost, confirmed",
                &count_or_unobserved(chunks.tokens_lost),
                &match (chunks.dropped_confirmed, chunks.shown_prediction()) {
                    (Some(dropped), _) => {
                        format!("in {} chunks, {} of all", count(dropped), share(dropped, chunks.sent))
                    }
                    (None, Some(predicted)) => format!("{} chunks predicted to be lost", count(predicted)),
                    (None, None) => not_observed(),
                },
            ))
            (key_number(
                "Inter-token latency p99, client",
                &duration_or_unobserved(itl.delivered_by_token.map(|spread| spread.p99)),
                &format!("as the engine sent {}", duration_or_unobserved(itl.sent_by_token.map(|spread| spread.p99))),
            ))
            (key_number(
                "Backlog, max",
                &longest_backlog.map_or_else(not_observed, |(frames, _)| format!("{} frames", count(frames))),
                &longest_backlog.map_or_else(String::new, |(_, name)| name.clone()),
            ))
            (key_number(
                "Busiest consumer, on CPU, mean while sampled",
                &busiest.map_or_else(not_observed, |thread| percent_or_unobserved(thread.on_cpu)),
                &busiest.map_or_else(String::new, |thread| {
                    let [wait, throttled] = [thread.run_wait, thread.throttled].map(percent_or_unobserved);
                    format!("{} {}: {wait} waiting for a CPU, {throttled} throttled", thread.role, thread.tid)
                }),
            ))
        }
    }
}

/// One of the key numbers, with a note.
fn key_number(name: &str, value: &str, note: &str) -> Markup {
    html! { div { dt { (name) } dd { (value) small { (note) } } } }
}

/// A number, or that it was not observed.
fn count_or_unobserved(n: Option<u64>) -> String {
    n.map_or_else(not_observed, count)
}

/// A duration in nanoseconds, or that it was not observed.
fn duration_or_unobserved(ns: Option<u64>) -> String {
    ns.map_or_else(not_observed, duration)
}

/// A share as percent, or that it was not observed.
fn percent_or_unobserved(share: Option<f64>) -> String {
    share.map_or_else(not_observed, percent)
}

/// The list of findings.
fn finding_list(report: &Report, clock: &Clock) -> Markup {
    html! {
        @if report.findings.is_empty() {
            p { "None." }
        } @else {
            ol.findings {
                @for (finding, number) in report.findings.iter().zip(1..) { (finding_item(number, finding, clock)) }
            }
        }
    }
}

/// An item of the list of findings, to which the marks in the charts link.
fn finding_item(number: usize, finding: &FindingLine, clock: &Clock) -> Markup {
    let severity = finding.severity.as_str();
    html! {
        li.(severity) id={ "finding-" (number) } {
            h3 { (number) ". " span.severity { (severity) } " " (finding.kind) }
            p { (finding.summary) }
            p.dim {
                (brief::describe_finding_times(finding, clock))
                @if let Some(place) = &finding.hop { ", " (brief::describe_place(place)) }
                @if !finding.rid.is_empty() { ", worst " span.rid { (finding.rid) } }
            }
            @if let Some(advice) = &finding.advice {
                p.advice { (advice) }
            }
            @if !finding.evidence.is_empty() {
                dl.evidence {
                    @for (name, value) in &finding.evidence {
                        div { dt { (name) } dd { (format_evidence(name, value)) } }
                    }
                }
            }
        }
    }
}

/// Formats a piece of evidence for people; names of durations end in `_ns`.
fn format_evidence(name: &str, value: &serde_json::Value) -> String {
    let serde_json::Value::Number(number) = value else { return json_text(value) };
    match EvidenceNumber::of_evidence(name, number) {
        EvidenceNumber::Duration(ns) => duration(ns),
        EvidenceNumber::Bytes(bytes) => plural(bytes, "byte"),
        EvidenceNumber::Identifier(id) => id.to_string(),
        EvidenceNumber::Count(number) => count(number),
        EvidenceNumber::Share(share) => decimal_percent(share),
        EvidenceNumber::Other { number, unit } => format!("{number:.3}{unit}"),
    }
}
