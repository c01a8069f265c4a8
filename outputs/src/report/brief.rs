//! Text shared by all forms of the report: sentences, lines of limited width, and times of the capture: relative to its start and, if the
//! wall clock is known, absolute.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use trace::engine::{Mode, Waiter};
use trace::path::Ends;
use trace::words::{self, MINUTE_NS, count, duration, known_or_dash, plural};

use super::{FindingLine, Gap, HopLine, LimitLine, Report, Requests, TtftGroupLine};

/// The engine: `NAME 0.5.9, incremental`. Unknown until a request or a release was seen.
pub(crate) fn describe_engine(report: &Report) -> String {
    let source = &report.source;
    // Without either, the engine's name is only a default.
    if source.engine_version.is_none() && report.requests.seen == 0 {
        return String::from("an unknown engine");
    }
    let release = source.engine_version.as_deref().unwrap_or("of unknown release");
    let mode = match source.mode {
        Some(Mode::Incremental) => ", incremental",
        Some(Mode::Cumulative) => ", cumulative",
        None => "",
    };
    format!("{} {release}{mode}", source.engine)
}

/// Why a thread's throttled time is not known.
pub const NO_THROTTLING: &str = "no CPU quota, or not read";
/// Why the time that a thread waits for a CPU is not known.
pub const NO_WAITS: &str = "kernel without CONFIG_SCHED_INFO";

/// Text for a value that no source observed.
pub(super) fn unobserved_text() -> String {
    String::from("not observed")
}

/// A number with its noun, or that no source observed it: `12 finished`, `finished: not observed`.
pub(super) fn describe_value_or_unobserved<T>(
    value: Option<T>,
    format: impl FnOnce(T) -> String,
    noun: &str,
) -> String {
    match value {
        Some(value) => format!("{} {noun}", format(value)),
        None => format!("{noun}: {}", unobserved_text()),
    }
}

/// Numbers of requests: `12: 9 finished, 1 aborted, 2 live`.
pub(super) fn summarise_requests(requests: &Requests) -> String {
    format!("{}: {}", count(requests.seen), describe_request_outcomes(requests))
}

/// Requests by outcome, each counted once: `9 finished, 1 aborted, 2 live`. Adds the number of live ones whose end was sent but not
/// received.
pub(super) fn describe_request_outcomes(requests: &Requests) -> String {
    let finished = describe_value_or_unobserved(requests.completed, count, "finished");
    let in_transit = match requests.ends_in_transit {
        0 => String::new(),
        ends => format!(" ({} of them sent to the end, but not received)", count(ends)),
    };
    format!("{finished}, {} aborted, {} live{in_transit}", count(requests.aborted), count(requests.live))
}

/// Whether the evidence with this name identifies something in the kernel and is no quantity.
pub fn is_identifier(name: &str) -> bool {
    name.rsplit('_').next().is_some_and(|last| ["pid", "tid", "port", "inode", "fd"].contains(&last))
}

/// Quantiles of the first-token gap; `-` for one that is unknown.
pub(super) fn describe_gap(gap: &Gap) -> String {
    let [p50, p90, p99, max] = [gap.p50, gap.p90, gap.p99, gap.max].map(|ns| known_or_dash(ns, duration));
    format!("median {p50}, p90 {p90}, p99 {p99}, max {max}")
}

/// Time to first token: `TTFT of 12 requests: median 1.2 s, p90 ..`.
pub(super) fn describe_ttft(group: &TtftGroupLine) -> String {
    let ns = &group.ns;
    let [p50, p90, p99, max] = [ns.p50, ns.p90, ns.p99, ns.max].map(duration);
    format!("TTFT of {}: median {p50}, p90 {p90}, p99 {p99}, max {max}", plural(ns.count, "request"))
}

