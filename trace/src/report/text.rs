//! The report as text: verdict, numbers, advice, then unobserved stages.

use std::fmt::Write as _;

use serde_json::Value;

use super::hostile::{lines, plain};
use super::wrap::{row, wrap};
use super::{Chunks, HopLine, LossLine, LossList, ModeLine, Report, Spread, brief, path_text, stacks};
use crate::detect::Severity;
use crate::words::{bytes, count, duration, known, percent, plural};

/// Maximum number of requests named; the JSON lists more.
const LOSSY: usize = 5;
/// Maximum number of ranges and ids per request.
const RANGES: usize = 12;

pub(super) fn render(report: &Report) -> String {
    let mut out = String::new();
    head(&mut out, report);
    numbers(&mut out, report);
    truth(&mut out, report);
    losses(&mut out, report);
    super::tool_calls::render(&mut out, report);
    slowest(&mut out, report);
    super::stages_text::render(&mut out, report);
    hops(&mut out, report);
    path_text::render(&mut out, report);
    cpu(&mut out, report);
    if let Some(lines) = &report.stacks {
        stacks::text(&mut out, lines, report.own.sampling.as_ref());
    }
    findings(&mut out, report);
    not_observed(&mut out, report);
    own(&mut out, report);
    // Names come from the wire and must not control the terminal.
    lines(&out)
}

/// Ground truth of the demo, for comparison with the findings.
fn truth(out: &mut String, report: &Report) {
    let Some(truth) = report.demo.as_ref().and_then(|demo| demo.get("truth")) else {
        return;
    };
    let of = |name: &str| count(truth.get(name).and_then(Value::as_u64).unwrap_or_default());
    let line = format!(
        "{} requests, {} chunks and {} tokens sent, {} merged, {} dropped, {} tokens lost",
        of("requests"),
        of("chunks"),
        of("tokens"),
        of("chunks_merged"),
        of("chunks_dropped"),
        of("tokens_lost")
    );
    wrap(out, &line, "demo's truth  ", "              ");
    out.push('\n');
}

fn head(out: &mut String, report: &Report) {
    let verdict = brief::verdict(report);
    wrap(out, &verdict, "", "  ");
    let engine = brief::engine(report);
    let _ = writeln!(out, "{} of {engine}, {}", report.source.kind, duration(report.window_ns[1]));
    let _ = writeln!(out);
}

fn numbers(out: &mut String, report: &Report) {
    let r = &report.requests;
    let mut line = format!(
        "{} seen, {} finished, {} aborted, {} live",
        count(r.seen),
        count(r.finished),
        count(r.aborted),
        count(r.live)
    );
    for (n, what) in [(r.joined_late, "joined late"), (r.overwritten, "overwritten"), (r.orphaned, "orphaned")] {
        if n > 0 {
            let _ = write!(line, ", {} {what}", count(n));
        }
    }
    if r.health_checks > 0 {
        let _ = write!(line, ", {}", plural(r.health_checks, "health check"));
    }
    row(out, "requests", &line);
    if !report.is_log_only() {
        let t = &report.tokens;
        row(
            out,
            "tokens",
            &format!(
                "{} sent, {} received, {} delivered{}",
                count(t.sent),
                known(t.received, count),
                known(t.delivered, count),
                uncounted(t.uncounted)
            ),
        );
        row(out, "chunks", &chunks(&report.chunks));
        for (n, line) in modes(report).iter().enumerate() {
            row(out, if n == 0 { "ids" } else { "" }, line);
        }
    }
    if let Some(gap) = &report.gap_ns {
        let quantiles = format!(
            "median {}, p90 {}, p99 {}, max {}",
            known(gap.p50, duration),
            known(gap.p90, duration),
            known(gap.p99, duration),
            known(gap.max, duration)
        );
        row(out, "gap", &format!("{quantiles} over {} requests", count(gap.count)));
        if !gap.max_rid.is_empty() {
            row(out, "", &format!("worst: {}", gap.max_rid));
        }
    }
    let itl = &report.itl_ns;
    for (name, by_token, by_chunk) in
        [("itl sent", itl.sent_by_token, itl.sent), ("itl client", itl.delivered_by_token, itl.delivered)]
    {
        if let Some(itl) = by_token.or(by_chunk) {
            let between = by_chunk.map_or(itl.max, |chunks| chunks.max);
            row(
                out,
                name,
                &format!(
                    "median {}, p90 {}, p99 {} by token; up to {} between chunks",
                    duration(itl.p50),
                    duration(itl.p90),
                    duration(itl.p99),
                    duration(between)
                ),
            );
        }
    }
    super::frontend::rows(out, report);
    let _ = writeln!(out);
}

/// Tokens excluded from the delivered ones.
fn uncounted(tokens: Option<u64>) -> String {
    let tokens = tokens.filter(|&tokens| tokens > 0);
    tokens.map_or_else(String::new, |tokens| format!(", {} sent as text only", count(tokens)))
}

