//! A CPU-bound consumer according to the engine's log, which reports high CPU use while requests wait.
//!
//! No thread or queue is observed here. The log's CPU figures cover the whole process.

use std::fmt::Write as _;

use super::consumer::rounded;
use super::thresholds::{CPU_BOUND_SHARE, GAP_WARNING_NS, LATE_NS, gap_severity};
use super::{DetectContext, Severity, Verdict, advice};
use crate::ledger::stages::LoggedProcess;
use crate::words::{count, duration, percent};

/// A process that waits at least this long for a message is idle.
const IDLE_WAIT_NS: u64 = 5_000_000;

pub(super) fn check(context: &DetectContext<'_>, found: &mut Vec<Verdict>) {
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
    let verdict = Verdict::new(severity, summary(process, cpu, recv_wait, states, (waiting, oldest_ns)))
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
    found.push(verdict);
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

#[cfg(test)]
mod tests {
    use super::super::scene::{SECOND, Scene};
    use super::*;
    use crate::engine::example;
    use crate::event::{LoggedState, Stage, What};
    use crate::ledger::Limits;

    fn stage(rid: &'static str, name: &'static str) -> What<'static> {
        What::Stage(Stage::new(rid, name, ""))
    }

    /// A log of 850 waiting requests, with this CPU use and this wait for a message.
    fn verdicts(cpu: f64, recv_wait_ns: u64, now: u64) -> Vec<Verdict> {
        let mut scene = Scene::empty(example::ENGINES, Limits::default());
        let logged = |what| What::LoggedState(LoggedState { by: "tokenizer", ..what });
        for (at, what) in [
            (0, stage("a", "first_output_stream")),
            (0, stage("b", "first_output_stream")),
            (
                8 * SECOND,
                logged(LoggedState {
                    states: Some(850),
                    rids: Some(15),
                    recv_wait_ns: Some(recv_wait_ns),
                    more: Some(true),
                    ..LoggedState::default()
                }),
            ),
            (9 * SECOND, logged(LoggedState { states: Some(1_024), cpu: Some(cpu), ..LoggedState::default() })),
            (9 * SECOND, stage("a", "tokenizer_first_token")),
        ] {
            scene.apply(at, what);
        }
        scene.check(check, now)
    }

    #[test]
    fn a_busy_process_with_queued_work_is_cpu_bound() {
        let found = verdicts(2.25, 200_000, 10 * SECOND);
        assert_eq!(found[0].severity, Severity::Critical);
        assert!(
            found[0].summary.contains("225 % of a core with 1,024 request states and 1 request waiting for"),
            "{}",
            found[0].summary
        );
        assert!(found[0].summary.ends_with("it is CPU-bound, not I/O-bound"));
        assert_eq!(found[0].evidence["by"], "the engine's log");
        assert_eq!(found[0].evidence["waiting_requests"], 1);
    }

    #[test]
    fn idle_or_waiting_processes_and_stale_log_lines_are_not_reported() {
        assert!(verdicts(0.3, 200_000, 10 * SECOND).is_empty());
        assert!(verdicts(2.25, 40_000_000, 10 * SECOND).is_empty());
        assert!(verdicts(2.25, 200_000, 60 * SECOND).is_empty());
    }
}
