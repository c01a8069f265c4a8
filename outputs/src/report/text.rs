//! The report as text: verdict, numbers, advice, then unobserved stages.

use std::collections::BTreeSet;

use serde_json::Value;
use trace::detect::Severity;
use trace::stats::Spread;
use trace::words::{bytes, count, decimal_percent, duration, known_or_dash, percent, plural};

use super::brief::{
    NO_INDENT, NO_NAME, append_right_aligned_cells, describe_place, write_indented, write_named_row, write_wrapped,
};
use super::hostile::{escape_and_cut_line as escape_line, lines as escape_lines};
use super::judged::headline;
use super::path::PathRow;
use super::ttft::TtftReport;
use super::{
    Clock, FindingLine, HopLine, LegKind, LossLine, LossList, PairRequestLine, Report, WorkerLine, abandoned, bar,
    brief, numbers, stacks, stages,
};

/// Maximum number of requests named; the JSON lists more.
const MAX_LOSSY_REQUESTS: usize = 5;
/// Maximum number of requests of a pair; the JSON lists more.
const MAX_PAIR_REQUESTS: usize = 5;
/// Maximum number of ranges and ids per request.
const MAX_RANGES: usize = 12;
/// Maximum number of workers and connections per line; the JSON lists more.
const MAX_WORKERS_OR_LANES: usize = 16;
/// Width of the column with the names of legs.
const LEG_WIDTH: usize = 38;
/// Width of the bar in cells.
const BAR_WIDTH: usize = 40;
/// Cells of a row that has no shares.
const NO_SHARES: &str = "";

/// The report as text for a terminal.
pub(super) fn render_text(report: &Report, clock: &Clock) -> String {
    let mut out = String::new();
    write_verdict_source_and_length(&mut out, report, clock);
    numbers::write_numbers(&mut out, report);
    write_demo_truth(&mut out, report);
    write_losses(&mut out, report, clock);
    super::tool_calls::write_tool_calls(&mut out, report);
    abandoned::write_abandoned(&mut out, report, clock);
    write_slowest_requests(&mut out, report, clock);
    stages::write_stage_report(&mut out, report, clock);
    write_hop_table(&mut out, report);
    write_pair_ttft(&mut out, report, clock);
    write_ttft(&mut out, report);
    write_path(&mut out, report);
    write_thread_cpu(&mut out, report);
    if let Some(lines) = &report.stacks {
        stacks::write_function_tables(&mut out, lines, report.own.sampling.as_ref());
    }
    write_findings(&mut out, report, clock);
    write_not_observed(&mut out, report);
    write_missed_observations_and_costs(&mut out, report);
    // Names come from the wire and must not control the terminal.
    escape_lines(&out)
}

/// Writes the ground truth of the demo, for comparison with the findings.
fn write_demo_truth(out: &mut String, report: &Report) {
    let Some(truth) = report.demo.as_ref().and_then(|demo| demo.get("truth")) else { return };
    let names = ["requests", "chunks", "tokens", "chunks_merged", "chunks_dropped", "tokens_lost"];
    let numbers = names.map(|name| count(truth.get(name).and_then(Value::as_u64).unwrap_or_default()));
    let [requests, chunks, tokens, merged, dropped, lost] = numbers;
    let line = format!(
        "{requests} requests, {chunks} chunks and {tokens} tokens sent, {merged} merged, {dropped} dropped, {lost} tokens lost"
    );
    write_named_row(out, "demo's truth", &line);
    out.push('\n');
}

/// Writes the verdict, the source, the engine and the length of the capture.
fn write_verdict_source_and_length(out: &mut String, report: &Report, clock: &Clock) {
    write_wrapped(out, &headline(report, clock), NO_INDENT, "  ");
    let engine = brief::describe_engine(report);
    let capture = clock.describe_capture(report.capture_length_ns());
    write_wrapped(out, &format!("{} of {engine}, {capture}", report.source.kind), NO_INDENT, "  ");
    append_line!(out);
}

/// Writes the requests that lost tokens: the worst few, with their missing positions.
fn write_losses(out: &mut String, report: &Report, clock: &Clock) {
    // If deliveries are observed, they decide. The prediction only matters for judging its accuracy.
    if let Some(confirmed) = &report.losses.confirmed {
        write_loss_list(out, confirmed, "LOST TOKENS, CONFIRMED", clock);
    } else if let Some(predicted) = &report.losses.predicted {
        write_loss_list(out, predicted, "LOST TOKENS, PREDICTED", clock);
    }
}

