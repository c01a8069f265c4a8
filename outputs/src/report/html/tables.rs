//! Tables: attribution of time, the slowest requests, losses with their proof, the cost of the streaming mode, missed observations, and
//! data from inside the engine.

use maud::{Markup, Render, html};
use trace::stats::Spread;
use trace::words::{bytes, count, duration, known_or_dash, percent, plural, share};

use super::super::bar::Segment;
use super::super::table::CellKind::{self, Hop, Number, Rid, Text};
use super::super::table::{self as report_table, Table};
use super::super::tool_calls::ExplainedCalls;
use super::super::{Clock, LossList, ModeLine, Report, SlowLine, TtftReport, bar, brief};
use super::plot::coordinate;

/// Style of a cell; `None` for text.
fn css_class_of_cell(kind: CellKind) -> Option<&'static str> {
    match kind {
        Text => None,
        Number => Some("n"),
        Rid => Some("rid"),
        Hop => Some("hop"),
    }
}

/// Style of a heading. Only one of numbers has the style of its cells, which aligns it to the right.
fn css_class_of_heading(kind: CellKind) -> Option<&'static str> {
    if kind == Number { css_class_of_cell(kind) } else { None }
}

/// A table with more columns than this is styled as wide.
const NARROW_COLUMNS: usize = 6;