/// What the shown time to first token leaves out, one text each: moments that were not observed, and requests outside the main group.
/// Requests with the same observed moments are a group, and the main group is the largest.
pub(super) fn describe_ttft_caveats(report: &Report) -> Vec<String> {
    let Some(ttft) = &report.ttft else { return Vec::new() };
    let mut lines: Vec<String> =
        ttft.describe_absent_moments().iter().map(|what| format!("not observed: {what}")).collect();
    // The first group is the main one.
    let in_smaller_groups: u64 = ttft.groups.iter().skip(1).map(|group| group.ns.count).sum();
    let in_other_groups = in_smaller_groups + ttft.others;
    if in_other_groups > 0 {
        lines.push(format!("{} with other observed moments, not in these numbers", plural(in_other_groups, "request")));
    }
    if ttft.not_streamed > 0 {
        lines.push(format!("{} not streamed, which have no time to first token", plural(ttft.not_streamed, "request")));
    }
    lines
}

/// What the engine's release does with several chunks queued for one request, and whether it is known to lose some of them.
pub(crate) fn describe_known_losses(report: &Report) -> String {
    match report.source.waiter {
        Some(Waiter::KeepsLast) => describe_dropping_release(report),
        Some(Waiter::YieldsAll) => String::from("yields every queued chunk separately: known to lose none"),
        Some(Waiter::Merges) => String::from(
            "merges queued chunks into one: known to lose none; the tokens of merged chunks arrive late and in bursts",
        ),
        None => String::from("whether this release loses queued chunks is not known"),
    }
}

/// Describes a release in which the coroutine that waits for a request's chunks keeps only the last of several queued ones. The output mode
/// decides whether tokens are then lost.
fn describe_dropping_release(report: &Report) -> String {
    let fixed_in = report.source.drops_fixed_in.as_deref().unwrap_or("a later release");
    match report.source.mode {
        Some(Mode::Incremental) => {
            format!("known to lose chunks: a waiter keeps only the last of several queued ones; fixed in {fixed_in}")
        }
        Some(Mode::Cumulative) => format!(
            "a waiter keeps only the last of several queued chunks (until {fixed_in}), which loses nothing in cumulative mode"
        ),
        None => format!(
            "a waiter keeps only the last of several queued chunks (until {fixed_in}): the others are lost in incremental mode, but the mode is unknown"
        ),
    }
}

/// Lists the stages that were not observed, each with the numbers that need it. They explain each `-` of the report.
pub(super) fn list_unobserved_stages(report: &Report) -> Vec<String> {
    let mut missing = Vec::new();
    if report.is_log_only() {
        missing.push(String::from("any frame: all times come from the engine's log"));
    }
    if report.ttft.is_none() {
        let advice = if report.source.kind == "attach" { "" } else { "; attach observes them" };
        missing.push(format!("requests on their way to the scheduler (TTFT and its parts{advice})"));
    }
    missing.extend(list_unobserved_frames(report));
    missing.extend(list_unobserved_outputs(report));
    match &report.cpu {
        None => missing.push(String::from("CPU of the engine's threads (state of the receiving threads)")),
        Some(lines) if lines.iter().any(|line| line.throttled.is_none()) => {
            missing.push(format!("throttling of some threads: {NO_THROTTLING}"));
        }
        Some(_) => {}
    }
    missing
}

/// Unobserved facts about the frames on their hops, and about the queues there.
fn list_unobserved_frames(report: &Report) -> Vec<String> {
    let mut missing = Vec::new();
    if let Some(hops) = describe_hops_lacking(report, |hop| hop.frames_sent.is_none()) {
        missing.push(format!("when frames are sent{hops} (backlog, queue wait)"));
    }
    if let Some(hops) = describe_hops_lacking(report, |hop| hop.frames_received.is_none()) {
        missing.push(format!("when frames are received{hops} (gap, backlog, queue wait, wakeups, busy receivers)"));
    } else if report.hops.is_empty() && !report.is_log_only() {
        // Without any hop, none lacks its receives.
        missing.push(String::from("frames of any hop (gap, backlog, queue wait)"));
    }
    if report.hops.iter().any(|hop| hop.kernel_bytes_max.is_none()) {
        missing.push(String::from("the kernel's queues (bytes in the kernel, frames in libzmq's inbox)"));
    }
    missing
}