/// Writes the worst requests of a list under a heading, and the number of the others.
fn write_loss_list(out: &mut String, list: &LossList, heading: &str, clock: &Clock) {
    if list.lines.is_empty() {
        return;
    }
    append_line!(out, "{heading}: {}", plural(list.requests, "request"));
    for line in list.lines.iter().take(MAX_LOSSY_REQUESTS) {
        write_indented(out, &describe_loss(line, clock));
    }
    let shown = MAX_LOSSY_REQUESTS.min(list.lines.len()) as u64;
    let not_shown = list.requests.saturating_sub(shown);
    if not_shown > 0 {
        append_line!(out, "  and {} more; the JSON lists {}", count(not_shown), count(list.lines.len() as u64));
    }
    append_line!(out);
}

/// Lost tokens of a request, with their times, positions and ids.
fn describe_loss(line: &LossLine, clock: &Clock) -> String {
    let preposition = if line.at_ns == line.last_at_ns { "at" } else { "from" };
    let mut text = format!(
        "{}: {} of {} tokens in {}, {preposition} {}",
        escape_line(&line.rid),
        count(line.tokens),
        count(line.tokens_sent),
        plural(line.chunks, "chunk"),
        line.describe_loss_times(clock)
    );
    let places = line.list_positions(MAX_RANGES);
    if !places.is_empty() {
        append!(text, ", positions {places}");
    }
    let ids = line.list_ids(MAX_RANGES);
    if !ids.is_empty() {
        append!(text, " (ids {ids})");
    }
    text
}

/// Writes the table of the requests with the longest waits for their first token.
fn write_slowest_requests(out: &mut String, report: &Report, clock: &Clock) {
    // Requests from the log follow stage by stage.
    if !report.has_slowest() || report.is_log_only() {
        return;
    }
    // Longer ids are cut.
    let widest = 36;
    // The heading and the rows have columns of the same widths.
    append_line!(
        out,
        "{:widest$}  {:>12} {:>9} {:>12} {:>8} {:>8}  FINISH",
        "SLOWEST",
        "SENT AT",
        "TTFT",
        "GAP",
        "TOKENS",
        "LOST"
    );
    for line in &report.slowest {
        let rid: String = escape_line(&line.rid).chars().take(widest).collect();
        append_line!(
            out,
            "{rid:widest$}  {:>12} {:>9} {:>12} {:>8} {:>8}  {}",
            known_or_dash(line.first_sent_ns, |ns| clock.describe_moment(ns)),
            known_or_dash(line.ttft_ns, duration),
            line.format_gap_or_wait(report.capture_length_ns()),
            count(line.tokens_sent),
            known_or_dash(line.tokens_lost, count),
            escape_line(line.finish.as_deref().unwrap_or("-")),
        );
    }
    append_line!(out);
}

/// Writes the table of hops, with the details of each below its row.
fn write_hop_table(out: &mut String, report: &Report) {
    const MIN_WIDTH: usize = 12;
    /// Longer names are cut. Behind such a name, the numbers fill a line of 100 columns.
    const MAX_WIDTH: usize = 31;
    if report.hops.is_empty() {
        return;
    }
    let longest_name = report.hops.iter().map(|hop| hop.name.chars().count()).max().unwrap_or(0);
    let name_width = longest_name.clamp(MIN_WIDTH, MAX_WIDTH);
    write_hop_headings(out, name_width);
    for hop in &report.hops {
        write_hop_row(out, hop, name_width);
        write_hop_details(out, hop);
    }
    append_line!(out);
}

/// Writes the headings of the table of hops.
fn write_hop_headings(out: &mut String, name_width: usize) {
    // Numbers and their headings are aligned to the right. `MAX BACKLOG` is longer than the numbers below it, and `BYTES` is shorter. So
    // `MAX BACKLOG` takes 3 characters of the width of `BYTES`.
    append_line!(
        out,
        "{:name_width$} {:>10} {:>9} {:>10} {:>6} {:>11} {:>8} {:>8}",
        "HOP",
        "SENT",
        "RECEIVED",
        "CHUNKS",
        "BYTES",
        "MAX BACKLOG",
        "WAIT P50",
        "WAIT MAX"
    );
}

