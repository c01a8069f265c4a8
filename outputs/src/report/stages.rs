//! Data from the engine's own log: stages of requests, state of its processes, merged chunks. None of it was observed on a socket.

use serde::{Deserialize, Serialize};
use trace::clock::MonoNs;
use trace::engine::StageNames;
use trace::ledger::stages::{LoggedProcess, MergedCounts, SlowRequest, StageMark};
use trace::ledger::{Ledger, Stages};
use trace::stats::Spread;
use trace::words::{count, duration, percent, plural};

use super::brief::{NO_INDENT, write_indented, write_named_row, write_wrapped};
use super::{Clock, Report};

/// Data from the engine's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageReport {
    /// Number of stages logged, without health checks.
    pub logged: u64,
    /// Requests with at least one stage.
    pub requests: u64,
    /// Duplicates: the same stage of a request, from the same process or in the same millisecond. The first one counts.
    pub repeats: u64,
    /// Stages logged after a later one of the request. They appear in its table but in no distribution between stages.
    pub late: u64,
    /// Stages dropped at a memory limit.
    pub left_out: u64,
    /// Correlation between gaps and the receiver's `states` at the time of each first receive.
    pub gap_with_states: Option<Correlated>,
    /// Requests with the worst gaps, stage by stage, worst first.
    pub slowest: Vec<StageTable>,
    /// Time between consecutive stages of a request, in order of occurrence.
    pub between: Vec<Between>,
    /// Processes that log their state.
    pub processes: Vec<ProcessLine>,
    /// Chunks merged according to the engine's log.
    pub merged: Option<MergedLine>,
}

/// A rank correlation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Correlated {
    /// Spearman's coefficient, from -1 through 0 (no correlation) to 1 (they rise together).
    pub spearman: f64,
    /// Requests for which both values are known.
    pub n: u64,
    /// Number of those used for the coefficient.
    pub sampled: u64,
}

/// One request, stage by stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageTable {
    /// The engine's request id, as in the log: a trailing `...` marks a truncated id.
    pub rid: String,
    /// From the stage of its first send to that of its first receive.
    pub gap_ns: u64,
    /// Its stages, earliest first.
    pub stages: Vec<StageRow>,
}

/// A request at a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageRow {
    /// Name of the stage.
    pub stage: String,
    /// Time since the start of the capture.
    pub at_ns: u64,
    /// Time since the previous stage; `null` for the first.
    pub delta_ns: Option<u64>,
    /// Source of the log line; empty when unknown.
    pub by: String,
    /// Tokens of the request at that time.
    pub tokens: Option<u32>,
    /// Requests or messages queued behind it.
    pub pending: Option<u32>,
    /// Requests with state in the process at that time; only given for stages that end a gap.
    pub states: Option<u32>,
    /// Whether its name places it before a stage with an earlier timestamp.
    pub out_of_order: bool,
}

/// Time from one stage to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Between {
    /// Earlier stage.
    pub from: String,
    /// Later stage.
    pub to: String,
    /// Distribution of the time.
    pub ns: Spread,
}

/// State of a process from its own log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessLine {
    /// Name of the process.
    pub by: String,
    /// Logged receives.
    pub messages: u64,
    /// Share of receives with more messages ready.
    pub more_ready: Option<f64>,
    /// Time it waited for a message.
    pub recv_wait_ns: Option<Spread>,
    /// Maximum number of requests with state in the process.
    pub states_max: Option<u32>,
    /// Time of the maximum.
    pub states_max_at_ns: Option<u64>,
    /// Length of a step of `states`.
    pub step_ns: u64,
    /// Start of the first step.
    pub from_ns: u64,
    /// Maximum in each step; `null` without a log line.
    pub states: Vec<Option<u32>>,
    /// Highest CPU use, as a share of one core. There is no mean, because it may only log high values.
    pub cpu_max: Option<f64>,
    /// Number of CPU values logged.
    pub cpu_logged: u64,
}

/// Merged chunks in the engine's log. It logs only merges of 20 chunks or more, so these numbers are lower bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergedLine {
    /// Number of merges logged.
    pub times: u64,
    /// Total of merged chunks.
    pub chunks: u64,
    /// Largest merge.
    pub max: u32,
    /// Request of the largest merge.
    pub most_rid: String,
}

impl MergedLine {
    /// The merges in the engine's log; `None` without any.
    fn of_logged_merges(merged: &MergedCounts) -> Option<Self> {
        if merged.times == 0 {
            return None;
        }
        let MergedCounts { times, chunks, max, .. } = *merged;
        Some(Self { times, chunks, max, most_rid: merged.most_rid.to_string() })
    }
}

