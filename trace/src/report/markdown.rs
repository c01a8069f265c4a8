//! The report as Markdown for an incident channel or an issue: a short summary, then details.

use std::fmt::Write as _;

use super::hostile::{markdown, markdown_code};
use super::{Clock, Report, ThreadState, bar, brief};
use crate::detect::Severity;
use crate::words::{bytes, count, duration, percent, plural, share};

/// Maximum number of requests and findings listed.
const LIMIT: usize = 10;
/// Width of the bar in cells.
const BAR: usize = 40;

pub(super) fn render(report: &Report, clock: &Clock) -> String {
    let mut out = String::new();
    head(&mut out, report, clock);
    findings(&mut out, report, clock);
    lossy(&mut out, report);
    slowest(&mut out, report);
    path(&mut out, report);
    hops(&mut out, report);
    cpu(&mut out, report);
    functions(&mut out, report);
    stages(&mut out, report);
    own(&mut out, report);
    out
}

fn not_observed() -> String {
    String::from("not observed")
}

fn opt(n: Option<u64>) -> String {
    n.map_or_else(|| String::from("-"), count)
}

fn time(ns: Option<u64>) -> String {
    ns.map_or_else(|| String::from("-"), duration)
}

fn head(out: &mut String, report: &Report, clock: &Clock) {
    let _ = writeln!(out, "## {}\n", markdown(&brief::verdict(report)));
    if let Some(worst) = report.findings.first() {
        let _ = writeln!(out, "- **since** {}", clock.both(worst.at_ns));
    }
    let r = &report.requests;
    let _ = writeln!(
        out,
        "- **requests** {} seen, {} finished, {} aborted, {} live, in {}",
        count(r.seen),
        count(r.finished),
        count(r.aborted),
        count(r.live),
        duration(report.window_ns[1])
    );
    let gap = report.gap_ns.as_ref().map_or_else(not_observed, |g| {
        format!(
            "median {}, p90 {}, p99 {}, max {}",
            time(g.p50),
            time(g.p90),
            time(g.p99),
            time(g.max)
        )
    });
    let _ = writeln!(out, "- **gap** {gap}");
    let c = &report.chunks;
    let lost = match (c.dropped_confirmed, c.dropped_predicted) {
        (Some(n), _) => format!(
            "{} tokens in {} chunks ({} of all), confirmed by counts",
            opt(c.tokens_lost),
            count(n),
            share(n, c.sent)
        ),
        (None, Some(n)) => format!("{} chunks predicted; deliveries were not observed", count(n)),
        (None, None) => not_observed(),
    };
    let _ = writeln!(out, "- **lost** {lost}");
    let itl = &report.itl_ns;
    if let (Some(client), Some(sent)) = (itl.delivered_by_token, itl.sent_by_token) {
        let _ = writeln!(
            out,
            "- **inter-token latency** p50 {}, p90 {}, p99 {} at the client; {}, {}, {} as the engine sent",
            duration(client.p50),
            duration(client.p90),
            duration(client.p99),
            duration(sent.p50),
            duration(sent.p90),
            duration(sent.p99)
        );
    }
    let _ = writeln!(
        out,
        "- **engine** {}: {}\n",
        markdown(&brief::engine(report)),
        markdown(&brief::known_to_lose(report))
    );
}

fn findings(out: &mut String, report: &Report, clock: &Clock) {
    for (n, finding) in report.findings.iter().take(LIMIT).enumerate() {
        let mark = match finding.severity {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
            Severity::Info => "info",
        };
        let _ = writeln!(
            out,
            "{}. **{mark}** {}: {}",
            n + 1,
            markdown(&finding.kind),
            markdown(&finding.summary)
        );
        let mut since = format!("   since {}", clock.both(finding.at_ns));
        if !finding.rid.is_empty() {
            let _ = write!(since, ", worst {}", markdown_code(&finding.rid));
        }
        let _ = writeln!(out, "{since}");
        if let Some(advice) = &finding.advice {
            let _ = writeln!(out, "   **do** {}", markdown(advice));
        }
    }
    if report.findings.len() > LIMIT {
        let _ = writeln!(out, "\nand {} more", report.findings.len() - LIMIT);
    }
    if !report.findings.is_empty() {
        out.push('\n');
    }
}

/// Proven losses by request.
fn lossy(out: &mut String, report: &Report) {
    let Some(list) = report.losses.confirmed.as_ref().filter(|list| !list.lines.is_empty()) else {
        return;
    };
    let _ = writeln!(
        out,
        "### Lost tokens, confirmed: {}\n\n| request | tokens sent | lost | positions in the output |\n|---|--:|--:|---|",
        plural(list.requests, "request")
    );
    for line in list.lines.iter().take(LIMIT) {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} |",
            markdown_code(&line.rid),
            count(line.tokens_sent),
            count(line.tokens),
            line.places(LIMIT)
        );
    }
    out.push('\n');
}

