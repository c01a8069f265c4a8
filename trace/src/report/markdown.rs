//! The report as Markdown for an incident channel or an issue: a short summary, then details.

use std::fmt::Write as _;

use super::hostile::{markdown, markdown_code};
use super::table::Kind::{self, Number, Text};
use super::{Clock, FrontendCounts, Report, Spread, bar, brief};
use crate::words::{bytes, count, duration, known, percent, plural, share};

/// Maximum number of requests and findings listed.
const LIMIT: usize = 10;
/// Width of the bar in cells.
const BAR: usize = 40;

pub(super) fn render(report: &Report, clock: &Clock) -> String {
    let mut out = String::new();
    head(&mut out, report, clock);
    findings(&mut out, report, clock);
    lossy(&mut out, report);
    tool_calls(&mut out, report);
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

/// Writes a table. Columns are aligned by their kind; cells are escaped already.
pub(crate) fn table<const N: usize>(
    out: &mut String,
    columns: [(&str, Kind); N],
    rows: impl IntoIterator<Item = [String; N]>,
) {
    let _ = writeln!(out, "| {} |", columns.map(|(name, _)| name).join(" | "));
    let _ = writeln!(
        out,
        "|{}|",
        columns
            .map(|(_, kind)| if kind == Number { "--:" } else { "---" })
            .join("|")
    );
    for row in rows {
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
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
            known(g.p50, duration),
            known(g.p90, duration),
            known(g.p99, duration),
            known(g.max, duration)
        )
    });
    let _ = writeln!(out, "- **gap** {gap}");
    let c = &report.chunks;
    let lost = match (c.dropped_confirmed, c.dropped_predicted) {
        (Some(n), _) => format!(
            "{} tokens in {} chunks ({} of all), confirmed by counts",
            known(c.tokens_lost, count),
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
    for line in report.frontend.iter().flat_map(FrontendCounts::lines) {
        let _ = writeln!(out, "- **frontend** {line}");
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
        let mark = finding.severity.as_str();
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

/// Tool calls of responses.
fn tool_calls(out: &mut String, report: &Report) {
    let Some(calls) = &report.tool_calls else { return };
    let _ = writeln!(out, "### Tool calls of responses: {}\n", calls.summary());
    for (rid, explanation) in calls.notable() {
        let _ = writeln!(out, "- {}: {explanation}", markdown_code(&rid));
    }
    out.push('\n');
}

/// Proven losses by request.
fn lossy(out: &mut String, report: &Report) {
    let Some(list) = report.losses.confirmed.as_ref().filter(|list| !list.lines.is_empty()) else {
        return;
    };
    let _ = writeln!(
        out,
        "### Lost tokens, confirmed: {}\n",
        plural(list.requests, "request")
    );
    let columns = [
        ("request", Text),
        ("tokens sent", Number),
        ("lost", Number),
        ("positions in the output", Text),
    ];
    let rows = list.lines.iter().take(LIMIT).map(|line| {
        let rid = markdown_code(&line.rid);
        [rid, count(line.tokens_sent), count(line.tokens), line.places(LIMIT)]
    });
    table(out, columns, rows);
    out.push('\n');
}

fn slowest(out: &mut String, report: &Report) {
    if report.gap_ns.is_none() || report.slowest.is_empty() {
        return;
    }
    let columns = [
        ("request", Text),
        ("first sent", Number),
        ("gap", Number),
        ("first received", Number),
        ("tokens sent", Number),
        ("lost", Number),
        ("finish", Text),
    ];
    let rows = report.slowest.iter().take(LIMIT).map(|line| {
        [
            markdown_code(&line.rid),
            known(line.first_sent_ns, duration),
            known(line.gap_ns, duration),
            known(line.first_received_ns, duration),
            count(line.tokens_sent),
            known(line.tokens_lost, count),
            markdown(line.finish.as_deref().unwrap_or("-")),
        ]
    });
    out.push_str("### Worst requests\n\n");
    table(out, columns, rows);
    out.push('\n');
}

/// Attribution of first tokens' and chunks' time.
fn path(out: &mut String, report: &Report) {
    let Some(bar) = bar::line(&report.path, BAR) else {
        return;
    };
    let columns = [
        ("leg", Text),
        ("first tokens", Number),
        ("chunks", Number),
        ("mean per chunk", Number),
        ("receiver busy", Number),
        ("its thread", Text),
    ];
    let rows = report.path.iter().map(|leg| {
        let mut cells = leg.cells();
        cells[0] = markdown(&cells[0]);
        cells
    });
    let _ = writeln!(out, "### Where the time goes\n\n{}\n", markdown_code(&bar));
    table(out, columns, rows);
    out.push('\n');
}

fn hops(out: &mut String, report: &Report) {
    if report.hops.is_empty() {
        return;
    }
    let columns = [
        ("hop", Text),
        ("frames sent", Number),
        ("received", Number),
        ("backlog, max", Number),
        ("in the kernel, max", Number),
        ("queue wait p50", Number),
        ("p99", Number),
        ("max", Number),
    ];
    let rows = report.hops.iter().map(|hop| {
        let spread = |of: fn(&Spread) -> u64| known(hop.queue_wait_ns.as_ref().map(of), duration);
        [
            markdown_code(&hop.name),
            known(hop.frames_sent, count),
            known(hop.frames_received, count),
            known(hop.backlog_max_frames, count),
            known(hop.kernel_bytes_max, bytes),
            spread(|s| s.p50),
            spread(|s| s.p99),
            spread(|s| s.max),
        ]
    });
    out.push_str("### Hops\n\n");
    table(out, columns, rows);
    out.push('\n');
}

fn cpu(out: &mut String, report: &Report) {
    let Some(lines) = report.cpu.as_ref().filter(|lines| !lines.is_empty()) else {
        return;
    };
    let columns = [
        ("thread", Text),
        ("on CPU", Number),
        ("waiting for a CPU", Number),
        ("throttled", Number),
    ];
    let rows = lines.iter().map(|line| {
        let share = |of: Option<f64>| known(of, |share| format!("{:.1} %", 100.0 * share));
        let name = markdown_code(&format!("{} {}/{} {}", line.role, line.pid, line.tid, line.name));
        let receives = if line.receives { " receives frames" } else { "" };
        [
            name + receives,
            share(line.on_cpu),
            share(line.run_wait),
            share(line.throttled),
        ]
    });
    out.push_str("### CPU\n\n");
    table(out, columns, rows);
    out.push('\n');
}

fn functions(out: &mut String, report: &Report) {
    let columns = [
        ("function", Text),
        ("file", Text),
        ("innermost", Number),
        ("anywhere", Number),
    ];
    for line in report.stacks.iter().flatten() {
        let rows = line.functions.iter().take(LIMIT).map(|function| {
            let (name, file) = (markdown_code(&function.function), markdown_code(&function.file));
            [name, file, percent(function.all.own), percent(function.all.total)]
        });
        let _ = writeln!(out, "### Python functions of {}\n", markdown(&line.role));
        table(out, columns, rows);
        out.push('\n');
    }
}

/// Worst request of the engine's log, stage by stage.
fn stages(out: &mut String, report: &Report) {
    let Some(slowest) = report.stages.as_ref().and_then(|s| s.slowest.first()) else {
        return;
    };
    let columns = [
        ("stage", Text),
        ("by", Text),
        ("at", Number),
        ("since the previous", Number),
    ];
    let rows = slowest.stages.iter().map(|row| {
        let (stage, by) = (markdown_code(&row.stage), markdown_code(&row.by));
        [stage, by, duration(row.at_ns), known(row.delta_ns, duration)]
    });
    let rid = markdown_code(&slowest.rid);
    let _ = writeln!(out, "### Worst request by the engine's log: {rid}\n");
    table(out, columns, rows);
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
