//! A CPU-bound consumer: its thread computes all the time while frames wait, or the engine logs that it does.

use std::fmt::Write as _;

use super::advice::Receivers;
use super::consumer::{JudgedConsumer, LateConsumer, round_share, worst_consumer_of_each_group};
use super::thresholds::{CPU_BOUND_SHARE, GAP_WARNING_NS, LATE_NS, STARVED_SHARE, gap_severity};
use super::{DetectContext, Severity, Verdicts, advice};
use crate::ledger::{Request, StackFunction};
use crate::words::{bytes, count, duration, percent, plural};

/// With fewer stack samples of a running thread, a share is not significant.
const MIN_SAMPLES: u64 = 20;
/// A process that waits at least this long for a message is idle.
const IDLE_WAIT_NS: u64 = 5_000_000;
/// Minimum share of samples in response writes to mention it.
const MENTIONED_WRITES_SHARE: f64 = 0.1;
/// Minimum share of samples in response writes that makes them the consumer's main work.
const MAIN_WRITES_SHARE: f64 = 0.5;

/// Whether the function writes parts of an HTTP response: uvicorn's `RequestResponseCycle.send`, of either parser.
fn writes_response(function: &StackFunction) -> bool {
    function.file.contains("uvicorn/protocols/http/") && function.function.rsplit('.').next() == Some("send")
}

/// Share of stack samples of a role's running threads that were writing HTTP responses while frames piled up; `None` with too few samples.
fn share_of_samples_in_response_writes(context: &DetectContext<'_>, role: &str) -> Option<f64> {
    let stacks = context.ledger.stacks().iter().find(|stacks| *stacks.role == *role)?;
    // `growing` has the samples taken while frames piled up.
    let running = stacks.growing.running;
    if running < MIN_SAMPLES {
        return None;
    }
    let functions = stacks.functions();
    let write_functions = functions.iter().filter(|function| writes_response(function));
    // Samples with the function anywhere on the stack, because its callees are part of the write.
    let writing: u64 = write_functions.map(|function| function.growing.total).sum();
    Some(writing as f64 / running as f64)
}

/// Share of the time that the consumer's own work took. Waits for a CPU count as work if the consumer would have kept the frames waiting
/// even with a CPU of its own. `None` for a scheduler, because it is normally on a CPU while it computes a step.
fn share_of_own_work(consumer: &LateConsumer<'_>) -> Option<f64> {
    if consumer.group.carries_requests {
        return None;
    }
    let spent = &consumer.spent;
    let waits_ns = if consumer.is_held_by_own_work() { spent.starved_ns().unwrap_or(0) } else { 0 };
    Some(spent.share(spent.on_ns.saturating_add(waits_ns)))
}

/// Describes the share of the time on a CPU and, if it is worth a mention, waiting for one.
fn describe_cpu_use(consumer: &LateConsumer<'_>) -> String {
    let spent = &consumer.spent;
    let on_cpu = percent(spent.share(spent.on_ns));
    let thread = consumer.describe_thread();
    let mut words = format!("{thread} was on CPU {on_cpu} of the time {}", consumer.describe_waiting_frames());
    if let Some(starved_ns) = spent.starved_ns().filter(|ns| spent.share(*ns) >= STARVED_SHARE) {
        let _ = write!(words, " ({} waiting for a CPU)", percent(spent.share(starved_ns)));
    }
    words
}

/// Describes how many bytes of the waiting frames were in the kernel, and not in libzmq's queue. Empty if that is not sampled.
fn describe_frames_in_kernel(context: &DetectContext<'_>, consumer: &LateConsumer<'_>) -> String {
    match consumer.group.kernel.max_bytes_between(consumer.from, context.now) {
        Some(0) => String::from("; none of them were in the kernel: all waited in libzmq's own queue"),
        Some(max) => format!("; up to {} of them were in the kernel", bytes(max)),
        None => String::new(),
    }
}

/// Reports consumers (threads that receive frames) that spend nearly all of their time on a CPU while frames wait for them.
pub(super) fn detect_cpu_bound_consumer(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    for JudgedConsumer { consumer, .. } in worst_consumer_of_each_group(context, CPU_BOUND_SHARE, share_of_own_work) {
        let role = &consumer.thread.role;
        let writes_share = share_of_samples_in_response_writes(context, role);
        let summary = describe_cpu_bound_consumer(context, &consumer, writes_share);
        let engine = context.facts();
        let receivers = Receivers::of_group(context, &consumer.group.name, role);
        // Only stack samples show what the thread does. Without them, the advice is about the usual work of the engine.
        let is_mostly_writing = writes_share.is_some_and(|share| share >= MAIN_WRITES_SHARE);
        let advice = if is_mostly_writing {
            advice::own_writes_advice(engine, receivers)
        } else {
            advice::cpu_bound_advice(engine, receivers)
        };
        let processing = consumer.spent.share(consumer.spent.processing_ns);
        consumer
            .add_verdict(context, verdicts, summary)
            .with("process_cpus", round_share(consumer.mean_cpus_of_process(context)))
            .with("processing", round_share(processing))
            .with_known("http_writes", writes_share.map(round_share))
            .with_known("recv_wait_p50_ns", consumer.group.recv_wait.quantile(0.5))
            .advice(advice);
    }
}