/// Renders a table; in a narrow page, each row becomes a paragraph of labelled values. Values that are text are escaped.
pub(super) fn draw_table<R: Render, const N: usize>(Table { columns, rows }: Table<'_, N, R>) -> Markup {
    let is_wide = N > NARROW_COLUMNS;
    html! {
        div.scroll.wide[is_wide] {
            table {
                thead {
                    tr {
                        @for (name, kind) in columns {
                            th class=[css_class_of_heading(kind)] { (name) }
                        }
                    }
                }
                tbody {
                    @for row in rows {
                        tr {
                            @for (cell, (name, kind)) in row.into_iter().zip(columns) {
                                td class=[css_class_of_cell(kind)] data-label=(name) { (cell) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Colours of segments; further ones share the last.
const COLOURS: [&str; 6] = ["c0", "c1", "c2", "c3", "c4", "c5"];

/// Where a chunk's time goes; `None` if no leg was observed.
pub(super) fn draw_path(report: &Report) -> Option<Markup> {
    let segments = bar::path_segments(&report.path);
    (!segments.is_empty()).then(|| html! { (draw_share_bar(&segments)) (draw_table(report_table::path_table(report))) })
}

/// Where the time to first token goes on both servers of a pair; `None` without one.
pub(super) fn draw_pair_ttft(report: &Report, clock: &Clock) -> Option<Markup> {
    let pair = report.pair.as_ref()?;
    let no_limit = usize::MAX;
    Some(html! {
        p { b { (pair.headline) } }
        @for line in pair.describe_in_paragraphs() { p { (line) } }
        (draw_table(report_table::pair_table(&pair.legs)))
        @if !pair.slowest.is_empty() {
            h3 { "Slowest requests on both servers" }
            (draw_table(report_table::pair_request_table(&pair.slowest, clock, no_limit)))
        }
    })
}

/// Where the time to first token goes, for the largest group of requests with the same observed moments; `None` if none was observed.
pub(super) fn draw_ttft(report: &Report) -> Option<Markup> {
    let main = report.ttft.as_ref().and_then(TtftReport::main_group)?;
    Some(html! {
        p { (brief::describe_ttft(main)) @for line in brief::describe_ttft_caveats(report) { "; " (line) } }
        (draw_share_bar(&main.segments()))
        (draw_table(report_table::ttft_table(main)))
    })
}

/// Colour of the segment with this index.
fn colour_class(index: usize) -> &'static str {
    COLOURS[index.min(COLOURS.len() - 1)]
}

/// Parts of a whole as a bar with a legend.
fn draw_share_bar(segments: &[Segment]) -> Markup {
    html! {
        p.shares {
            @for (index, part) in segments.iter().enumerate() {
                span.bar.(colour_class(index)) style={ "flex:" (format!("{:.4}", part.share)) }
                    title={ (percent(part.share)) " " (part.name) } {}
            }
        }
        p {
            @for (index, part) in segments.iter().enumerate() {
                span.leg { span.key.(colour_class(index)) {} " " (percent(part.share)) " " (part.name) } " "
            }
        }
    }
}

/// Outcome with a reason of its own where its number is unknown.
const PREDICTED: &str = "Dropped, predicted";
const NOT_OBSERVABLE: &str = "not observable with the attached probes";

/// Chunks by outcome, with the evidence for it.
pub(super) fn draw_losses(report: &Report, clock: &Clock) -> Markup {
    let totals = &report.chunks;
    let losses = &report.losses;
    // Confirmed losses replace the prediction.
    let predicted = losses.predicted.as_ref().filter(|_| losses.confirmed.is_none());
    let drop_prediction = match (totals.shown_prediction(), totals.dropped_predicted) {
        (Some(_), _) => {
            "received in one wakeup with another chunk of their request, on a release that keeps only the last"
        }
        (None, Some(_)) => "none is predicted, which shows nothing where deliveries are not observed",
        (None, None) => NOT_OBSERVABLE,
    };
    let outcomes = [
        (
            "Dropped, confirmed",
            totals.dropped_confirmed,
            "proven: a later delivery of the same request lacks them, and the counts confirm it",
        ),
        (PREDICTED, totals.shown_prediction(), drop_prediction),
        (
            "Merged",
            totals.merged,
            "delivered merged with another chunk: no token is lost, but they arrive late and in bursts",
        ),
        ("In flight", totals.in_flight, "not delivered at the end of the capture, or when their request was closed"),
        (
            "Unjudged",
            totals.unjudged,
            "observations were missed during their delivery, or counts alone do not show its content",
        ),
    ];
    html! {
        table {
            tbody {
                @for (name, chunks, proof) in outcomes {
                    tr {
                        th { (name) }
                        td.n { (known_or_dash(chunks, |number| format!("{} ({})", count(number), share(number, totals.sent)))) }
                        td { (if chunks.is_some() || name == PREDICTED { proof } else { NOT_OBSERVABLE }) }
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
            (draw_lossy_requests(list, clock, "Which tokens were lost: confirmed"))
        }
        @if let Some(list) = predicted {
            (draw_lossy_requests(list, clock, "Which tokens are expected to be lost: predicted"))
        }
        @if let Some(calls) = &report.tool_calls {
            h3 { "Tool calls of responses" }
            p { (calls.summarise_calls()) }
            ul {
                @for ExplainedCalls { rid, explanation } in calls.explain_first_incomplete_calls() {
                    li { code { (rid) } ": " (explanation) }
                }
            }
        }
    }
}

/// Maximum number of requests listed with missing positions; the JSON lists more.
const MAX_LOSSY_REQUESTS: usize = 50;
/// Maximum number of ranges and ids per request.
const MAX_RANGES: usize = 40;

/// The requests that lost tokens, under a heading; nothing without any. Shows the first [`MAX_LOSSY_REQUESTS`] requests, each with up to
/// [`MAX_RANGES`] ranges of lost positions.
fn draw_lossy_requests(list: &LossList, clock: &Clock, heading: &str) -> Markup {
    if list.lines.is_empty() {
        return Markup::default();
    }
    html! {
        h3 { (heading) }
        p { (plural(list.requests, "request")) ", worst first." }
        (draw_table(report_table::loss_table(list, clock, MAX_LOSSY_REQUESTS, MAX_RANGES)))
        @if list.lines.len() > MAX_LOSSY_REQUESTS {
            p.dim { "The JSON lists " (count(list.lines.len() as u64)) "." }
        }
    }
}

/// Table of the token ids and bytes on each hop. Two columns estimate the bytes of messages that list only new ids, and of those that list
/// all ids so far. `None` if no ids crossed a hop.
pub(super) fn draw_mode_table(report: &Report) -> Option<Markup> {
    let modes = &report.modes;
    let lines: Vec<&ModeLine> = modes.hops.iter().chain(&modes.client).collect();
    // Without a line there is no table.
    lines.first()?;
    let table = Table::new(
        lines,
        [
            ("Where", Hop, &|line| line.name.clone()),
            ("Tokens", Number, &|line| count(line.tokens)),
            ("Ids listed", Number, &|line| count(line.ids)),
            ("Repeats", Number, &|line| count(line.ids_repeated)),
            ("Bytes", Number, &|line| known_or_dash(line.bytes, bytes)),
            ("Bytes per token", Number, &|line| known_or_dash(line.bytes_per_token, |n| format!("{n:.0}"))),
            ("New ids only, estimate", Number, &|line| known_or_dash(line.bytes_if_incremental_estimate, bytes)),
            ("All ids so far, estimate", Number, &|line| known_or_dash(line.bytes_if_cumulative_estimate, bytes)),
        ],
    );
    Some(html! {
        p.dim { "Estimates assume " (modes.bytes_per_id) " bytes per id." }
        (draw_table(table))
    })
}

/// What was not observed, the limits that were reached, and the cost of the observation.
pub(super) fn draw_unobserved_limits_and_costs(report: &Report) -> Markup {
    let own = &report.own;
    html! {
        ul {
            @for what in brief::list_unobserved_stages(report) {
                li { "Not observed (shown as -): " (what) "." }
            }
            @for failure in brief::describe_degraded(report) {
                li { "Unavailable or failed: " (failure) "." }
            }
            @for (name, line) in brief::limits_reached(report) {
                li { "The limit " (name) " of " (count(line.limit)) " was reached " (plural(line.reached, "time")) "." }
            }
            li {
                "tokengap observed " (plural(own.events, "event")) " and missed " (count(own.missed())) "; "
                (plural(own.frames_undecoded, "frame")) " could not be read"
                @if let Some(ns) = own.cpu_ns { "; it used " (duration(ns)) " of CPU" }
                @if let Some(rss_bytes) = own.rss_bytes { " and " (bytes(rss_bytes)) " of memory" }
                "."
            }
        }
    }
}

/// Size of the drawing beside each row.
const DRAWING_WIDTH: f64 = 220.0;

/// Requests with the longest waits for their first token, each drawn on the time axis of the run; `None` if none is known.
pub(super) fn draw_slowest_requests(report: &Report, clock: &Clock) -> Option<Markup> {
    if !report.has_slowest() {
        return None;
    }
    // At least 1, because times are divided by it.
    let capture_length_ns = report.capture_length_ns().max(1);
    let drawn = format!("Gap within {}", duration(capture_length_ns));
    let table = Table::new(
        &report.slowest,
        [
            ("Request", Rid, &|line| line.rid.render()),
            ("TTFT", Number, &|line| known_or_dash(line.ttft_ns, duration).render()),
            ("Gap", Number, &|line| line.format_gap_or_wait(capture_length_ns).render()),
            (&drawn, Text, &|line| draw_request_wait(line, capture_length_ns)),
            ("First sent", Number, &|line| known_or_dash(line.first_sent_ns, |ns| clock.describe_moment(ns)).render()),
            ("Tokens sent", Number, &|line| count(line.tokens_sent).render()),
            ("Received", Number, &|line| known_or_dash(line.tokens_received, count).render()),
            ("Lost", Number, &|line| known_or_dash(line.tokens_lost, count).render()),
            ("Inter-token p50, p90, p99: client", Number, &|line| format_itl(line.itl_ns.delivered).render()),
            ("Engine", Number, &|line| format_itl(line.itl_ns.sent).render()),
            ("Finish", Text, &|line| line.finish.as_deref().unwrap_or("-").render()),
        ],
    );
    Some(draw_table(table))
}

/// Quantiles of the inter-token latency: `9.1 ms, 10.0 ms, 12.3 ms`.
fn format_itl(itl: Option<Spread>) -> String {
    known_or_dash(itl, |spread| [spread.p50, spread.p90, spread.p99].map(duration).join(", "))
}

/// Position of a time in the drawing, from its left.
fn x_of_time(ns: u64, capture_length_ns: u64) -> f64 {
    /// Space on both sides that keeps the round marker inside.
    const MARGIN: f64 = 3.0;
    MARGIN + (ns.min(capture_length_ns) as f64 / capture_length_ns as f64) * (DRAWING_WIDTH - 2.0 * MARGIN)
}

/// When the first token of a request was sent and received, for screen readers. `None` if neither was observed.
fn describe_request_wait(line: &SlowLine) -> Option<String> {
    match (line.first_sent_ns.map(duration), line.first_received_ns.map(duration)) {
        (Some(sent), Some(received)) => Some(format!("first sent at {sent}, first received at {received}")),
        (Some(sent), None) => Some(format!("first sent at {sent}, receive not observed")),
        (None, Some(received)) => Some(format!("first received at {received}, send not observed")),
        (None, None) => None,
    }
}

/// Draws a request's wait on the time axis of the capture: a box from its first send to its first receive, and a dot at the receive.
/// Without a receive, the box extends to the end. The drawing is 18 high: the axis is at 9, the box from 4 to 14, and a line marks the
/// send.
fn draw_request_wait(line: &SlowLine, capture_length_ns: u64) -> Markup {
    /// A short wait stays visible.
    const LEAST_WIDTH: f64 = 1.5;
    let Some(label) = describe_request_wait(line) else { return "not observed".render() };
    html! {
        svg viewBox={ "0 0 " (DRAWING_WIDTH) " 18" } role="img" aria-label=(label) {
            title { (label) }
            path.grid d={ "M0 9H" (DRAWING_WIDTH) } {}
            @if let Some(sent) = line.first_sent_ns {
                @let from = x_of_time(sent, capture_length_ns);
                @let to = x_of_time(line.first_received_ns.unwrap_or(capture_length_ns), capture_length_ns);
                rect.wait x=(coordinate(from)) y="4" width=(coordinate((to - from).max(LEAST_WIDTH))) height="10" rx="2" {}
                path.axis d={ "M" (coordinate(from)) " 1v16" } {}
            }
            @if let Some(received) = line.first_received_ns {
                circle.event cx=(coordinate(x_of_time(received, capture_length_ns))) cy="9" r="2.6" {}
            }
        }
    }
}

/// Maximum number of functions and pairs of stages listed; the JSON has more.
const MAX_ROWS: usize = 12;
/// Maximum number of requests shown stage by stage.
const MAX_STAGE_TABLES: usize = 5;

/// Python functions of each role; `None` if no stacks were sampled.
pub(super) fn draw_python_functions(report: &Report) -> Option<Markup> {
    let roles = report.stacks.as_ref()?;
    Some(html! {
        @for role in roles {
            h3 { (role.role) }
            p.dim { (plural(role.running, "stack")) " of running threads, of " (count(role.stacks)) " read" }
            (draw_table(report_table::function_table(role, MAX_ROWS)))
        }
    })
}

/// Stages of requests, named by the engine; `None` if no log was read.
pub(super) fn draw_engine_log(report: &Report, clock: &Clock) -> Option<Markup> {
    let log = report.stages.as_ref()?;
    let pairs = Table::new(
        log.between.iter().take(MAX_ROWS),
        [
            ("From", Text, &|pair| pair.from.clone()),
            ("To", Text, &|pair| pair.to.clone()),
            ("Requests", Number, &|pair| count(pair.ns.count)),
            ("p50", Number, &|pair| duration(pair.ns.p50)),
            ("p99", Number, &|pair| duration(pair.ns.p99)),
            ("max", Number, &|pair| duration(pair.ns.max)),
        ],
    );
    Some(html! {
        p {
            (plural(log.logged, "stage")) " of " (plural(log.requests, "request"))
            ", by the engine's own clock; not observed on a socket."
        }
        @if let Some(correlation) = &log.gap_with_states {
            p {
                "Gaps and the receiver's number of request states correlate with " (format!("{:.2}", correlation.spearman))
                " (Spearman's rank correlation, " (plural(correlation.n, "request")) ")."
            }
        }
        @for stages in log.slowest.iter().take(MAX_STAGE_TABLES) {
            h3.rid { (stages.rid) }
            p.dim { "gap " (duration(stages.gap_ns)) }
            (draw_table(report_table::stage_table(stages, clock)))
        }
        @if !log.between.is_empty() {
            h3 { "From stage to stage" }
            (draw_table(pairs))
        }
    })
}