/// What was not observed of the tokens behind the receiver: predicted drops, deliveries, and how requests end.
fn list_unobserved_outputs(report: &Report) -> Vec<String> {
    let mut missing = Vec::new();
    // If receives are not observed, the line about them names the prediction, too.
    if report.chunks.dropped_predicted.is_none() && report.tokens.received.is_some() {
        missing.push(String::from("the frames of each wakeup, or the engine's behaviour with them (predicted drops)"));
    }
    if report.tokens.delivered.is_none() {
        let needed_for = "lost tokens, confirmed drops, merging, inter-token latency of clients";
        missing.push(format!("deliveries to clients ({needed_for})"));
    } else if report.slowest.iter().any(|line| line.tokens_lost.is_none()) {
        missing.push(String::from("all of a response (lost tokens of some requests)"));
    }
    if report.slowest.iter().any(|line| line.finish.is_none()) {
        missing.push(String::from("the end of some requests (finish)"));
    }
    missing
}

/// The hops on which something is missing, as the end of a sentence: ` on a->b, c->d`, empty if it is missing on all. `None` if on none.
fn describe_hops_lacking(report: &Report, is_missing: fn(&HopLine) -> bool) -> Option<String> {
    let names: Vec<&str> = report.hops.iter().filter(|hop| is_missing(hop)).map(|hop| hop.name.as_str()).collect();
    if names.is_empty() {
        return None;
    }
    let is_on_all = names.len() == report.hops.len();
    Some(if is_on_all { String::new() } else { format!(" on {}", names.join(", ")) })
}

/// Describes the targets that could not be attached and the disabled features.
pub(crate) fn describe_degraded(report: &Report) -> impl Iterator<Item = String> + '_ {
    report.own.degraded.iter().map(words::json_text)
}

/// The limits that were reached, with their names.
pub(crate) fn limits_reached(report: &Report) -> impl Iterator<Item = (&String, &LimitLine)> {
    report.limits.iter().filter(|(_, line)| line.reached > 0)
}

/// Maximum line width.
const WIDTH: usize = 100;
/// Width of the column with the names of rows.
const NAME_COLUMN: usize = 14;

/// Name of a row that continues the one above it.
pub(super) const NO_NAME: &str = "";
/// Indent of a line at the left edge.
pub(crate) const NO_INDENT: &str = "";

/// Writes a text with its name in the first column.
pub(super) fn write_named_row(out: &mut String, name: &str, text: &str) {
    write_wrapped(out, text, &format!("{name:<NAME_COLUMN$}"), &" ".repeat(NAME_COLUMN));
}

/// Writes the text in lines of at most [`WIDTH`], the first behind `first_indent` and the others behind `indent`. Lines break at spaces; a
/// longer word stays whole.
pub(crate) fn write_wrapped(out: &mut String, text: &str, first_indent: &str, indent: &str) {
    write_wrapped_within(out, text, first_indent, indent, WIDTH);
}

/// Writes the text in lines of at most [`WIDTH`], indented by two spaces. Lines after the first are indented by four.
pub(super) fn write_indented(out: &mut String, text: &str) {
    write_wrapped(out, text, "  ", "    ");
}

/// Writes the text in lines of at most `width`, the first behind `first_indent` and the others behind `indent`. Lines break at spaces, but
/// not between a number and its unit.
pub(super) fn write_wrapped_within(out: &mut String, text: &str, first_indent: &str, indent: &str, width: usize) {
    let mut column = first_indent.chars().count();
    out.push_str(first_indent);
    let mut is_line_empty = true;
    for part in split_where_lines_may_break(text) {
        let length = part.chars().count();
        let fits_behind_space = column + " ".len() + length <= width;
        // A part that is too long for any line gets one of its own.
        if !is_line_empty && !fits_behind_space {
            append!(out, "\n{indent}");
            column = indent.chars().count();
            is_line_empty = true;
        }
        if !is_line_empty {
            out.push(' ');
            column += 1;
        }
        out.push_str(&part);
        column += length;
        is_line_empty = false;
    }
    out.push('\n');
}