/// Contents of the engine's log, with the stages of at most `max_slowest` requests, the slowest first; `None` if it logged nothing.
pub(super) fn stage_report(ledger: &Ledger, max_slowest: usize, capture_start: MonoNs) -> Option<StageReport> {
    let log = ledger.stages();
    let names = ledger.engine().facts().stages();
    let is_empty = log.counts.logged == 0 && log.processes().is_empty() && log.merged.times == 0;
    if is_empty {
        return None;
    }
    Some(StageReport {
        logged: log.counts.logged,
        requests: log.counts.requests,
        repeats: log.counts.repeats,
        late: log.counts.late,
        left_out: log.counts.left_out,
        // Correlation of the gaps with the number of request states that the receiver keeps.
        gap_with_states: log.correlation().map(|correlation| Correlated {
            // Rounded to four decimals.
            spearman: (correlation.rho * 1e4).round() / 1e4,
            n: correlation.of,
            sampled: correlation.sampled,
        }),
        slowest: log
            .slowest()
            .iter()
            .take(max_slowest)
            .map(|slow| list_stages_of_request(log, names, slow, capture_start))
            .collect(),
        between: list_times_between(log),
        processes: log.processes().iter().map(|logged| process_line(logged, capture_start)).collect(),
        merged: MergedLine::of_logged_merges(&log.merged),
    })
}

/// How long requests took from one stage to another, the most frequent pairs of stages first.
fn list_times_between(log: &Stages) -> Vec<Between> {
    let mut between = Vec::new();
    for (from, to, durations) in log.times_between_stages() {
        // Without a duration there are no quantiles.
        let Some(ns) = Spread::of_distribution(durations) else { continue };
        between.push(Between { from: from.to_owned(), to: to.to_owned(), ns });
    }
    // Equally frequent pairs are in the order of their names.
    between.sort_by(|left, right| {
        let by_falling_count = right.ns.count.cmp(&left.ns.count);
        by_falling_count.then_with(|| (&left.from, &left.to).cmp(&(&right.from, &right.to)))
    });
    between
}

/// The stages of a request in the order of their times, which may not be the order in which a request passes them.
fn list_stages_of_request(log: &Stages, names: &StageNames, slow: &SlowRequest, capture_start: MonoNs) -> StageTable {
    let mut stages = Vec::new();
    let mut previous: Option<&StageMark> = None;
    // The highest index that a stage so far has in the engine's order. A stage with a lower one is out of order.
    let mut furthest_index = 0;
    for mark in slow.marks.list() {
        let name = log.name_of(mark);
        // `None` for a stage that the engine's release does not have.
        let order_index = names.index_of(name);
        stages.push(StageRow {
            stage: name.to_owned(),
            at_ns: mark.at.since(capture_start),
            delta_ns: previous.map(|previous| mark.at.since(previous.at)),
            by: log.process_of(mark).to_owned(),
            tokens: mark.tokens,
            pending: mark.pending,
            states: mark.states,
            out_of_order: order_index.is_some_and(|index| index < furthest_index),
        });
        previous = Some(mark);
        furthest_index = furthest_index.max(order_index.unwrap_or(0));
    }
    StageTable { rid: slow.rid.to_string(), gap_ns: slow.gap_ns, stages }
}

/// What a process logged about itself. `states` is the number of request states that it keeps, over time.
fn process_line(logged: &LoggedProcess, capture_start: MonoNs) -> ProcessLine {
    ProcessLine {
        by: logged.by.to_string(),
        messages: logged.messages,
        // Share of the receives behind which more messages were ready.
        more_ready: logged.more_share(),
        recv_wait_ns: Spread::of_distribution(&logged.recv_wait),
        states_max: logged.states.max.map(|max| max.value),
        states_max_at_ns: logged.states.max.map(|max| max.at.since(capture_start)),
        step_ns: logged.states.step_ns,
        from_ns: logged.states.from.since(capture_start),
        states: logged.states.steps.clone(),
        cpu_max: logged.cpu_max.map(|cpu| cpu.value),
        cpu_logged: logged.cpu_logged,
    }
}

/// Maximum number of requests shown stage by stage; the JSON has more.
const MAX_STAGE_TABLES: usize = 3;
/// Maximum number of pairs of stages shown.
const MAX_STAGE_PAIRS: usize = 12;

/// Writes what the engine's own log shows, if one was read: each process with its maximum number of request states, then the slowest
/// requests stage by stage.
pub(super) fn write_stage_report(out: &mut String, report: &Report, clock: &Clock) {
    let Some(log) = &report.stages else { return };
    write_named_row(
        out,
        "engine's log",
        &format!("{} of {}, by the engine's log", plural(log.logged, "stage"), plural(log.requests, "request")),
    );
    for process in &log.processes {
        write_indented(out, &format!("{}: {}", process.by, describe_process(process)));
    }
    if let Some(merged) = &log.merged {
        write_indented(out, &describe_merges_in_log(merged));
    }
    if let Some(correlation) = &log.gap_with_states {
        write_indented(out, &describe_gap_correlation(correlation));
    }
    append_line!(out);
    for slow in log.slowest.iter().take(MAX_STAGE_TABLES) {
        write_stages_of_request(out, slow, clock);
    }
    write_times_between(out, log);
}

/// Numbers of merged chunks, by the warnings in the log.
fn describe_merges_in_log(merged: &MergedLine) -> String {
    format!(
        "merged according to the log: {} chunks in {}, up to {} at once ({}); only merges of 20 or more are logged, so there were more",
        count(merged.chunks),
        plural(merged.times, "warning"),
        merged.max,
        merged.most_rid
    )
}

