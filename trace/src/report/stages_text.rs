//! Data of the engine's log, as text.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::Report;
use super::stages::{Correlated, StageReport, StageTable};
use super::wrap::{row, wrap};
use crate::words::{count, duration, percent, plural};

/// Maximum number of requests shown stage by stage; the JSON has more.
const TABLES: usize = 3;
/// Maximum number of pairs of stages shown.
const PAIRS: usize = 12;

pub(super) fn render(out: &mut String, report: &Report) {
    let Some(log) = &report.stages else { return };
    row(
        out,
        "engine's log",
        &format!("{} of {}, by the engine's log", plural(log.logged, "stage"), plural(log.requests, "request")),
    );
    for process in &log.processes {
        let mut parts = Vec::new();
        if let Some(max) = process.states_max {
            parts.push(format!("up to {} states", count(max.into())));
        }
        if let Some(cpu) = process.cpu_max {
            parts.push(format!("CPU up to {} of a core", percent(cpu)));
        }
        if let Some(wait) = &process.recv_wait_ns {
            let (median, messages) = (duration(wait.p50), plural(process.messages, "message"));
            parts.push(format!("waited {median} for a message (median of {messages})"));
        }
        if let Some(more) = process.more_ready {
            parts.push(format!("more were ready behind {}", percent(more)));
        }
        wrap(out, &format!("{}: {}", process.by, parts.join(", ")), "  ", "    ");
    }
    if let Some(merged) = &log.merged {
        let line = format!(
            "merged according to the log: {} chunks in {}, up to {} at once ({}); only merges of 20 or more are logged, so there were more",
            count(merged.chunks),
            plural(merged.times, "warning"),
            merged.max,
            merged.most_rid
        );
        wrap(out, &line, "  ", "    ");
    }
    if let Some(correlation) = &log.gap_with_states {
        wrap(out, &correlated(correlation), "  ", "    ");
    }
    let _ = writeln!(out);
    let wall = report.window_wall_ns.map(|[from, _]| from);
    for slow in log.slowest.iter().take(TABLES) {
        table(out, slow, wall);
    }
    pairs(out, log);
}

fn correlated(correlation: &Correlated) -> String {
    let Correlated { spearman, n, sampled } = *correlation;
    let words = match spearman {
        s if s >= 0.7 => "gaps increase with states",
        s if s >= 0.3 => "gaps tend to increase with states",
        s if s > -0.3 => "gaps do not depend on states",
        _ => "gaps decrease as states increase",
    };
    let sample = if sampled < n { format!(" (from a sample of {})", count(sampled)) } else { String::new() };
    format!("{words}: rank correlation {spearman:.2} over {}{sample}", plural(n, "request"))
}

/// Table of one request: stage, time, and the time between stages.
fn table(out: &mut String, slow: &StageTable, wall: Option<u64>) {
    let widest = slow.stages.iter().map(|s| s.stage.chars().count()).max().unwrap_or(0).clamp(5, 32);
    wrap(out, &format!("{}: {} from first send to first receive", slow.rid, duration(slow.gap_ns)), "", "  ");
    let _ = writeln!(out, "  {:widest$}  {:<15}  {:>12}  BY", "STAGE", "TIME", "DELTA");
    for row in &slow.stages {
        let time = match wall {
            Some(from) => clock_time(from.saturating_add(row.at_ns)),
            None => duration(row.at_ns),
        };
        let delta = row.delta_ns.map_or_else(String::new, |ns| format!("+{:.6} s", ns as f64 / 1e9));
        let mut more = row.by.clone();
        for (n, what) in [(row.tokens, "tokens"), (row.pending, "pending"), (row.states, "states")] {
            if let Some(n) = n {
                let _ = write!(more, "{}{what} {n}", if more.is_empty() { "" } else { ", " });
            }
        }
        if row.out_of_order {
            more.push_str(if more.is_empty() { "out of order" } else { ", out of order" });
        }
        let stage: String = row.stage.chars().take(widest).collect();
        let _ = writeln!(out, "  {stage:widest$}  {time:<15}  {delta:>12}  {more}");
    }
    let _ = writeln!(out);
}

fn clock_time(wall_ns: u64) -> String {
    let at = Timestamp::from_nanosecond(i128::from(wall_ns)).unwrap_or_default();
    at.strftime("%H:%M:%S%.6f").to_string()
}

fn pairs(out: &mut String, log: &StageReport) {
    if log.between.is_empty() {
        return;
    }
    let pair = |b: &super::stages::Between| format!("{} -> {}", b.from, b.to);
    let shown = &log.between[..log.between.len().min(PAIRS)];
    let widest = shown.iter().map(|b| pair(b).chars().count()).max().unwrap_or(0).min(50);
    let _ =
        writeln!(out, "{:widest$}  {:>9} {:>10} {:>10} {:>10}", "BETWEEN STAGES", "REQUESTS", "MEDIAN", "P99", "MAX");
    for between in shown {
        let name: String = pair(between).chars().take(widest).collect();
        let ns = &between.ns;
        let _ = writeln!(
            out,
            "{name:widest$}  {:>9} {:>10} {:>10} {:>10}",
            count(ns.count),
            duration(ns.p50),
            duration(ns.p99),
            duration(ns.max)
        );
    }
    if log.between.len() > PAIRS {
        let _ = writeln!(out, "  {} more in the JSON report", log.between.len() - PAIRS);
    }
    let _ = writeln!(out);
}