/// Appends cells to the row of a table. Each cell stands behind a space and ends at the right edge of its column. `widths` are those of the
/// columns without the spaces. Behind a cell that is longer than its column, the next cells get less padding until they end at their edges.
pub(super) fn append_right_aligned_cells<const N: usize>(row: &mut String, widths: [usize; N], cells: [String; N]) {
    let mut right_edge = row.chars().count();
    for (width, cell) in widths.into_iter().zip(cells) {
        right_edge += " ".len() + width;
        let start_of_cell = row.chars().count() + " ".len();
        // Behind a cell that was too long, this is less than the width of the column, and may be 0.
        let width_to_edge = right_edge.saturating_sub(start_of_cell);
        append!(row, " {cell:>width_to_edge$}");
    }
}

/// Splits a text into its words. A number and its unit are one part: `1.2 ms`.
fn split_where_lines_may_break(text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let unit = words.next_if(|next| matches!(*next, "ns" | "us" | "ms" | "s" | "%"));
        parts.push(unit.map_or_else(|| word.to_owned(), |unit| format!("{word} {unit}")));
    }
    parts
}

/// Describes start, end and duration of a finding, and its episodes if it has several.
pub(super) fn describe_finding_times(finding: &FindingLine, clock: &Clock) -> String {
    let episodes =
        finding.episodes.iter().map(|episode| [episode.at_ns, episode.last_at_ns].map(|at| clock.describe_moment(at)));
    describe_start_and_end(finding, clock) + &describe_episodes(episodes, finding.episodes_joined)
}

/// Start, end and length of a finding: `since 07:20:03.120, ended 07:20:05.320 (after 2.200 s)`. If it has not ended, the time of its last
/// occurrence, or the end of the capture, takes the place of its end.
fn describe_start_and_end(finding: &FindingLine, clock: &Clock) -> String {
    let since = clock.describe_moment(finding.at_ns);
    let length = duration(finding.duration_ns);
    let is_at_end_of_capture = finding.ended_at_ns.is_none() && clock.is_at_end_of_capture(finding.last_at_ns);
    // A finding of a single moment has no end.
    if finding.duration_ns == 0 {
        let end = if is_at_end_of_capture { ", the end of the capture" } else { "" };
        format!("at {since}{end}")
    } else if is_at_end_of_capture {
        format!("since {since}, to the end of the capture (for {length})")
    } else if let Some(end) = finding.ended_at_ns {
        format!("since {since}, ended {} (after {length})", clock.describe_moment(end))
    } else {
        // It has not ended, but its last occurrence is before the end of the capture.
        format!("since {since}, last at {} (after {length})", clock.describe_moment(finding.last_at_ns))
    }
}

/// Where a problem is: `on scheduler->tokenizer`, or `in tokenizer`.
pub fn describe_place(hop_or_role: &str) -> String {
    let ends = Ends::from(hop_or_role);
    // A role is not named `from->to`, so both of its ends are the role itself.
    let preposition = if ends.from == ends.to { "in" } else { "on" };
    format!("{preposition} {hop_or_role}")
}

/// Lists the episodes of a finding that comes and goes, each as its first and last time. Empty for a single episode. `joined_episodes`
/// counts the episodes that are not listed on their own, because they were merged into their neighbours.
pub fn describe_episodes(episodes: impl Iterator<Item = [String; 2]>, joined_episodes: u64) -> String {
    let mut spans = Vec::new();
    for [first, last] in episodes {
        spans.push(if first == last { format!("at {first}") } else { format!("{first} to {last}") });
    }
    let number = spans.len() as u64 + joined_episodes;
    if number <= 1 {
        return String::new();
    }
    let spans = spans.join(", ");
    if joined_episodes == 0 {
        format!(", in {number} episodes: {spans}")
    } else {
        format!(", in {} episodes, the nearest of which are listed as one: {spans}", count(number))
    }
}

/// Formats times of the capture: times of day or, if the wall clock is unknown, times since its start.
#[derive(Clone, Debug)]
pub struct Clock {
    /// Start of the capture.
    start: Option<Timestamp>,
    capture_length_ns: u64,
    zone: TimeZone,
}