/// Writes the row of a hop. Cuts a name that is longer than `name_width`.
fn write_hop_row(out: &mut String, hop: &HopLine, name_width: usize) {
    const NUMBER_WIDTHS: [usize; 7] = [10, 9, 10, 9, 8, 8, 8];
    let name: String = escape_line(&hop.name).chars().take(name_width).collect();
    let mut row = format!("{name:name_width$}");
    let numbers = [
        known_or_dash(hop.frames_sent, count),
        known_or_dash(hop.frames_received, count),
        hop.chunk_count(),
        bytes(hop.bytes),
        known_or_dash(hop.backlog_max_frames, count),
        known_or_dash(hop.queue_wait_ns, |wait| duration(wait.p50)),
        known_or_dash(hop.queue_wait_ns, |wait| duration(wait.max)),
    ];
    append_right_aligned_cells(&mut row, NUMBER_WIDTHS, numbers);
    append_line!(out, "{row}");
}

/// Writes the numbers of a hop for which its row in the table has no column, as far as they were observed.
fn write_hop_details(out: &mut String, hop: &HopLine) {
    let mut parts = describe_times_of_frames(hop);
    parts.extend(describe_lower_queues(hop));
    if let Some(frames) = hop.wakeup_frames_max
        && frames > 1
    {
        parts.push(format!("up to {} per wakeup", plural(frames.into(), "frame")));
    }
    if let Some(busy) = hop.busy {
        parts.push(format!("receiver busy for {} of the run", percent(busy)));
    }
    parts.extend(describe_receivers(hop));
    if let Some(lanes) = &hop.lanes {
        parts.push(format!("{} connections", lanes.len()));
    }
    if !parts.is_empty() {
        write_wrapped(out, &parts.join(", "), "  ", "  ");
    }
    write_workers_and_lanes(out, hop);
}

/// What the frames of a hop wait for, and how long: `waited 1.2 ms in the sender (p99 3.0 ms)`. Leaves out what was not observed.
fn describe_times_of_frames(hop: &HopLine) -> Vec<String> {
    let mut times = Vec::new();
    for (spread, words_before, words_after) in [
        (&hop.send_wait_ns, "waited ", " in the sender"),
        (&hop.relay_ns, "in the relay ", ""),
        (&hop.processing_ns, "processed in ", ""),
        (&hop.recv_wait_ns, "received ", " after asking"),
    ] {
        if let Some(Spread { p50, p99, .. }) = spread {
            times.push(format!("{words_before}{}{words_after} (p99 {})", duration(*p50), duration(*p99)));
        }
    }
    times
}

/// Maxima of the queues below the engine, in libzmq and in the kernel. Leaves out what was not observed.
fn describe_lower_queues(hop: &HopLine) -> Vec<String> {
    let mut queues = Vec::new();
    if let Some(frames) = hop.inbox_max_frames {
        let max = plural(frames, "frame");
        queues.push(format!("up to {max} in libzmq's inbox"));
    }
    if let Some(max) = hop.kernel_bytes_max {
        let max = if max == 0 { String::from("none") } else { format!("up to {}", bytes(max)) };
        queues.push(format!("{max} in the kernel"));
    }
    queues
}

/// Writes where the time to first token goes, for the largest group of requests with the same observed moments.
fn write_ttft(out: &mut String, report: &Report) {
    let Some(main) = report.ttft.as_ref().and_then(TtftReport::main_group) else { return };
    // `write_ttft_row` fills these columns, the last two with `shares`.
    append_line!(
        out,
        "{:LEG_WIDTH$}  {:>9} {:>9} {:>9} {:>9} {:>8} {:>9}",
        "WHERE TTFT GOES",
        "MEAN",
        "P50",
        "P99",
        "MAX",
        "SHARE",
        "LAST 10 S"
    );
    for leg in &main.legs {
        let shares = format!("{:>8} {:>9}", percent(leg.share), known_or_dash(leg.recent_share, percent));
        write_ttft_row(out, &escape_line(&leg.words), leg.mean_ns, &leg.ns, &shares);
    }
    write_ttft_row(out, &format!("in total, {}", plural(main.ns.count, "request")), main.mean_ns, &main.ns, NO_SHARES);
    for line in brief::describe_ttft_caveats(report) {
        write_wrapped(out, &line, "  ", "  ");
    }
    append_line!(out);
}

