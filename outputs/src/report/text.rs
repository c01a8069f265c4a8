//! The report as text: verdict, numbers, advice, then unobserved stages.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::Value;
use trace::detect::Severity;
use trace::stats::Spread;
use trace::words::{bytes, count, duration, known_or_dash, percent, plural};

use super::brief::{row, wrap};
use super::hostile::{lines, plain};
use super::judged::headline;
use super::ttft::TtftReport;
use super::{
    AnswerCounts, Chunks, Clock, Dispatched, HopLine, LegKind, LossLine, LossList, ModeLine, Report, abandoned, bar,
    brief, stacks, stages,
};

/// Maximum number of requests named; the JSON lists more.
const LOSSY: usize = 5;
/// Maximum number of ranges and ids per request.
const RANGES: usize = 12;
/// Maximum number of workers and connections per line; the JSON lists more.
const MEMBERS: usize = 16;
const LEG: usize = 38;
/// Width of the bar in cells.
const BAR: usize = 40;

pub(super) fn render(report: &Report, clock: &Clock) -> String {
    let mut out = String::new();
    head(&mut out, report, clock);
    numbers(&mut out, report);
    truth(&mut out, report);
    losses(&mut out, report, clock);
    super::tool_calls::render(&mut out, report);
    abandoned::render(&mut out, report, clock);
    slowest(&mut out, report, clock);
    stages::render(&mut out, report, clock);
    hops(&mut out, report);
    pair(&mut out, report);
    ttft(&mut out, report);
    path(&mut out, report);
    cpu(&mut out, report);
    if let Some(lines) = &report.stacks {
        stacks::text(&mut out, lines, report.own.sampling.as_ref());
    }
    findings(&mut out, report, clock);
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
    let names = ["requests", "chunks", "tokens", "chunks_merged", "chunks_dropped", "tokens_lost"];
    let numbers = names.map(|name| count(truth.get(name).and_then(Value::as_u64).unwrap_or_default()));
    let [requests, chunks, tokens, merged, dropped, lost] = numbers;
    let line = format!(
        "{requests} requests, {chunks} chunks and {tokens} tokens sent, {merged} merged, {dropped} dropped, {lost} tokens lost"
    );
    wrap(out, &line, "demo's truth  ", "              ");
    out.push('\n');
}

fn head(out: &mut String, report: &Report, clock: &Clock) {
    wrap(out, &headline(report, clock), "", "  ");
    let engine = brief::engine(report);
    let capture = clock.capture(report.window_ns[1]);
    wrap(out, &format!("{} of {engine}, {capture}", report.source.kind), "", "  ");
    let _ = writeln!(out);
}

fn numbers(out: &mut String, report: &Report) {
    let r = &report.requests;
    let mut line = brief::requests(r);
    for (n, what) in [(r.joined_late, "joined late"), (r.overwritten, "overwritten"), (r.orphaned, "orphaned")] {
        if n > 0 {
            let _ = write!(line, ", {} {what}", count(n));
        }
    }
    if r.health_checks > 0 {
        let _ = write!(line, ", {}", plural(r.health_checks, "health check"));
    }
    row(out, "requests", &line);
    if let Some(dispatched) = &report.dispatched {
        row(out, "to scheduler", &to_scheduler(report, dispatched));
    }
    if let Some(pair) = &report.pair {
        row(out, "pair", &pair.headline);
    }
    if !report.is_log_only() {
        let t = &report.tokens;
        let (received, delivered) =
            (brief::observed(t.received, count, "received"), brief::observed(t.delivered, count, "delivered"));
        // These tokens are not among the delivered ones.
        let uncounted = t.uncounted.filter(|&tokens| tokens > 0);
        let uncounted = uncounted.map_or_else(String::new, |tokens| format!(", {} sent as text only", count(tokens)));
        row(out, "tokens", &format!("{} sent, {received}, {delivered}{uncounted}", count(t.sent)));
        row(out, "chunks", &chunks(&report.chunks));
        // Cost of each mode: one line per hop, and one for clients; none if no ids crossed.
        let modes = report.modes.hops.iter().map(mode_of_hop).chain(report.modes.client.as_ref().map(mode_of_client));
        for (n, line) in modes.enumerate() {
            row(out, if n == 0 { "ids" } else { "" }, &line);
        }
    }
    let responses = report.answers.as_ref().map(responses).into_iter().chain(rejected(&report.rejected));
    for (n, line) in responses.enumerate() {
        row(out, if n == 0 { "responses" } else { "" }, &line);
    }
    if let Some(gap) = &report.gap_ns {
        row(out, "gap", &format!("{} over {} requests", brief::quantiles(gap), count(gap.count)));
        if !gap.max_rid.is_empty() {
            row(out, "", &format!("worst: {}", gap.max_rid));
        }
    }
    let itl = &report.itl_ns;
    for (name, by_token, by_chunk) in
        [("itl sent", itl.sent_by_token, itl.sent), ("itl client", itl.delivered_by_token, itl.delivered)]
    {
        if let Some(itl) = by_token.or(by_chunk) {
            let [p50, p90, p99] = [itl.p50, itl.p90, itl.p99].map(duration);
            let between = duration(by_chunk.map_or(itl.max, |chunks| chunks.max));
            let line = format!("median {p50}, p90 {p90}, p99 {p99} by token; up to {between} between chunks");
            row(out, name, &line);
        }
    }
    super::frontend::rows(out, report);
    let _ = writeln!(out);
}