impl Clock {
    /// The report's clock, in UTC or the zone given.
    pub fn of(report: &Report, zone: Option<TimeZone>) -> Self {
        let start = report.window_wall_ns.and_then(|[start_ns, _]| Timestamp::from_nanosecond(start_ns.into()).ok());
        Self { start, capture_length_ns: report.capture_length_ns(), zone: zone.unwrap_or(TimeZone::UTC) }
    }

    /// The clock of a capture that starts at an unknown time of day.
    #[cfg(test)]
    pub(super) fn without_wall_clock(capture_length_ns: u64) -> Self {
        Self { start: None, capture_length_ns, zone: TimeZone::UTC }
    }

    /// Whether this time is at the end of the capture. A state that lasts to the end is found at the last tick, which may be a little
    /// earlier.
    fn is_at_end_of_capture(&self, at_ns: u64) -> bool {
        /// Time between ticks of the analysis.
        const TICK_NS: u64 = 100_000_000;
        self.capture_length_ns.saturating_sub(at_ns) < TICK_NS
    }

    /// Length, date and zone of a capture: `2.012 s from 2026-11-21 07:20:03.120 UTC`. They apply to all its moments.
    pub(super) fn describe_capture(&self, capture_length_ns: u64) -> String {
        let length = duration(capture_length_ns);
        match self.format_time(0, "%Y-%m-%d %H:%M:%S%.3f %Z") {
            Some(start) => format!("{length} from {start}"),
            None => format!("{length}; the wall clock is unknown, so times count from the start of the capture"),
        }
    }

    /// A moment of the capture: `07:20:03.120`, or `11-22 07:20:03` on a later day than the start. Without the wall clock, the time since
    /// the start: `12.300 s`.
    pub(super) fn describe_moment(&self, at_ns: u64) -> String {
        const DATE: &str = "%m-%d";
        let is_first_day = self.format_time(at_ns, DATE) == self.format_time(0, DATE);
        let format = if is_first_day { "%H:%M:%S%.3f" } else { "%m-%d %H:%M:%S" };
        if let Some(time_of_day) = self.format_time(at_ns, format) {
            time_of_day
        } else if at_ns < MINUTE_NS {
            duration(at_ns)
        } else {
            // A moment keeps its milliseconds, which a duration of minutes does not have.
            format!("{:.3} s", at_ns as f64 / 1e9)
        }
    }

    /// Hours, minutes and seconds of the day; `None` if the wall clock is unknown.
    pub(crate) fn time_of_day(&self, at_ns: u64) -> Option<String> {
        self.format_time(at_ns, "%H:%M:%S")
    }

    /// Time of day with its zone: `14:59:38Z`, as on the screen, or `15:59:38 CET`. `None` if the wall clock is unknown.
    pub(super) fn time_of_day_in_zone(&self, at_ns: u64) -> Option<String> {
        let format = if self.zone == TimeZone::UTC { "%H:%M:%SZ" } else { "%H:%M:%S %Z" };
        self.format_time(at_ns, format)
    }

    /// Time of day with its zone. Without the wall clock, the time since the start: `12.300 s into the capture`.
    pub(super) fn describe_moment_in_zone(&self, at_ns: u64) -> String {
        self.time_of_day_in_zone(at_ns).unwrap_or_else(|| format!("{} into the capture", duration(at_ns)))
    }

