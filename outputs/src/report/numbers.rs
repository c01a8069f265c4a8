//! Numbers of requests, tokens, chunks and responses, in the text form of the report.

use std::collections::BTreeMap;

use trace::words::{bytes, count, duration, plural};

use super::answers::describe_responses;
use super::brief::{self, NO_NAME, write_named_row};
use super::hostile::escape_and_cut_line as escape_line;
use super::{Chunks, Dispatched, ModeLine, NewConnectionsReport, Report, Requests, Tokens};

/// Numbers of requests by outcome. `joined late`: not observed from their start. `overwritten`: their rid was reused while they were in
/// flight. `orphaned`: removed unfinished after a long silence. The number of health checks comes last.
fn describe_requests(requests: &Requests) -> String {
    let mut line = brief::summarise_requests(requests);
    for (number, how) in
        [(requests.joined_late, "joined late"), (requests.overwritten, "overwritten"), (requests.orphaned, "orphaned")]
    {
        if number > 0 {
            append!(line, ", {} {how}", count(number));
        }
    }
    if requests.health_checks > 0 {
        append!(line, ", {}", plural(requests.health_checks, "health check"));
    }
    line
}

/// Numbers of tokens by the last stage they reached.
fn describe_tokens(tokens: &Tokens) -> String {
    let received = brief::describe_value_or_unobserved(tokens.received, count, "received");
    let delivered = brief::describe_value_or_unobserved(tokens.delivered, count, "delivered");
    let mut line = format!("{} sent, {received}, {delivered}", count(tokens.sent));
    // These tokens are not among the delivered ones.
    if let Some(uncounted) = tokens.uncounted
        && uncounted > 0
    {
        append!(line, ", {} sent as text only", count(uncounted));
    }
    line
}

/// Writes the numbers of requests, tokens, chunks and responses, and the main times.
pub(super) fn write_numbers(out: &mut String, report: &Report) {
    write_named_row(out, "requests", &describe_requests(&report.requests));
    if let Some(dispatched) = &report.dispatched {
        write_named_row(out, "to scheduler", &describe_dispatched(report, dispatched));
    }
    if let Some(late) = report.new_connections.as_ref().and_then(NewConnectionsReport::describe_late_accepts) {
        write_named_row(out, "connections", &late);
    }
    if let Some(pair) = &report.pair {
        write_named_row(out, "pair", &pair.headline);
    }
    // A log has no frames, so it counts no tokens and chunks.
    if !report.is_log_only() {
        write_named_row(out, "tokens", &describe_tokens(&report.tokens));
        write_named_row(out, "chunks", &describe_chunks(&report.chunks));
        write_mode_costs(out, report);
    }
    let mut responses = Vec::new();
    responses.extend(report.answers.as_ref().map(describe_responses));
    responses.extend(describe_rejected_responses(&report.rejected));
    write_rows_under_name(out, "responses", &responses);
    write_gap(out, report);
    write_inter_token_latency(out, report);
    super::frontend::write_frontend_rows(out, report);
    append_line!(out);
}

/// Writes what each output mode costs: one line per hop, and one for clients. Writes nothing if no ids crossed.
fn write_mode_costs(out: &mut String, report: &Report) {
    let mut modes: Vec<String> = report.modes.hops.iter().map(describe_ids_of_hop).collect();
    modes.extend(report.modes.client.as_ref().map(describe_ids_of_clients));
    write_rows_under_name(out, "ids", &modes);
}

/// Writes the first-token gap with its worst request. Writes nothing if gaps were not observed.
fn write_gap(out: &mut String, report: &Report) {
    let Some(gap) = &report.gap_ns else { return };
    write_named_row(out, "gap", &format!("{} over {} requests", brief::describe_gap(gap), count(gap.count)));
    if !gap.max_rid.is_empty() {
        write_named_row(out, NO_NAME, &format!("worst: {}", gap.max_rid));
    }
}

/// Writes the inter-token latency at the engine (`itl sent`) and at clients, as far as it was observed.
fn write_inter_token_latency(out: &mut String, report: &Report) {
    let itl = &report.itl_ns;
    for (name, by_token, by_chunk) in
        [("itl sent", itl.sent_by_token, itl.sent), ("itl client", itl.delivered_by_token, itl.delivered)]
    {
        // Without quantiles by token, those by chunk take their place.
        if let Some(itl) = by_token.or(by_chunk) {
            let [p50, p90, p99] = [itl.p50, itl.p90, itl.p99].map(duration);
            // The longest pause is one between chunks. Without their times, the longest between tokens stands for it.
            let between = duration(by_chunk.map_or(itl.max, |chunks| chunks.max));
            let line = format!("median {p50}, p90 {p90}, p99 {p99} by token; up to {between} between chunks");
            write_named_row(out, name, &line);
        }
    }
}