/// Requests on their way to their first token.
fn to_scheduler(report: &Report, dispatched: &Dispatched) -> String {
    let Dispatched { requests, aborts, waiting, waiting_longest_ns, unanswered, unanswered_total, .. } = *dispatched;
    let mut line = plural(requests, "request");
    if aborts > 0 {
        let _ = write!(line, ", {}", plural(aborts, "abort"));
    }
    if let Some(longest) = waiting_longest_ns {
        let _ = write!(line, ", {} without a token (longest {})", count(waiting), duration(longest));
    }
    if unanswered_total > 0 {
        let at_end =
            if unanswered == unanswered_total { String::new() } else { format!(" ({} at the end)", count(unanswered)) };
        let _ = write!(line, ", {} not answered while later ones were{at_end}", count(unanswered_total));
    }
    for wait in report.hops.iter().filter(|hop| hop.carries_requests).filter_map(|hop| hop.queue_wait_ns) {
        let [p50, p99, max] = [wait.p50, wait.p99, wait.max].map(duration);
        let _ = write!(line, "; received after {p50} (p99 {p99}, max {max})");
    }
    line
}

fn chunks(c: &Chunks) -> String {
    let mut line = format!("{} sent, {}", count(c.sent), brief::observed(c.received, count, "received"));
    if c.merged.is_none() {
        line.push_str(", merged and dropped (confirmed): not observed");
    }
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

/// Responses with an error status; `None` without any.
fn rejected(by_status: &BTreeMap<u16, u64>) -> Option<String> {
    let all: u64 = by_status.values().sum();
    let each: Vec<String> =
        by_status.iter().map(|(status, responses)| format!("{} with {status}", count(*responses))).collect();
    (all > 0).then(|| format!("{} with an error status: {}", plural(all, "response"), each.join(", ")))
}

/// Finished responses, and what they show about themselves.
fn responses(answers: &AnswerCounts) -> String {
    let mut line = format!("{} ended", count(answers.seen));
    for (n, what) in [
        (answers.client_left, "by their clients"),
        (answers.server_left, "early by the server"),
        (answers.failed, "with an error"),
        (answers.short_writes, "with a client that read slowly"),
        (answers.lacking_end, "without a finish reason"),
    ] {
        if n > 0 {
            let _ = write!(line, ", {} {what}", count(n));
        }
    }
    if answers.claiming > 0 {
        let _ = write!(line, "; {} claim {}", count(answers.claiming), plural(answers.tokens_claimed, "token"));
    }
    if answers.judged_alone > 0 {
        let listed = plural(answers.judged_alone_tokens, "token");
        let _ = write!(line, "; {} judged by their own count carry {listed}", count(answers.judged_alone));
    }
    if let Some(events) = answers.events {
        let events = if events == 0 { String::from("no event") } else { plural(events, "event") };
        let _ = write!(line, "; {events} with content");
    }
    if let Some(max) = answers.event_tokens_max {
        let _ = write!(line, ", up to {} in one", plural(max.into(), "token"));
    }
    line
}

fn mode_of_hop(line: &ModeLine) -> String {
    let per_token = line.bytes_per_token.map_or_else(String::new, |n| format!("{n:.0} bytes a token, "));
    let other = if line.ids_repeated > 0 {
        let less = line.bytes_if_incremental_estimate.map(bytes);
        less.map(|less| format!("; in incremental mode: about {less} in total"))
    } else {
        let more = line.bytes_if_cumulative_estimate.map(bytes);
        more.map(|more| format!("; in cumulative mode: about {more} in total"))
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
        0 => match line.ids_if_cumulative {
            Some(ids) => format!("no repeats; in cumulative mode: {} ids", count(ids)),
            None => String::from("no repeats; in cumulative mode: unknown, because not all of a response was observed"),
        },
        n => format!("{} of them repeats (about {})", count(n), bytes(line.bytes_repeated_estimate)),
    };
    format!("client: {} ids for {} tokens, {repeated}", count(line.ids), count(line.tokens))
}

/// Requests that lost tokens: the worst few, with their missing positions.
fn losses(out: &mut String, report: &Report, clock: &Clock) {
    let losses = &report.losses;
    let confirmed = losses.confirmed.as_ref();
    let predicted = losses.predicted.as_ref();
    let proven = confirmed.filter(|list| !list.lines.is_empty());
    // If deliveries are observed, they decide. The prediction only matters for judging its accuracy.
    let expected = predicted.filter(|list| confirmed.is_none() && !list.lines.is_empty());
    for (list, how) in [(proven, "LOST TOKENS, CONFIRMED"), (expected, "LOST TOKENS, PREDICTED")] {
        if let Some(list) = list {
            loss_lines(out, list, how, clock);
        }
    }
}

fn loss_lines(out: &mut String, list: &LossList, how: &str, clock: &Clock) {
    let _ = writeln!(out, "{how}: {}", plural(list.requests, "request"));
    for line in list.lines.iter().take(LOSSY) {
        wrap(out, &loss(line, clock), "  ", "    ");
    }
    let more = list.requests.saturating_sub(LOSSY.min(list.lines.len()) as u64);
    if more > 0 {
        let _ = writeln!(out, "  and {} more; the JSON lists {}", count(more), count(list.lines.len() as u64));
    }
    let _ = writeln!(out);
}

fn loss(line: &LossLine, clock: &Clock) -> String {
    let mut text = format!(
        "{}: {} of {} tokens in {}, from {}",
        plain(&line.rid),
        count(line.tokens),
        count(line.tokens_sent),
        plural(line.chunks, "chunk"),
        line.span(clock)
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

fn slowest(out: &mut String, report: &Report, clock: &Clock) {
    // If gaps are not observed, no request is known to be slow. Requests from the log follow stage by stage.
    if report.gap_ns.is_none() || report.slowest.is_empty() || report.is_log_only() {
        return;
    }
    let widest = 36;
    let _ = writeln!(
        out,
        "{:widest$}  {:>12} {:>12} {:>8} {:>8} {:>8}  FINISH",
        "SLOWEST", "SENT AT", "GAP", "SENT", "RECEIVED", "LOST"
    );
    for line in &report.slowest {
        let rid: String = plain(&line.rid).chars().take(widest).collect();
        let _ = writeln!(
            out,
            "{rid:widest$}  {:>12} {:>12} {:>8} {:>8} {:>8}  {}",
            known_or_dash(line.first_sent_ns, |ns| clock.moment(ns)),
            line.gap_text(report.window_ns[1]),
            count(line.tokens_sent),
            known_or_dash(line.tokens_received, count),
            known_or_dash(line.tokens_lost, count),
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
        "{:widest$}  {:>9} {:>9} {:>10} {:>6} {:>11} {:>9} {:>9}",
        "HOP", "SENT", "RECEIVED", "CHUNKS", "BYTES", "MAX BACKLOG", "WAIT P50", "WAIT MAX"
    );
    for hop in &report.hops {
        let name: String = plain(&hop.name).chars().take(widest).collect();
        let _ = writeln!(
            out,
            "{name:widest$}  {:>9} {:>9} {:>10} {:>9} {:>8} {:>9} {:>9}",
            known_or_dash(hop.frames_sent, count),
            known_or_dash(hop.frames_received, count),
            hop.chunk_count(),
            bytes(hop.bytes),
            known_or_dash(hop.backlog_max_frames, count),
            known_or_dash(hop.queue_wait_ns, |wait| duration(wait.p50)),
            known_or_dash(hop.queue_wait_ns, |wait| duration(wait.max)),
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
        parts.push(format!("up to {} per wakeup", plural(frames.into(), "frame")));
    }
    if let Some(busy) = hop.busy {
        parts.push(format!("receiver busy for {} of the run", percent(busy)));
    }
    parts.extend(behind(hop));
    if let Some(lanes) = &hop.lanes {
        parts.push(format!("{} connections", lanes.len()));
    }
    if !parts.is_empty() {
        wrap(out, &parts.join(", "), "  ", "  ");
    }
    members(out, hop);
}

fn ttft(out: &mut String, report: &Report) {
    let Some(main) = report.ttft.as_ref().and_then(TtftReport::main_group) else { return };
    let _ = writeln!(
        out,
        "{:LEG$}  {:>9} {:>9} {:>9} {:>9} {:>8} {:>9}",
        "WHERE TTFT GOES", "MEAN", "P50", "P99", "MAX", "SHARE", "LAST 10 S"
    );
    for leg in &main.legs {
        let shares = format!("{:>8} {:>9}", percent(leg.share), known_or_dash(leg.recent_share, percent));
        ttft_row(out, &plain(&leg.words), leg.mean_ns, &leg.ns, &shares);
    }
    ttft_row(out, &format!("in total, {}", plural(main.ns.count, "request")), main.mean_ns, &main.ns, "");
    for line in brief::ttft_limits(report) {
        wrap(out, &line, "  ", "  ");
    }
    let _ = writeln!(out);
}

/// Where the time to first token goes on both servers of a pair.
fn pair(out: &mut String, report: &Report) {
    let Some(pair) = &report.pair else { return };
    let _ = writeln!(
        out,
        "{:LEG$}  {:>9} {:>9} {:>9} {:>9} {:>8}",
        "WHERE TTFT GOES ON BOTH SERVERS", "MEAN", "P50", "P99", "MAX", "SHARE"
    );
    for leg in &pair.legs {
        ttft_row(out, &leg.words, leg.mean_ns, &leg.ns, &format!("{:>8}", percent(leg.share)));
    }
    if let Some((ttft, mean_ns)) = pair.ttft_ns.as_ref().zip(pair.ttft_mean_ns) {
        ttft_row(out, &format!("in total, {}", plural(ttft.count, "request")), mean_ns, ttft, "");
    }
    for line in pair.paragraphs() {
        wrap(out, &plain(&line), "  ", "    ");
    }
    for absent in pair.describe_absent() {
        wrap(out, &format!("not known {absent}"), "  ", "    ");
    }
    let _ = writeln!(out);
}

/// A row whose numbers stand beside the last line of its name: cut, the name of several legs in one would be that of the first.
fn ttft_row(out: &mut String, name: &str, mean_ns: u64, ns: &Spread, shares: &str) {
    let mut lines = String::new();
    brief::wrap_within(&mut lines, name, "", "  ", LEG);
    let lines = lines.trim_end();
    let (before, name) = lines.rsplit_once('\n').map_or(("", lines), |(before, last)| (before, last));
    for line in before.lines() {
        let _ = writeln!(out, "{line}");
    }
    let [mean, p50, p99, max] = [mean_ns, ns.p50, ns.p99, ns.max].map(duration);
    let row = format!("{name:LEG$}  {mean:>9} {p50:>9} {p99:>9} {max:>9} {shares}");
    let _ = writeln!(out, "{}", row.trim_end());
}

fn path(out: &mut String, report: &Report) {
    if report.path.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "{:LEG$}  {:>9} {:>9} {:>9} {:>8} {:>8}  THREAD",
        "WHERE A CHUNK'S TIME GOES", "MEAN", "P50", "P99", "SHARE", "RUN BUSY"
    );
    for leg in &report.path {
        let name = match leg.kind {
            LegKind::Wait => plain(&leg.name),
            LegKind::Inside => format!("  inside the {}", plain(&leg.name)),
            LegKind::WaitAndInside => format!("  before and inside the {}", plain(&leg.name)),
        };
        let name: String = name.chars().take(LEG).collect();
        let _ = writeln!(
            out,
            "{name:LEG$}  {:>9} {:>9} {:>9} {:>8} {:>8}  {}",
            duration(leg.mean_ns),
            known_or_dash(leg.ns, |ns| duration(ns.p50)),
            known_or_dash(leg.ns, |ns| duration(ns.p99)),
            percent(leg.share),
            known_or_dash(leg.busy, percent),
            leg.thread_text(),
        );
    }
    if let Some(bar) = bar::line(&report.path, BAR) {
        wrap(out, &bar, "first tokens  ", "              ");
        if let Some(ends) = bar::ends_of_path(&report.path) {
            let span = format!("of the time from the {}'s send to the {}'s receive", plain(ends.from), plain(ends.to));
            wrap(out, &span, "              ", "              ");
        }
    }
    let _ = writeln!(out);
}

/// Number of receivers of a line with several hops; hops to the same endpoint count once.
pub(super) fn behind(hop: &HopLine) -> Option<String> {
    let hops = hop.workers.as_ref()?;
    let unknown = hops.iter().filter(|h| h.worker.is_none() && h.endpoint.is_empty());
    let places: BTreeSet<_> = hops.iter().map(|h| (h.worker, h.endpoint.as_str())).collect();
    let known = places.iter().filter(|place| **place != (None, ""));
    Some(match unknown.count() + known.count() {
        1 => format!("{} sockets send into one", hops.len()),
        workers => format!("{workers} workers"),
    })
}

/// Renders the load of each worker of a line and of each connection into it.
fn members(out: &mut String, hop: &HopLine) {
    for worker in hop.workers.iter().flatten().take(MEMBERS) {
        let name = worker.worker.map_or_else(|| plain(&worker.endpoint), |n| format!("worker {n}"));
        let mut parts = vec![load(worker.chunks, worker.tokens, worker.share)];
        if let Some(max) = worker.backlog_max_frames {
            parts.push(format!("backlog up to {}", count(max)));
        }
        if let Some(queue_wait) = &worker.queue_wait_ns {
            parts.push(format!("queue wait {} (p99 {})", duration(queue_wait.p50), duration(queue_wait.p99)));
        }
        if let Some(busy) = worker.busy {
            parts.push(format!("busy for {} of the run", percent(busy)));
        }
        wrap(out, &format!("{name}: {}", parts.join(", ")), "  ", "    ");
    }
    for lane in hop.lanes.iter().flatten().take(MEMBERS) {
        let into = lane.worker.map_or_else(String::new, |n| format!(" into worker {n}"));
        let load = load(lane.chunks, lane.tokens, lane.share);
        wrap(out, &format!("connection {}{into}: {load}", lane.lane), "  ", "    ");
    }
}

fn load(chunks: u64, tokens: u64, share: Option<f64>) -> String {
    let share = share.map_or_else(String::new, |share| format!("{} of chunks: ", percent(share)));
    format!("{share}{} with {} tokens", count(chunks), count(tokens))
}

/// `12.5 % on cpu`, or why it is unknown.
fn share_of_time(share: Option<f64>, what: &str, unknown: &str) -> String {
    share.map_or_else(|| format!("{what}: {unknown}"), |share| format!("{:.1} % {what}", 100.0 * share))
}

fn cpu(out: &mut String, report: &Report) {
    let Some(lines) = report.cpu.as_ref().filter(|c| !c.is_empty()) else {
        return;
    };
    for line in lines {
        let on = share_of_time(line.on_cpu, "on cpu", &brief::unknown());
        let wait = share_of_time(line.run_wait, "waiting for a CPU", brief::NO_WAITS);
        let mut text = format!(
            "{} ({}/{} {}): {on}, {wait}, {}",
            line.role,
            line.pid,
            line.tid,
            line.name,
            share_of_time(line.throttled, "throttled", brief::NO_THROTTLING)
        );
        if let Some(away) = line.away_from_poll {
            let _ = write!(text, ", {}", share_of_time(Some(away), "away from its poll", ""));
        }
        row(out, "cpu", &text);
    }
    let _ = writeln!(out);
}

fn findings(out: &mut String, report: &Report, clock: &Clock) {
    for finding in &report.findings {
        let head = format!("{} {}: {}", mark(finding.severity), finding.kind, finding.summary);
        wrap(out, &head, "", "    ");
        let mut since = brief::span_of(finding, clock);
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

fn not_observed(out: &mut String, report: &Report) {
    let missing = brief::not_observed(report);
    if !missing.is_empty() {
        row(out, "not observed", &format!("(shown as -) {}", missing.join("; ")));
    }
    for failure in brief::degraded(report) {
        row(out, "degraded", &failure);
    }
}

fn own(out: &mut String, report: &Report) {
    let own = &report.own;
    let events = plural(own.events, "event");
    let undecoded = plural(own.frames_undecoded, "frame");
    let mut line = format!("{events}, {} missed, {undecoded} undecoded", count(own.missed()));
    if let Some(cpu) = own.cpu_ns {
        let _ = write!(line, ", {} of CPU", duration(cpu));
    }
    if let Some(rss) = own.rss_bytes {
        let _ = write!(line, ", {} resident", bytes(rss));
    }
    row(out, "tokengap", &line);
}