/// What a process logged about itself: `up to 12 states, CPU up to 80 % of a core`. States are those of the requests that it keeps.
fn describe_process(process: &ProcessLine) -> String {
    let mut parts = Vec::new();
    if let Some(max) = process.states_max {
        parts.push(format!("up to {} states", count(max.into())));
    }
    if let Some(cpu) = process.cpu_max {
        parts.push(format!("CPU up to {} of a core", percent(cpu)));
    }
    if let Some(wait) = &process.recv_wait_ns {
        let median = duration(wait.p50);
        let messages = plural(process.messages, "message");
        parts.push(format!("waited {median} for a message (median of {messages})"));
    }
    if let Some(more) = process.more_ready {
        parts.push(format!("more were ready behind {}", percent(more)));
    }
    parts.join(", ")
}

/// Whether first-token gaps depend on the number of request states that the receiver keeps, in words.
fn describe_gap_correlation(correlation: &Correlated) -> String {
    let Correlated { spearman, n, sampled } = *correlation;
    let words = describe_rank_correlation(spearman);
    let sample = if sampled < n { format!(" (from a sample of {})", count(sampled)) } else { String::new() };
    format!("{words}: rank correlation {spearman:.2} over {}{sample}", plural(n, "request"))
}

/// What a rank correlation from -1 to 1 says about gaps and states.
fn describe_rank_correlation(spearman: f64) -> &'static str {
    /// Smallest coefficient of a strong correlation.
    const STRONG: f64 = 0.7;
    /// Smallest coefficient of a weak correlation.
    const WEAK: f64 = 0.3;
    if spearman >= STRONG {
        "gaps increase with states"
    } else if spearman >= WEAK {
        "gaps tend to increase with states"
    } else if spearman > -WEAK {
        "gaps do not depend on states"
    } else {
        "gaps decrease as states increase"
    }
}

/// Writes the stages of a slow request.
fn write_stages_of_request(out: &mut String, slow: &StageTable, clock: &Clock) {
    /// Longer names are cut.
    const MAX_WIDTH: usize = 32;
    let longest_name = slow.stages.iter().map(|row| row.stage.chars().count()).max().unwrap_or(0);
    let widest = longest_name.clamp("STAGE".len(), MAX_WIDTH);
    let title = format!("{}: {} from first send to first receive", slow.rid, duration(slow.gap_ns));
    write_wrapped(out, &title, NO_INDENT, "  ");
    // The columns of the time and of the delta are 14 and 12 characters wide.
    append_line!(out, "  {:widest$}  {:<14}  {:>12}  BY", "STAGE", "TIME", "DELTA");
    for row in &slow.stages {
        let time = clock.describe_moment(row.at_ns);
        let delta = row.delta_ns.map_or_else(String::new, |ns| format!("+{:.6} s", ns as f64 / 1e9));
        let details = row.describe_details();
        let stage: String = row.stage.chars().take(widest).collect();
        append_line!(out, "  {stage:widest$}  {time:<14}  {delta:>12}  {details}");
    }
    append_line!(out);
}

impl StageRow {
    /// The process, its numbers, and whether the stage is out of order: `scheduler TP0, tokens 12, pending 3`.
    fn describe_details(&self) -> String {
        let mut parts = Vec::new();
        if !self.by.is_empty() {
            parts.push(self.by.clone());
        }
        for (number, name) in [(self.tokens, "tokens"), (self.pending, "pending"), (self.states, "states")] {
            if let Some(number) = number {
                parts.push(format!("{name} {number}"));
            }
        }
        if self.out_of_order {
            parts.push(String::from("out of order"));
        }
        parts.join(", ")
    }
}

impl Between {
    /// Both stages: `queued -> first_token`.
    fn describe_stages(&self) -> String {
        format!("{} -> {}", self.from, self.to)
    }
}

/// Writes a table of how long requests took from one stage to another.
fn write_times_between(out: &mut String, log: &StageReport) {
    /// Longer names are cut.
    const MAX_WIDTH: usize = 58;
    if log.between.is_empty() {
        return;
    }
    let shown = &log.between[..log.between.len().min(MAX_STAGE_PAIRS)];
    let longest_name = shown.iter().map(|between| between.describe_stages().chars().count()).max().unwrap_or(0);
    let widest = longest_name.min(MAX_WIDTH);
    // The column of the number is 9 characters wide, and those of the times 10.
    append_line!(out, "{:widest$}  {:>9} {:>10} {:>10} {:>10}", "BETWEEN STAGES", "REQUESTS", "MEDIAN", "P99", "MAX");
    for between in shown {
        let name: String = between.describe_stages().chars().take(widest).collect();
        let ns = &between.ns;
        append_line!(
            out,
            "{name:widest$}  {:>9} {:>10} {:>10} {:>10}",
            count(ns.count),
            duration(ns.p50),
            duration(ns.p99),
            duration(ns.max)
        );
    }
    if log.between.len() > MAX_STAGE_PAIRS {
        append_line!(out, "  {} more in the JSON report", log.between.len() - MAX_STAGE_PAIRS);
    }
    append_line!(out);
}