/// Describes the requests sent to the scheduler: their number, those without a token yet, and how long the scheduler took to receive them.
fn describe_dispatched(report: &Report, dispatched: &Dispatched) -> String {
    let Dispatched { requests, aborts, waiting, waiting_longest_ns, unanswered, unanswered_total, .. } = *dispatched;
    let mut line = plural(requests, "request");
    if aborts > 0 {
        append!(line, ", {}", plural(aborts, "abort"));
    }
    if let Some(longest) = waiting_longest_ns {
        append!(line, ", {} without a token (longest {})", count(waiting), duration(longest));
    }
    if unanswered_total > 0 {
        // Some may have been answered later.
        let at_end =
            if unanswered == unanswered_total { String::new() } else { format!(" ({} at the end)", count(unanswered)) };
        append!(line, ", {} not answered while later ones were{at_end}", count(unanswered_total));
    }
    let request_hops = report.hops.iter().filter(|hop| hop.carries_requests);
    for wait in request_hops.filter_map(|hop| hop.queue_wait_ns) {
        let [p50, p99, max] = [wait.p50, wait.p99, wait.max].map(duration);
        append!(line, "; received after {p50} (p99 {p99}, max {max})");
    }
    line
}

/// Numbers of chunks by outcome. A prediction of drops does not need deliveries, the others do.
fn describe_chunks(chunks: &Chunks) -> String {
    let mut line = format!(
        "{} sent, {}",
        count(chunks.sent),
        brief::describe_value_or_unobserved(chunks.received, count, "received")
    );
    if chunks.merged.is_none() {
        line.push_str(", merged and dropped (confirmed): not observed");
    }
    for (number, what) in [
        (chunks.merged, "merged"),
        (chunks.shown_prediction(), "dropped (predicted)"),
        (chunks.dropped_confirmed, "dropped (confirmed)"),
        (chunks.tokens_lost, "tokens lost"),
    ] {
        if let Some(number) = number {
            append!(line, ", {} {what}", count(number));
        }
    }
    line
}

/// Responses with an error status; `None` without any.
fn describe_rejected_responses(by_status: &BTreeMap<u16, u64>) -> Option<String> {
    let total: u64 = by_status.values().sum();
    if total == 0 {
        return None;
    }
    let each: Vec<String> =
        by_status.iter().map(|(status, responses)| format!("{} with {status}", count(*responses))).collect();
    Some(format!("{} with an error status: {}", plural(total, "response"), each.join(", ")))
}

/// Bytes and repeated ids of a hop, with the estimated bytes of the other mode.
fn describe_ids_of_hop(line: &ModeLine) -> String {
    let mut text = format!("{}: ", escape_line(&line.name));
    if let Some(bytes_per_token) = line.bytes_per_token {
        append!(text, "{bytes_per_token:.0} bytes a token, ");
    }
    append!(text, "{} of {} ids are repeats", count(line.ids_repeated), count(line.ids));
    // Only cumulative mode repeats ids.
    let is_cumulative = line.ids_repeated > 0;
    if is_cumulative && let Some(less) = line.bytes_if_incremental_estimate {
        append!(text, "; in incremental mode: about {} in total", bytes(less));
    }
    if !is_cumulative && let Some(more) = line.bytes_if_cumulative_estimate {
        append!(text, "; in cumulative mode: about {} in total", bytes(more));
    }
    text
}

/// Repeated ids in what clients received.
fn describe_ids_of_clients(line: &ModeLine) -> String {
    let repeated = if line.ids_repeated > 0 {
        format!("{} of them repeats (about {})", count(line.ids_repeated), bytes(line.bytes_repeated_estimate))
    } else if let Some(ids) = line.ids_if_cumulative {
        format!("no repeats; in cumulative mode: {} ids", count(ids))
    } else {
        String::from("no repeats; in cumulative mode: unknown, because not all of a response was observed")
    };
    format!("client: {} ids for {} tokens, {repeated}", count(line.ids), count(line.tokens))
}

/// Writes rows, with the name in front of the first.
fn write_rows_under_name(out: &mut String, name: &str, rows: &[String]) {
    for (index, text) in rows.iter().enumerate() {
        let row_name = if index == 0 { name } else { NO_NAME };
        write_named_row(out, row_name, text);
    }
}
