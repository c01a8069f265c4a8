//! The report as Markdown for an incident channel or an issue: a short summary, then details.

use trace::words::{count, duration, known_or_dash, plural, share};

use super::hostile::{escape_markdown, escape_markdown_sentence, format_markdown_code};
use super::judged::headline;
use super::table::CellKind::{Hop, Number, Rid, Text};
use super::table::{self, Table};
use super::tool_calls::ExplainedCalls;
use super::{Chunks, Clock, FindingLine, FrontendCounts, Itl, Report, TtftReport, bar, brief};

/// Maximum number of requests and functions listed.
const MAX_ROWS: usize = 10;
/// Maximum number of ranges of lost positions, and of ids, in a row. With more, the table alone might exceed a comment on GitHub, which has
/// at most 65,536 characters.
const MAX_RANGES: usize = 200;
/// Width of the bar in characters.
const BAR_WIDTH: usize = 40;

/// The report as Markdown.
pub(super) fn render_markdown(report: &Report, clock: &Clock) -> String {
    let mut out = String::new();
    write_verdict_and_main_numbers(&mut out, report, clock);
    write_findings(&mut out, report, clock);
    write_losses(&mut out, report, clock);
    write_tool_calls(&mut out, report);
    write_slowest_requests(&mut out, report, clock);
    write_pair_ttft(&mut out, report, clock);
    write_ttft(&mut out, report);
    write_path(&mut out, report);
    if let Some(hops) = table::hop_table(report) {
        write_table_section(&mut out, "Hops", hops);
    }
    if let Some(cpu) = table::cpu_table(report) {
        write_table_section(&mut out, "CPU", cpu);
    }
    for role in report.stacks.iter().flatten() {
        let heading = format!("Python functions of {}", escape_markdown(&role.role));
        write_table_section(&mut out, &heading, table::function_table(role, MAX_ROWS));
    }
    if let Some(worst) = report.stages.as_ref().and_then(|log| log.slowest.first()) {
        let heading = format!("Worst request by the engine's log: {}", format_markdown_code(&worst.rid));
        write_table_section(&mut out, &heading, table::stage_table(worst, clock));
    }
    write_missed_observations(&mut out, report);
    out
}

/// Writes a table of cells that are escaped already. Columns are aligned by their kind.
pub(crate) fn write_table<const N: usize>(out: &mut String, Table { columns, rows }: &Table<'_, N>) {
    append_line!(out, "| {} |", columns.map(|(name, _)| name).join(" | "));
    append_line!(out, "|{}|", columns.map(|(_, kind)| if kind == Number { "--:" } else { "---" }).join("|"));
    for row in rows {
        append_line!(out, "| {} |", row.join(" | "));
    }
}

/// Writes a table under a heading. Cells are escaped by the kind of their column.
fn write_table_section<const N: usize>(out: &mut String, heading: &str, mut section: Table<'_, N>) {
    for row in &mut section.rows {
        for (cell, (_, kind)) in row.iter_mut().zip(section.columns) {
            match kind {
                Text => *cell = escape_markdown(cell),
                Rid | Hop => *cell = format_markdown_code(cell),
                Number => {}
            }
        }
    }
    append_line!(out, "### {heading}\n");
    write_table(out, &section);
    out.push('\n');
}

/// Writes the verdict as heading, then the main numbers as a list.
fn write_verdict_and_main_numbers(out: &mut String, report: &Report, clock: &Clock) {
    append_line!(out, "## {}\n", escape_markdown(&headline(report, clock)));
    if let Some(worst) = report.worst_finding() {
        append_line!(out, "- **when** {}", brief::describe_finding_times(worst, clock));
    }
    append_line!(out, "- **capture** {}", clock.describe_capture(report.capture_length_ns()));
    append_line!(out, "- **requests** {}", brief::summarise_requests(&report.requests));
    let gap = report.gap_ns.as_ref().map_or_else(brief::unobserved_text, brief::describe_gap);
    append_line!(out, "- **gap** {gap}");
    append_line!(out, "- **lost** {}", describe_lost_tokens_and_chunks(&report.chunks));
    if let Some(latency) = describe_inter_token_latency(&report.itl_ns) {
        append_line!(out, "- **inter-token latency** {latency}");
    }
    for line in report.frontend.iter().flat_map(FrontendCounts::describe_frontend_waits) {
        append_line!(out, "- **frontend** {line}");
    }
    append_line!(
        out,
        "- **engine** {}: {}\n",
        escape_markdown(&brief::describe_engine(report)),
        escape_markdown(&brief::describe_known_losses(report))
    );
}

/// Inter-token latency at clients, then at the engine; `None` unless both were observed.
fn describe_inter_token_latency(itl: &Itl) -> Option<String> {
    let client = itl.delivered_by_token?;
    let engine = itl.sent_by_token?;
    let [p50, p90, p99] = [client.p50, client.p90, client.p99].map(duration);
    let sent = [engine.p50, engine.p90, engine.p99].map(duration).join(", ");
    Some(format!("p50 {p50}, p90 {p90}, p99 {p99} at the client; {sent} as the engine sent"))
}

/// Numbers of lost tokens and chunks if deliveries were observed, else of chunks that are predicted to be lost.
fn describe_lost_tokens_and_chunks(chunks: &Chunks) -> String {
    if let Some(dropped) = chunks.dropped_confirmed {
        let tokens = known_or_dash(chunks.tokens_lost, count);
        let share = share(dropped, chunks.sent);
        format!("{tokens} tokens in {} chunks ({share} of all), confirmed by counts", count(dropped))
    } else if let Some(dropped) = chunks.shown_prediction() {
        format!("{} chunks predicted; deliveries were not observed", count(dropped))
    } else {
        brief::unobserved_text()
    }
}