/// Writes where the time to first token goes on both servers of a pair.
fn write_pair_ttft(out: &mut String, report: &Report, clock: &Clock) {
    let Some(pair) = &report.pair else { return };
    append_line!(
        out,
        "{:LEG_WIDTH$}  {:>9} {:>9} {:>9} {:>9} {:>8}",
        "WHERE TTFT GOES ON BOTH SERVERS",
        "MEAN",
        "P50",
        "P99",
        "MAX",
        "SHARE"
    );
    for leg in &pair.legs {
        write_ttft_row(out, &leg.words, leg.mean_ns, &leg.ns, &format!("{:>8}", percent(leg.share)));
    }
    if let Some((ttft, mean_ns)) = pair.ttft_ns.as_ref().zip(pair.ttft_mean_ns) {
        write_ttft_row(out, &format!("in total, {}", plural(ttft.count, "request")), mean_ns, ttft, NO_SHARES);
    }
    for line in pair.describe_in_paragraphs() {
        write_indented(out, &escape_line(&line));
    }
    for absent in pair.describe_absent_moments() {
        write_indented(out, &format!("not known {absent}"));
    }
    append_line!(out);
    write_slowest_of_pair(out, &pair.slowest, clock);
}

/// Writes the requests with the longest times to first token, each with its legs on both servers.
fn write_slowest_of_pair(out: &mut String, slowest: &[PairRequestLine], clock: &Clock) {
    if slowest.is_empty() {
        return;
    }
    append_line!(out, "SLOWEST ON BOTH SERVERS, with the legs of TTFT in order");
    for line in slowest.iter().take(MAX_PAIR_REQUESTS) {
        let [decode_rid, prefill_rid] = [&line.decode_rid, &line.prefill_rid].map(|rid| escape_line(rid));
        let other_rid = if decode_rid == prefill_rid { String::new() } else { format!(" (prefill's {prefill_rid})") };
        let begin = line.describe_ttft_begin(clock);
        let ttft = duration(line.ttft_ns);
        let text = format!("{decode_rid}{other_rid} at {begin}, TTFT {ttft}: {}", line.describe_legs());
        write_indented(out, &text);
    }
    append_line!(out);
}

/// Writes the row of a leg, or of the sum of all legs. `share_cells` has the last cells of the row. A long name takes several lines instead
/// of being cut, because it may be the names of several legs. The numbers then stand beside its last line.
fn write_ttft_row(out: &mut String, name: &str, mean_ns: u64, spread_ns: &Spread, share_cells: &str) {
    let mut wrapped = String::new();
    brief::write_wrapped_within(&mut wrapped, name, NO_INDENT, "  ", LEG_WIDTH);
    let name_lines = wrapped.trim_end();
    let (first_lines, last_line) = name_lines.rsplit_once('\n').unwrap_or(("", name_lines));
    for line in first_lines.lines() {
        append_line!(out, "{line}");
    }
    let [mean, p50, p99, max] = [mean_ns, spread_ns.p50, spread_ns.p99, spread_ns.max].map(duration);
    let row = format!("{last_line:LEG_WIDTH$}  {mean:>9} {p50:>9} {p99:>9} {max:>9} {share_cells}");
    append_line!(out, "{}", row.trim_end());
}

/// Writes where a chunk's time goes, and the bar of the first tokens.
fn write_path(out: &mut String, report: &Report) {
    /// Between the name and the longest state of a thread, the numbers fill a line of 100 columns.
    const NUMBER_WIDTHS: [usize; 5] = [9, 8, 8, 5, 8];
    let rows = PathRow::all_rows(report);
    if rows.is_empty() {
        return;
    }
    let mut heading = format!("{:LEG_WIDTH$}", "WHERE A CHUNK'S TIME GOES");
    append_right_aligned_cells(
        &mut heading,
        NUMBER_WIDTHS,
        ["MEAN", "P50", "P99", "SHARE", "RUN BUSY"].map(String::from),
    );
    append_line!(out, "{heading}  THREAD");
    for row in &rows {
        let name: String = format_leg_name(row).chars().take(LEG_WIDTH).collect();
        let mut line = format!("{name:LEG_WIDTH$}");
        let numbers = [
            known_or_dash(row.mean_ns, duration),
            known_or_dash(row.ns, |ns| duration(ns.p50)),
            known_or_dash(row.ns, |ns| duration(ns.p99)),
            known_or_dash(row.share, percent),
            known_or_dash(row.busy, percent),
        ];
        append_right_aligned_cells(&mut line, NUMBER_WIDTHS, numbers);
        append_line!(out, "{line}  {}", row.thread);
    }
    write_first_token_bar(out, report);
    append_line!(out);
}