/// Describes what a CPU-bound consumer did and where frames waited for it. `writes_share` is the share of its stack samples in writes of
/// HTTP responses, if they are known.
fn describe_cpu_bound_consumer(
    context: &DetectContext<'_>,
    consumer: &LateConsumer<'_>,
    writes_share: Option<f64>,
) -> String {
    let mut summary = describe_cpu_use(consumer);
    if let Some(ns) = consumer.group.recv_wait.quantile(0.5) {
        let _ = write!(summary, "; it received a frame {} after asking for one (median)", duration(ns));
    }
    summary += &describe_frames_in_kernel(context, consumer);
    if let Some(share) = writes_share.filter(|share| *share >= MENTIONED_WRITES_SHARE) {
        let _ = write!(summary, "; {} of its stack samples were writing HTTP responses", percent(share));
    }
    summary
}

/// Reports a CPU-bound consumer according to the engine's log, which reports high CPU use while requests wait. No thread or queue is
/// observed here. The log's CPU figures cover the whole process.
pub(super) fn detect_logged_cpu_bound_consumer(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    // The processes whose CPU use is logged, each with its share of one core.
    let processes = context.ledger.stages().processes().iter();
    let with_cpu = processes.filter_map(|process| Some((process, process.cpu_at(context.now)?)));
    let cpu_bound = with_cpu.filter(|(_, cpu)| *cpu >= CPU_BOUND_SHARE);
    let busiest = cpu_bound.max_by(|(_, cpu), (_, other_cpu)| cpu.total_cmp(other_cpu));
    let Some((process, cpu)) = busiest else { return };
    let recv_wait = process.recv_wait.quantile(0.5);
    // It mostly waits for messages, so its own work is not the limit.
    if recv_wait.is_some_and(|ns| ns >= IDLE_WAIT_NS) {
        return;
    }
    let mut waiting = 0;
    let mut oldest_ns = 0;
    for sent_at in context.ledger.requests().filter_map(Request::first_token_waiting_since) {
        let wait_ns = context.now.since(sent_at);
        if wait_ns >= LATE_NS {
            waiting += 1;
            oldest_ns = wait_ns.max(oldest_ns);
        }
    }
    let worst_ns = context.ledger.worst_gap().map_or(0, |worst| worst.ns).max(oldest_ns);
    if worst_ns < GAP_WARNING_NS && (waiting > 0 || context.ledger.observes_gaps()) {
        return;
    }
    let severity = gap_severity(worst_ns).unwrap_or(Severity::Warning);
    let states = process.states_at(context.now);
    let mut summary = format!("the engine logged that {} used {} of a core", process.by, percent(cpu));
    if let Some(states) = states {
        let _ = write!(summary, " with {} request states", count(states.into()));
    }
    if waiting > 0 {
        let _ = write!(
            summary,
            " and {} waiting for the first token, the longest for {}",
            plural(waiting, "request"),
            duration(oldest_ns)
        );
    }
    if let Some(ns) = recv_wait {
        let _ = write!(summary, "; it waited {} for each message", duration(ns));
    }
    if let Some(share) = process.more_share() {
        let _ = write!(summary, ", {} of which had more ready behind them", percent(share));
    }
    summary.push_str(if recv_wait.is_some() { ": it was CPU-bound, not I/O-bound" } else { "" });
    verdicts
        .add_verdict(severity, summary)
        .weight(u64::from(states.unwrap_or(0)).max(waiting))
        .with("by", "the engine's log")
        .with("process", &*process.by)
        .with("process_cpus", round_share(cpu))
        .with("waiting_requests", waiting)
        .with("oldest_waiting_ns", oldest_ns)
        .advice(format!(
            "{}; attach to see which functions it spends its time in",
            // The log does not show how many there are.
            advice::cpu_bound_advice(context.facts(), Receivers { role: context.facts().receiver(), count: 0 })
        ))
        .with_known("states", states)
        .with_known("recv_wait_p50_ns", recv_wait)
        .with_known("more_ready", process.more_share().map(round_share));
}