    /// A time of the capture in the clock's zone; `None` if the wall clock is unknown.
    fn format_time(&self, at_ns: u64, format: &str) -> Option<String> {
        let unix_ns = self.start?.as_nanosecond().checked_add(at_ns.into())?;
        let time = Timestamp::from_nanosecond(unix_ns).ok()?.to_zoned(self.zone.clone());
        Some(time.strftime(format).to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use trace::detect::Severity;

    use super::super::EpisodeLine;
    use super::*;

    #[test]
    fn the_span_of_a_finding_ends_with_its_last_occurrence() {
        const SECOND_NS: u64 = 1_000_000_000;
        let clock = Clock::without_wall_clock(10 * SECOND_NS);
        let finding = |last_at_ns, ended_at_ns| FindingLine {
            kind: String::from("burst"),
            severity: Severity::Info,
            rid: String::new(),
            hop: None,
            at_ns: 2 * SECOND_NS,
            last_at_ns,
            ended_at_ns,
            duration_ns: last_at_ns - 2 * SECOND_NS,
            episodes: vec![EpisodeLine { at_ns: 2 * SECOND_NS, last_at_ns }],
            explained_ns: None,
            episodes_joined: 0,
            summary: String::new(),
            evidence: BTreeMap::new(),
            advice: None,
        };
        for (last_at_ns, ended_at_ns, expected) in [
            (9_990_000_000, None, "since 2.000 s, to the end of the capture (for 7.990 s)"),
            (5 * SECOND_NS, None, "since 2.000 s, last at 5.000 s (after 3.000 s)"),
            (5 * SECOND_NS, Some(5 * SECOND_NS), "since 2.000 s, ended 5.000 s (after 3.000 s)"),
            (2 * SECOND_NS, Some(2 * SECOND_NS), "at 2.000 s"),
            (2 * SECOND_NS, None, "at 2.000 s"),
        ] {
            assert_eq!(describe_finding_times(&finding(last_at_ns, ended_at_ns), &clock), expected);
        }
        let mut twice = finding(5 * SECOND_NS, Some(5 * SECOND_NS));
        twice.episodes = [[2, 3], [5, 5]]
            .map(|[first, last]| EpisodeLine { at_ns: first * SECOND_NS, last_at_ns: last * SECOND_NS })
            .into();
        assert_eq!(
            describe_finding_times(&twice, &clock),
            "since 2.000 s, ended 5.000 s (after 3.000 s), in 2 episodes: 2.000 s to 3.000 s, at 5.000 s"
        );
    }

    #[test]
    fn a_problem_is_on_a_hop_or_in_a_process() {
        assert_eq!(describe_place("tokenizer->client"), "on tokenizer->client");
        assert_eq!(describe_place("tokenizer"), "in tokenizer");
    }

    #[test]
    fn moments_are_times_of_day_in_the_zone_or_count_from_the_start() {
        const HOUR_NS: u64 = 3_600_000_000_000;
        let start = Timestamp::from_nanosecond(1_763_712_000_120_000_000).ok();
        let clock = Clock { start, capture_length_ns: 0, zone: TimeZone::fixed(jiff::tz::offset(1)) };
        assert_eq!(clock.describe_capture(1_500_000_000), "1.500 s from 2025-11-21 09:00:00.120 +01");
        assert_eq!(
            (clock.describe_moment(0), clock.describe_moment(2 * HOUR_NS)),
            ("09:00:00.120".into(), "11:00:00.120".into())
        );
        assert_eq!(clock.describe_moment(15 * HOUR_NS), "11-22 00:00:00");
        assert_eq!(clock.time_of_day_in_zone(HOUR_NS).as_deref(), Some("10:00:00 +01"));
        let utc = Clock { zone: TimeZone::UTC, ..clock.clone() };
        assert_eq!(utc.time_of_day_in_zone(HOUR_NS).as_deref(), Some("09:00:00Z"));
        let unknown = Clock { start: None, ..clock };
        assert_eq!(unknown.describe_moment(1_500_000_000), "1.500 s");
        assert_eq!(unknown.describe_moment(76_804_000_000), "76.804 s");
        assert!(unknown.describe_capture(0).contains("the wall clock is unknown"));
    }

    #[test]
    fn a_long_cell_takes_the_free_space_of_the_next() {
        let row_of = |cells: [&str; 3]| {
            let mut row = String::from("a->b");
            append_right_aligned_cells(&mut row, [5, 5, 5], cells.map(String::from));
            row
        };
        assert_eq!(row_of(["1", "2,000", "3"]), "a->b     1 2,000     3");
        assert_eq!(row_of(["1", "2,000,000", "3"]), "a->b     1 2,000,000 3");
    }

    #[test]
    fn lines_wrap_at_spaces_and_keep_their_indent() {
        let mut out = String::new();
        write_wrapped(&mut out, &"word ".repeat(40), "name  ", "      ");
        assert!(out.lines().count() > 1 && out.lines().all(|l| l.len() <= WIDTH));
        assert!(out.lines().skip(1).all(|l| l.starts_with("      word")));
    }
}