/// Name of a row of the path, indented for a process, which stands between hops.
fn format_leg_name(row: &PathRow) -> String {
    let name = escape_line(&row.name);
    match row.kind {
        LegKind::Wait if row.carries_requests => format!("(requests) {name}"),
        LegKind::Wait => name,
        LegKind::Inside => format!("  inside the {name}"),
        LegKind::WaitAndInside => format!("  before and inside the {name}"),
    }
}

/// Writes the bar of the first tokens, and between which processes its time passes. Writes nothing if no leg is large enough for the bar.
fn write_first_token_bar(out: &mut String, report: &Report) {
    let Some(bar) = bar::describe_bar(&report.path, BAR_WIDTH) else { return };
    write_named_row(out, "first tokens", &bar);
    if let Some(ends) = bar::ends_of_path(&report.path) {
        let sender = escape_line(ends.from);
        let receiver = escape_line(ends.to);
        write_named_row(out, NO_NAME, &format!("of the time from the {sender}'s send to the {receiver}'s receive"));
    }
}

/// States how many receivers the hops of one name have together. Hops to the same endpoint have one receiver. `None` if only one hop has
/// the name.
pub(super) fn describe_receivers(hop: &HopLine) -> Option<String> {
    // The hops are listed only if several have the name.
    let hops = hop.workers.as_ref()?;
    match count_receivers(hops) {
        1 => Some(format!("{} sockets send into one", hops.len())),
        receivers => Some(format!("{receivers} workers")),
    }
}

/// Number of different receivers of these hops. A receiver is known by its number or its endpoint.
fn count_receivers(hops: &[WorkerLine]) -> usize {
    let mut known_receivers = BTreeSet::new();
    let mut unknown_receivers = 0;
    for WorkerLine { worker, endpoint, .. } in hops {
        if worker.is_none() && endpoint.is_empty() {
            // Nothing shows whether other hops have the same receiver, so it counts as one of its own.
            unknown_receivers += 1;
        } else {
            known_receivers.insert((*worker, endpoint.as_str()));
        }
    }
    known_receivers.len() + unknown_receivers
}

/// Writes a line with the load of each worker of a hop, then one for each connection (lane). A worker is one of several receivers or
/// senders. A hop with a single worker has no list of workers, and one with a single connection no list of connections.
fn write_workers_and_lanes(out: &mut String, hop: &HopLine) {
    let workers = hop.workers.as_deref().unwrap_or_default();
    for worker in workers.iter().take(MAX_WORKERS_OR_LANES) {
        // A worker without a number is named by its endpoint.
        let name = worker.worker.map_or_else(|| escape_line(&worker.endpoint), |index| format!("worker {index}"));
        write_indented(out, &format!("{name}: {}", describe_worker(worker)));
    }
    let lanes = hop.lanes.as_deref().unwrap_or_default();
    for lane in lanes.iter().take(MAX_WORKERS_OR_LANES) {
        let into_worker = lane.worker.map_or_else(String::new, |index| format!(" into worker {index}"));
        let load = describe_load(lane.chunks, lane.tokens, lane.share);
        write_indented(out, &format!("connection {}{into_worker}: {load}", lane.lane));
    }
}

/// Load, queue and busy time of a worker, as far as they were observed.
fn describe_worker(worker: &WorkerLine) -> String {
    let mut parts = vec![describe_load(worker.chunks, worker.tokens, worker.share)];
    if let Some(max) = worker.backlog_max_frames {
        parts.push(format!("backlog up to {}", count(max)));
    }
    if let Some(queue_wait) = &worker.queue_wait_ns {
        parts.push(format!("queue wait {} (p99 {})", duration(queue_wait.p50), duration(queue_wait.p99)));
    }
    if let Some(busy) = worker.busy {
        parts.push(format!("busy for {} of the run", percent(busy)));
    }
    parts.join(", ")
}