fn slowest(out: &mut String, report: &Report) {
    if report.gap_ns.is_none() || report.slowest.is_empty() {
        return;
    }
    let _ = writeln!(out, "### Worst requests\n");
    let _ = writeln!(
        out,
        "| request | first sent | gap | first received | tokens sent | lost | finish |\n|---|--:|--:|--:|--:|--:|---|"
    );
    for line in report.slowest.iter().take(LIMIT) {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} |",
            markdown_code(&line.rid),
            time(line.first_sent_ns),
            time(line.gap_ns),
            time(line.first_received_ns),
            count(line.tokens_sent),
            opt(line.tokens_lost),
            markdown(line.finish.as_deref().unwrap_or("-"))
        );
    }
    out.push('\n');
}

/// Attribution of first tokens' and chunks' time.
fn path(out: &mut String, report: &Report) {
    let Some(bar) = bar::line(&report.path, BAR) else {
        return;
    };
    let _ = writeln!(out, "### Where the time goes\n\n{}\n", markdown_code(&bar));
    let _ = writeln!(
        out,
        "| leg | first tokens | chunks | mean per chunk | receiver busy | its thread |\n|---|--:|--:|--:|--:|---|"
    );
    for leg in &report.path {
        let share = |share: Option<f64>| share.map_or_else(|| String::from("-"), percent);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} |",
            markdown(&leg.words()),
            share(leg.first_token_share),
            percent(leg.share),
            duration(leg.mean_ns),
            share(leg.busy),
            leg.thread.map_or("", ThreadState::as_str)
        );
    }
    out.push('\n');
}

fn hops(out: &mut String, report: &Report) {
    if report.hops.is_empty() {
        return;
    }
    let _ = writeln!(out, "### Hops\n");
    let _ = writeln!(
        out,
        "| hop | frames sent | received | backlog, max | in the kernel, max | queue wait p50 | p99 | max |\n|---|--:|--:|--:|--:|--:|--:|--:|"
    );
    for hop in &report.hops {
        let spread = |of: fn(&super::Spread) -> u64| time(hop.queue_wait_ns.as_ref().map(of));
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            markdown_code(&hop.name),
            opt(hop.frames_sent),
            opt(hop.frames_received),
            opt(hop.backlog_max_frames),
            hop.kernel_bytes_max.map_or_else(|| String::from("-"), bytes),
            spread(|s| s.p50),
            spread(|s| s.p99),
            spread(|s| s.max)
        );
    }
    out.push('\n');
}

fn cpu(out: &mut String, report: &Report) {
    let Some(lines) = report.cpu.as_ref().filter(|lines| !lines.is_empty()) else {
        return;
    };
    let _ = writeln!(
        out,
        "### CPU\n\n| thread | on CPU | waiting for a CPU | throttled |\n|---|--:|--:|--:|"
    );
    for line in lines {
        let share = |of: Option<f64>| of.map_or_else(|| String::from("-"), |s| format!("{:.1} %", 100.0 * s));
        let name = format!("{} {}/{} {}", line.role, line.pid, line.tid, line.name);
        let _ = writeln!(
            out,
            "| {}{} | {} | {} | {} |",
            markdown_code(&name),
            if line.receives { " receives frames" } else { "" },
            share(line.on_cpu),
            share(line.run_wait),
            share(line.throttled)
        );
    }
    out.push('\n');
}

fn functions(out: &mut String, report: &Report) {
    for line in report.stacks.iter().flatten() {
        let _ = writeln!(out, "### Python functions of {}\n", markdown(&line.role));
        let _ = writeln!(out, "| function | file | innermost | anywhere |\n|---|---|--:|--:|");
        for function in line.functions.iter().take(LIMIT) {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} |",
                markdown_code(&function.function),
                markdown_code(&function.file),
                percent(function.all.own),
                percent(function.all.total)
            );
        }
        out.push('\n');
    }
}

/// Worst request of the engine's log, stage by stage.
fn stages(out: &mut String, report: &Report) {
    let Some(table) = report.stages.as_ref().and_then(|s| s.slowest.first()) else {
        return;
    };
    let _ = writeln!(
        out,
        "### Worst request by the engine's log: {}\n",
        markdown_code(&table.rid)
    );
    let _ = writeln!(out, "| stage | by | at | since the previous |\n|---|---|--:|--:|");
    for row in &table.stages {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} |",
            markdown_code(&row.stage),
            markdown_code(&row.by),
            duration(row.at_ns),
            time(row.delta_ns)
        );
    }
    out.push('\n');
}

fn own(out: &mut String, report: &Report) {
    let _ = writeln!(out, "### Not observed, and missed observations\n");
    for what in brief::not_observed(report) {
        let _ = writeln!(out, "- not observed: {what}");
    }
    for failure in brief::degraded(report) {
        let _ = writeln!(out, "- unavailable or failed: {}", markdown(&failure));
    }
    for (name, limit, times) in brief::limits_reached(report) {
        let _ = writeln!(
            out,
            "- the limit {} of {} was reached {} times",
            markdown_code(name),
            count(limit),
            count(times)
        );
    }
    let own = &report.own;
    let _ = writeln!(
        out,
        "- tokengap observed {} events, missed {}; {} frames could not be read",
        count(own.events),
        count(own.missed()),
        count(own.frames_undecoded)
    );
}