fn chunks(c: &Chunks) -> String {
    let mut line = format!("{} sent, {} received", count(c.sent), known(c.received, count));
    for (n, what) in [
        (c.merged, "merged"),
        (c.dropped_predicted, "dropped (predicted)"),
        (c.dropped_confirmed, "dropped (confirmed)"),
        (c.tokens_lost, "tokens lost"),
    ] {
        if let Some(n) = n {
            let _ = write!(line, ", {} {what}", count(n));
        }
    }
    line
}

/// Cost of each mode: one line per hop, and one for clients; none if no ids crossed.
fn modes(report: &Report) -> Vec<String> {
    let modes = &report.modes;
    let hops = modes.hops.iter().map(mode_of_hop);
    hops.chain(modes.client.as_ref().map(mode_of_client)).collect()
}

fn mode_of_hop(line: &ModeLine) -> String {
    let per_token = line.bytes_per_token.map_or_else(String::new, |n| format!("{n:.0} bytes a token, "));
    let other = if line.ids_repeated > 0 {
        let less = line.bytes_if_incremental_estimate.map(bytes);
        less.map(|less| format!("; new ids only: about {less} in total"))
    } else {
        let more = line.bytes_if_cumulative_estimate.map(bytes);
        more.map(|more| format!("; all ids so far: about {more} in total"))
    };
    format!(
        "{}: {per_token}{} of {} ids are repeats{}",
        plain(&line.name),
        count(line.ids_repeated),
        count(line.ids),
        other.unwrap_or_default()
    )
}

fn mode_of_client(line: &ModeLine) -> String {
    let repeated = match line.ids_repeated {
        0 => format!("no repeats; all ids so far: {}", count(line.ids_if_cumulative)),
        n => format!("{} of them repeats (about {})", count(n), bytes(line.bytes_repeated_estimate)),
    };
    format!("client: {} ids for {} tokens, {repeated}", count(line.ids), count(line.tokens))
}

/// Requests that lost tokens: the worst few, with their missing positions.
fn losses(out: &mut String, report: &Report) {
    let losses = &report.losses;
    let (confirmed, predicted) = (losses.confirmed.as_ref(), losses.predicted.as_ref());
    let proven = confirmed.filter(|list| !list.lines.is_empty());
    // If deliveries are observed, they decide. The prediction only matters for judging its accuracy.
    let expected = predicted.filter(|list| confirmed.is_none() && !list.lines.is_empty());
    for (list, how) in [(proven, "LOST TOKENS, CONFIRMED"), (expected, "LOST TOKENS, PREDICTED")] {
        if let Some(list) = list {
            loss_lines(out, list, how);
        }
    }
}

fn loss_lines(out: &mut String, list: &LossList, how: &str) {
    let _ = writeln!(out, "{how}: {}", plural(list.requests, "request"));
    for line in list.lines.iter().take(LOSSY) {
        wrap(out, &loss(line), "  ", "    ");
    }
    let more = list.requests.saturating_sub(LOSSY.min(list.lines.len()) as u64);
    if more > 0 {
        let _ = writeln!(out, "  and {} more; the JSON lists {}", count(more), count(list.lines.len() as u64));
    }
    let _ = writeln!(out);
}

fn loss(line: &LossLine) -> String {
    let mut text = format!(
        "{}: {} of {} tokens in {}",
        plain(&line.rid),
        count(line.tokens),
        count(line.tokens_sent),
        plural(line.chunks, "chunk")
    );
    let places = line.places(RANGES);
    if !places.is_empty() {
        let _ = write!(text, ", at {places}");
    }
    let ids = line.ids(RANGES);
    if !ids.is_empty() {
        let _ = write!(text, " (ids {ids})");
    }
    text
}

/// All slowest requests of the report.
fn slowest(out: &mut String, report: &Report) {
    // If gaps are not observed, no request is known to be slow. Requests from the log follow stage by stage.
    if report.gap_ns.is_none() || report.slowest.is_empty() || report.is_log_only() {
        return;
    }
    let widest = 36;
    let _ = writeln!(
        out,
        "{:widest$}  {:>10} {:>10} {:>8} {:>8} {:>8}  FINISH",
        "SLOWEST", "SENT AT", "GAP", "SENT", "RECEIVED", "LOST"
    );
    for line in &report.slowest {
        let rid: String = plain(&line.rid).chars().take(widest).collect();
        let _ = writeln!(
            out,
            "{rid:widest$}  {:>10} {:>10} {:>8} {:>8} {:>8}  {}",
            known(line.first_sent_ns, duration),
            known(line.gap_ns, duration),
            count(line.tokens_sent),
            known(line.tokens_received, count),
            known(line.tokens_lost, count),
            plain(line.finish.as_deref().unwrap_or("-")),
        );
    }
    let _ = writeln!(out);
}