/// Chunks and tokens of a worker or a connection, with its share.
fn describe_load(chunks: u64, tokens: u64, share: Option<f64>) -> String {
    let share = share.map_or_else(String::new, |share| format!("{} of chunks: ", percent(share)));
    format!("{share}{} with {} tokens", count(chunks), count(tokens))
}

/// Share of its time that a thread spent on something: `12.5 % on cpu`. If it is unknown, the reason: `on cpu: not observed`.
fn describe_share_of_time(share: Option<f64>, activity: &str, why_unknown: &str) -> String {
    match share {
        Some(share) => format!("{} {activity}", decimal_percent(share)),
        None => format!("{activity}: {why_unknown}"),
    }
}

/// Writes how the engine's threads spent their time.
fn write_thread_cpu(out: &mut String, report: &Report) {
    let lines = report.cpu.as_deref().unwrap_or_default();
    if lines.is_empty() {
        return;
    }
    for line in lines {
        let on_cpu = describe_share_of_time(line.on_cpu, "on cpu", &brief::unobserved_text());
        let wait = describe_share_of_time(line.run_wait, "waiting for a CPU", brief::NO_WAITS);
        let mut text = format!(
            "{} ({}/{} {}): {on_cpu}, {wait}, {}",
            line.role,
            line.pid,
            line.tid,
            line.name,
            describe_share_of_time(line.throttled, "throttled", brief::NO_THROTTLING)
        );
        if let Some(away) = line.away_from_poll {
            append!(text, ", {} away from its poll", decimal_percent(away));
        }
        write_named_row(out, "cpu", &text);
    }
    append_line!(out);
}

/// Writes the findings with their times and advice, worst first.
fn write_findings(out: &mut String, report: &Report, clock: &Clock) {
    for finding in &report.findings {
        let head = format!("{} {}: {}", severity_mark(finding.severity), finding.kind, finding.summary);
        // All lines of a finding but its first are indented.
        let indent = "    ";
        write_wrapped(out, &head, NO_INDENT, indent);
        write_wrapped(out, &describe_occurrence(finding, clock), indent, indent);
        if let Some(advice) = &finding.advice {
            let behind_arrow = "       ";
            write_wrapped(out, &format!("-> {advice}"), indent, behind_arrow);
        }
    }
    if !report.findings.is_empty() {
        append_line!(out);
    }
}

/// When and where the problem of a finding occurred, and the request that it affected worst.
fn describe_occurrence(finding: &FindingLine, clock: &Clock) -> String {
    let mut text = brief::describe_finding_times(finding, clock);
    if let Some(place) = &finding.hop {
        append!(text, ", {}", describe_place(place));
    }
    if !finding.rid.is_empty() {
        append!(text, ", worst {}", finding.rid);
    }
    text
}

/// Mark in front of a finding of this severity.
fn severity_mark(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "[i]",
        Severity::Warning => "[!]",
        Severity::Critical => "[X]",
    }
}

/// Writes what was not observed or not available, which explains each `-`.
fn write_not_observed(out: &mut String, report: &Report) {
    let missing = brief::list_unobserved_stages(report);
    if !missing.is_empty() {
        write_named_row(out, "not observed", &format!("(shown as -) {}", missing.join("; ")));
    }
    for failure in brief::describe_degraded(report) {
        write_named_row(out, "degraded", &failure);
    }
}

/// Writes what the observation missed and cost.
fn write_missed_observations_and_costs(out: &mut String, report: &Report) {
    let own = &report.own;
    let events = plural(own.events, "event");
    let undecoded = plural(own.frames_undecoded, "frame");
    let mut line = format!("{events}, {} missed, {undecoded} undecoded", count(own.missed()));
    if let Some(cpu) = own.cpu_ns {
        append!(line, ", {} of CPU", duration(cpu));
    }
    if let Some(rss) = own.rss_bytes {
        append!(line, ", {} resident", bytes(rss));
    }
    write_named_row(out, "tokengap", &line);
}