/// Writes the findings as a numbered list, worst first.
fn write_findings(out: &mut String, report: &Report, clock: &Clock) {
    for (finding, number) in report.findings.iter().zip(1..) {
        let severity = finding.severity.as_str();
        append_line!(
            out,
            "{number}. **{severity}** {}: {}",
            escape_markdown(&finding.kind),
            escape_markdown(&finding.summary)
        );
        append_line!(out, "   {}", describe_occurrence(finding, clock));
        if let Some(advice) = &finding.advice {
            append_line!(out, "   **do** {}", escape_markdown_sentence(advice));
        }
    }
    if !report.findings.is_empty() {
        out.push('\n');
    }
}

/// When and where the problem of a finding occurred, and the request that it affected worst.
fn describe_occurrence(finding: &FindingLine, clock: &Clock) -> String {
    let mut text = brief::describe_finding_times(finding, clock);
    if let Some(place) = &finding.hop {
        append!(text, ", {}", escape_markdown(&brief::describe_place(place)));
    }
    if !finding.rid.is_empty() {
        append!(text, ", worst {}", format_markdown_code(&finding.rid));
    }
    text
}

/// Writes the outcomes of tool calls, and an explanation of the first few that are not complete.
fn write_tool_calls(out: &mut String, report: &Report) {
    let Some(calls) = &report.tool_calls else { return };
    append_line!(out, "### Tool calls of responses: {}\n", calls.summarise_calls());
    for ExplainedCalls { rid, explanation } in calls.explain_first_incomplete_calls() {
        append_line!(out, "- {}: {explanation}", format_markdown_code(&rid));
    }
    out.push('\n');
}

/// Writes the requests that lost tokens, if deliveries were observed.
fn write_losses(out: &mut String, report: &Report, clock: &Clock) {
    if let Some(list) = &report.losses.confirmed
        && !list.lines.is_empty()
    {
        let heading = format!("Lost tokens, confirmed: {}", plural(list.requests, "request"));
        write_table_section(out, &heading, table::loss_table(list, clock, MAX_ROWS, MAX_RANGES));
    }
}

/// Writes the table of the requests with the longest waits for their first token.
fn write_slowest_requests(out: &mut String, report: &Report, clock: &Clock) {
    if !report.has_slowest() {
        return;
    }
    let worst = Table::new(
        report.slowest.iter().take(MAX_ROWS),
        [
            ("Request", Rid, &|line| line.rid.clone()),
            ("First sent", Number, &|line| known_or_dash(line.first_sent_ns, |ns| clock.describe_moment(ns))),
            ("TTFT", Number, &|line| known_or_dash(line.ttft_ns, duration)),
            ("Gap", Number, &|line| line.format_gap_or_wait(report.capture_length_ns())),
            ("First received", Number, &|line| known_or_dash(line.first_received_ns, |ns| clock.describe_moment(ns))),
            ("Tokens sent", Number, &|line| count(line.tokens_sent)),
            ("Lost", Number, &|line| known_or_dash(line.tokens_lost, count)),
            ("Finish", Text, &|line| line.finish.as_deref().unwrap_or("-").to_owned()),
        ],
    );
    write_table_section(out, "Worst requests", worst);
}

/// Writes where the time to first token goes on both servers of a pair.
fn write_pair_ttft(out: &mut String, report: &Report, clock: &Clock) {
    if let Some(pair) = &report.pair {
        let mut lines = vec![pair.headline.clone()];
        lines.extend(pair.describe_in_paragraphs());
        // The text passed as heading also has the paragraph below it.
        let heading = format!("Where TTFT goes on both servers\n\n{}", escape_markdown(&lines.join("; ")));
        write_table_section(out, &heading, table::pair_table(&pair.legs));
        if !pair.slowest.is_empty() {
            write_table_section(
                out,
                "Slowest requests on both servers",
                table::pair_request_table(&pair.slowest, clock, MAX_ROWS),
            );
        }
    }
}

/// Writes where the time to first token goes, for the largest group of requests with the same observed moments.
fn write_ttft(out: &mut String, report: &Report) {
    let Some(main) = report.ttft.as_ref().and_then(TtftReport::main_group) else { return };
    // The text passed as heading also has the paragraph below it.
    let mut heading = format!("Where TTFT goes\n\n{}", brief::describe_ttft(main));
    for line in brief::describe_ttft_caveats(report) {
        append!(heading, "; {line}");
    }
    write_table_section(out, &heading, table::ttft_table(main));
}

/// Writes where a chunk's time goes, with the bar of the first tokens.
fn write_path(out: &mut String, report: &Report) {
    if let Some(bar) = bar::describe_bar(&report.path, BAR_WIDTH) {
        // The text passed as heading also has the bar below it.
        let heading = format!("Where the time goes\n\n{}", format_markdown_code(&bar));
        write_table_section(out, &heading, table::path_table(report));
    }
}

/// Writes what was not observed, and what the observation missed.
fn write_missed_observations(out: &mut String, report: &Report) {
    append_line!(out, "### Not observed, and missed observations\n");
    for what in brief::list_unobserved_stages(report) {
        append_line!(out, "- not observed (shown as -): {what}");
    }
    for failure in brief::describe_degraded(report) {
        append_line!(out, "- unavailable or failed: {}", escape_markdown(&failure));
    }
    for (name, line) in brief::limits_reached(report) {
        append_line!(
            out,
            "- the limit {} of {} was reached {} times",
            format_markdown_code(name),
            count(line.limit),
            count(line.reached)
        );
    }
    let own = &report.own;
    append_line!(
        out,
        "- tokengap observed {} events, missed {}; {} frames could not be read",
        count(own.events),
        count(own.missed()),
        count(own.frames_undecoded)
    );
}