fn hops(out: &mut String, report: &Report) {
    if report.hops.is_empty() {
        return;
    }
    let widest = report.hops.iter().map(|h| h.name.chars().count()).max().unwrap_or(0).clamp(12, 31);
    let _ = writeln!(
        out,
        "{:widest$}  {:>9} {:>9} {:>10} {:>9} {:>8} {:>9} {:>9}",
        "HOP", "SENT", "RECEIVED", "CHUNKS", "BYTES", "BACKLOG", "WAIT P50", "WAIT MAX"
    );
    for hop in &report.hops {
        let name: String = plain(&hop.name).chars().take(widest).collect();
        let queue_wait = |of: fn(&Spread) -> u64| known(hop.queue_wait_ns.as_ref().map(of), duration);
        let _ = writeln!(
            out,
            "{name:widest$}  {:>9} {:>9} {:>10} {:>9} {:>8} {:>9} {:>9}",
            known(hop.frames_sent, count),
            known(hop.frames_received, count),
            count(hop.chunks),
            bytes(hop.bytes),
            known(hop.backlog_max_frames, count),
            queue_wait(|s| s.p50),
            queue_wait(|s| s.max),
        );
        detail(out, hop);
    }
    let _ = writeln!(out);
}

fn detail(out: &mut String, hop: &HopLine) {
    let mut parts = Vec::new();
    for (spread, before, after) in [
        (&hop.send_wait_ns, "waited ", " in the sender"),
        (&hop.relay_ns, "in the relay ", ""),
        (&hop.processing_ns, "processed in ", ""),
        (&hop.recv_wait_ns, "received ", " after asking"),
    ] {
        if let Some(Spread { p50, p99, .. }) = spread {
            parts.push(format!("{before}{}{after} (p99 {})", duration(*p50), duration(*p99)));
        }
    }
    if let Some(frames) = hop.inbox_max_frames {
        let max = plural(frames, "frame");
        parts.push(format!("up to {max} in libzmq's inbox"));
    }
    if let Some(max) = hop.kernel_bytes_max {
        let max = if max == 0 { String::from("none") } else { format!("up to {}", bytes(max)) };
        parts.push(format!("{max} in the kernel"));
    }
    if let Some(frames) = hop.wakeup_frames_max.filter(|&n| n > 1) {
        parts.push(format!("up to {frames} frames per wakeup"));
    }
    if let Some(busy) = hop.busy {
        parts.push(format!("receiver busy for {}", percent(busy)));
    }
    parts.extend(path_text::behind(hop));
    if let Some(lanes) = &hop.lanes {
        parts.push(format!("{} connections", lanes.len()));
    }
    if !parts.is_empty() {
        wrap(out, &parts.join(", "), "  ", "  ");
    }
    path_text::members(out, hop);
}

fn cpu(out: &mut String, report: &Report) {
    let Some(lines) = report.cpu.as_ref().filter(|c| !c.is_empty()) else {
        return;
    };
    let share = |of: Option<f64>| known(of, |share| format!("{:.1} %", 100.0 * share));
    for line in lines {
        let (on, wait, throttled) = (share(line.on_cpu), share(line.run_wait), share(line.throttled));
        let mut text = format!(
            "{} ({}/{} {}): {on} on cpu, {wait} waiting for a CPU, {throttled} throttled",
            line.role, line.pid, line.tid, line.name
        );
        if let Some(away) = line.away_from_poll {
            let _ = write!(text, ", {} away from its poll", share(Some(away)));
        }
        row(out, "cpu", &text);
    }
    let _ = writeln!(out);
}

fn findings(out: &mut String, report: &Report) {
    for finding in &report.findings {
        let head = format!("{} {}: {}", mark(finding.severity), finding.kind, finding.summary);
        wrap(out, &head, "", "    ");
        let mut since = format!("since {}", duration(finding.at_ns));
        if !finding.rid.is_empty() {
            let _ = write!(since, ", worst {}", finding.rid);
        }
        wrap(out, &since, "    ", "    ");
        if let Some(advice) = &finding.advice {
            wrap(out, &format!("-> {advice}"), "    ", "       ");
        }
    }
    if !report.findings.is_empty() {
        let _ = writeln!(out);
    }
}

fn mark(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "[i]",
        Severity::Warning => "[!]",
        Severity::Critical => "[X]",
    }
}

/// Stages that this source cannot observe, with the consequences.
fn not_observed(out: &mut String, report: &Report) {
    let missing = brief::not_observed(report);
    if !missing.is_empty() {
        row(out, "not observed", &missing.join("; "));
    }
    for failure in brief::degraded(report) {
        row(out, "degraded", &failure);
    }
}

fn own(out: &mut String, report: &Report) {
    let own = &report.own;
    let (events, undecoded) = (plural(own.events, "event"), plural(own.frames_undecoded, "frame"));
    let mut line = format!("{events}, {} missed, {undecoded} undecoded", count(own.missed()));
    if let Some(cpu) = own.cpu_ns {
        let _ = write!(line, ", {} of CPU", duration(cpu));
    }
    if let Some(rss) = own.rss_bytes {
        let _ = write!(line, ", {} resident", bytes(rss));
    }
    row(out, "tokengap", &line);
}
