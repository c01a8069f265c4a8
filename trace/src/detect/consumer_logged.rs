//! A CPU-bound consumer according to the engine's log, which reports high CPU use while requests wait.
//!
//! No thread or queue is observed here. The log's CPU figures cover the whole process.

use std::fmt::Write as _;

use super::consumer::rounded;
use super::thresholds::{CPU_BOUND_SHARE, GAP_WARNING_NS, LATE_NS, gap_severity};
use super::{DetectContext, Severity, Verdicts, advice};
use crate::ledger::stages::LoggedProcess;
use crate::words::{count, duration, percent};

/// A process that waits at least this long for a message is idle.
const IDLE_WAIT_NS: u64 = 5_000_000;

pub(super) fn check(context: &DetectContext<'_>, out: &mut Verdicts) {
    let busiest = context
        .ledger
        .stages()
        .processes()
        .iter()
        .filter_map(|process| Some((process, process.cpu_at(context.now)?)))
        .filter(|(_, cpu)| *cpu >= CPU_BOUND_SHARE)
        .max_by(|a, b| a.1.total_cmp(&b.1));
    let Some((process, cpu)) = busiest else { return };
    // It mostly waits for messages, so its own work is not the limit.
    let recv_wait = process.recv_wait.quantile(0.5);
    if recv_wait.is_some_and(|ns| ns >= IDLE_WAIT_NS) {
        return;
    }
    let waits = context
        .ledger
        .requests()
        .filter_map(|r| Some(context.now.since(r.waiting_since()?)))
        .filter(|&ns| ns >= LATE_NS);
    let (waiting, oldest_ns) = waits.fold((0, 0), |(n, oldest), ns| (n + 1, u64::max(oldest, ns)));
    let worst_ns = context.ledger.worst_gap().map_or(0, |w| w.ns).max(oldest_ns);
    if worst_ns < GAP_WARNING_NS && (waiting > 0 || context.ledger.observes_gaps()) {
        return;
    }
    let severity = gap_severity(worst_ns).unwrap_or(Severity::Warning);
    let states = process.states_at(context.now);
    out.add(severity, summary(process, cpu, recv_wait, states, (waiting, oldest_ns)))
        .weight(u64::from(states.unwrap_or(0)).max(waiting))
        .with("by", "the engine's log")
        .with("process", &*process.by)
        .with("process_cpus", rounded(cpu))
        .with("waiting_requests", waiting)
        .with("oldest_waiting_ns", oldest_ns)
        .advice(format!(
            "{}; attach to see which functions it spends its time in",
            advice::own_work(context.facts(), context.facts().receiver())
        ))
        .with_known("states", states)
        .with_known("recv_wait_p50_ns", recv_wait)
        .with_known("more_ready", process.more_share().map(rounded));
}

fn summary(
    process: &LoggedProcess,
    cpu: f64,
    recv_wait: Option<u64>,
    states: Option<u32>,
    (waiting, oldest_ns): (u64, u64),
) -> String {
    let mut text = format!("the engine logs that {} uses {} of a core", process.by, percent(cpu));
    if let Some(states) = states {
        let _ = write!(text, " with {} request states", count(states.into()));
    }
    if waiting > 0 {
        let _ = write!(
            text,
            " and {} waiting for the first token, the longest for {}",
            if waiting == 1 { "1 request".to_owned() } else { format!("{} requests", count(waiting)) },
            duration(oldest_ns)
        );
    }
    if let Some(ns) = recv_wait {
        let _ = write!(text, "; it waits {} for each message", duration(ns));
    }
    if let Some(share) = process.more_share() {
        let _ = write!(text, ", {} of which have more ready behind them", percent(share));
    }
    text.push_str(if recv_wait.is_some() { ": it is CPU-bound, not I/O-bound" } else { "" });
    text
}
