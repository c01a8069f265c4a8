//! Tokens that wait outside the hops: in the process that generated them, in their receiver, or in a frontend.

use super::advice::Receivers;
use super::consumer::round_share;
use super::explained_ttft::{describe_share, is_behind_receive};
use super::thresholds::{GAP_WARNING_NS, gap_severity};
use super::{DetectContext, Verdict, Verdicts, advice};
use crate::clock::MonoNs;
use crate::ledger::{FrontendWaits, LateLeg, Ledger, TimeUse};
use crate::stats::Distribution;
use crate::words::{duration, percent, plural};

/// A pause at the client that is this many times as long as the engine's longest pause is not caused by the engine.
pub(super) const MIN_TIMES_LONGER: u64 = 4;
/// A pause at the client that is this many times as long as the longest wait on a hop is not caused by that wait.
const MIN_TIMES_HOP_WAIT: u64 = 2;
/// Longest time before a check over which the use of threads is compared: samples are kept for little longer.
const COMPARED_NS: u64 = 10_000_000_000;
/// If even the shortest wait is this long, the engine's clock differs from ours, such as in a time namespace.
const OTHER_CLOCK_NS: u64 = GAP_WARNING_NS / 2;
/// Minimum share of time that is mentioned.
const MIN_MENTIONED_SHARE: f64 = 0.05;

/// Reports tokens that wait in the process that generated them before it sends them. The wait is known from the process's own timestamps,
/// or from the time in its send call. A group has the hops (connections) of one name.
pub(super) fn detect_late_sends(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    for group in context.ledger.groups() {
        let waits = group.send_wait.whole();
        let worst = waits.max().unwrap_or(0);
        let shortest = waits.quantile(0.0).unwrap_or(0);
        // If even the shortest wait is this long, the timestamps are of another clock, and the waits are not real.
        if shortest >= OTHER_CLOCK_NS {
            continue;
        }
        let Some(severity) = gap_severity(worst) else { continue };
        let source = context.facts().source();
        let median = waits.quantile(0.5).unwrap_or(0);
        let summary = format!(
            "tokens waited up to {} in the {source} before they were sent (median {}, {})",
            duration(worst),
            duration(median),
            plural(waits.count(), "message"),
        );
        let verdict = verdicts
            .add_verdict(severity, summary)
            .hop(&group.name)
            .times(group.late_sends)
            .occurrences(waits.count_above(GAP_WARNING_NS))
            .with_weight("send_wait_max_ns", worst)
            .with("send_wait_p50_ns", median)
            .advice(context.facts().late_send());
        // Samples of threads are kept for a short time, so they explain only a recent wait.
        let recent_ns = group.send_wait.recent_max(context.now).unwrap_or(0);
        if recent_ns >= GAP_WARNING_NS {
            add_busiest_server_thread(verdict, context, recent_ns);
        }
    }
}

/// Reports tokens that wait in a receiver after it received them, where a receive does not end a wait or is not observed.
pub(super) fn detect_late_deliveries(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let ledger = context.ledger;
    let engine = ledger.engine().facts();
    let receives = ledger.observes_receives();
    if receives && !engine.queues_after_receive() {
        return;
    }
    let waits = ledger.delivery_wait();
    let first = ledger.worst_delivery_wait();
    let first_ns = first.map_or(0, |worst| worst.ns);
    let sent_ns = ledger.itl_sent().max().unwrap_or(0);
    let delivered_ns = ledger.itl_delivered().max().unwrap_or(0);
    // A wait on a hop before the receive is reported by the findings about that hop.
    let on_hop_ns = ledger.output_groups().filter_map(|(_, group)| group.queue_wait.max()).max().unwrap_or(0);
    // A pause of the engine, or a wait on a hop, appears at the client, too.
    let explained_ns = sent_ns.saturating_mul(MIN_TIMES_LONGER).max(on_hop_ns.saturating_mul(MIN_TIMES_HOP_WAIT));
    let silence_ns = if delivered_ns > explained_ns { delivered_ns } else { 0 };
    let worst = first_ns.max(silence_ns);
    let Some(severity) = gap_severity(worst) else { return };
    let receiver = engine.receiver();
    let place = if receives {
        format!("in the {receiver} after it received them")
    } else {
        format!("between the {} and the client's connection", engine.source())
    };
    let mut parts = Vec::new();
    if first_ns >= GAP_WARNING_NS {
        let share = late_behind_receive(ledger).map(|late| describe_share(ledger.ttft(), late.part()));
        parts.push(format!(
            "first tokens waited up to {} {place}{} (median {}, {})",
            duration(first_ns),
            share.map_or_else(String::new, |share| format!(", {share}")),
            duration(waits.quantile(0.5).unwrap_or(0)),
            plural(waits.count(), "request"),
        ));
    }
    if silence_ns >= GAP_WARNING_NS {
        parts.push(format!(
            "responses stalled for up to {} and continued in a burst, while the {} sent new tokens at least every {}",
            duration(silence_ns),
            engine.source(),
            duration(sent_ns),
        ));
    }
    let verdict = verdicts
        .add_verdict(severity, parts.join("; "))
        .times(ledger.late_deliveries)
        .requests(&ledger.late_delivery_rids)
        .occurrences(waits.count_above(GAP_WARNING_NS) + ledger.itl_delivered().count_above(GAP_WARNING_NS))
        .weight(worst)
        .with("requests", waits.count())
        .with("requests_late", ledger.late_delivery_rids.counted())
        .with("first_token_max_ns", first_ns)
        .with("stall_max_ns", delivered_ns)
        .with("engine_itl_max_ns", sent_ns)
        .advice(if receives {
            let order =
                "responses are written only after all queued messages are processed, so the whole queue delays each of them";
            advice::with_relief(order, engine, Receivers { role: receiver, count: 0 })
        } else {
            engine.late_inside().to_owned()
        });
    if let Some(first) = first.filter(|first| first.ns == worst) {
        verdict.rid(&first.rid);
    }
    if let Some(late) = late_behind_receive(ledger).filter(|_| first_ns >= GAP_WARNING_NS) {
        verdict.with("ttft_share", round_share(late.share())).with("ttft_share_requests", late.requests);
    }
    if !receives {
        add_busiest_server_thread(
            verdict,
            context,
            ledger.recent_delivery_wait_max(context.now).unwrap_or(0).max(silence_ns),
        );
    }
}

/// The leg behind the receive on which late first tokens spent most; `None` without any.
fn late_behind_receive(ledger: &Ledger) -> Option<&LateLeg> {
    let legs = ledger.ttft().late_legs().iter().filter(|late| is_behind_receive(late.leg));
    legs.max_by_key(|late| late.ns)
}

/// Describes how long first tokens and last tokens waited in a frontend. Leaves out either of them if it has no long wait.
fn describe_late_frontend_waits(waits: &FrontendWaits) -> String {
    let mut late_parts = Vec::new();
    for (which, part_waits) in [("first", &waits.first_token), ("last", &waits.last_token)] {
        if longest_wait_ns(part_waits) >= GAP_WARNING_NS {
            late_parts.push(format!(
                "{which} tokens waited up to {} (median {}, {})",
                duration(longest_wait_ns(part_waits)),
                duration(part_waits.quantile(0.5).unwrap_or(0)),
                plural(part_waits.count(), "response"),
            ));
        }
    }
    late_parts.join(" and ")
}

/// Reports tokens that wait in a frontend after the engine's server wrote them to it.
pub(super) fn detect_late_frontend(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let waits = context.ledger.frontend();
    let Some(severity) = gap_severity(waits.worst.ns) else { return };
    let late_first_tokens = waits.first_token.count_above(GAP_WARNING_NS);
    let late_last_tokens = waits.last_token.count_above(GAP_WARNING_NS);
    let summary = format!("in the frontend, {} after the worker wrote them", describe_late_frontend_waits(waits));
    verdicts.add_verdict(severity, summary)
            .rid(&waits.worst.rid)
            .times(waits.late)
            .requests(&waits.late_rids)
            .occurrences(late_first_tokens + late_last_tokens)
            .weight(waits.worst.ns)
            .with("responses", waits.responses)
            .with("responses_late", waits.late_rids.counted())
            .with("first_token_max_ns", waits.first_token.max())
            .with("last_token_max_ns", waits.last_token.max())
            .advice(
                "the worker and its clients' connections are not the cause: give the frontend CPUs, or start more frontends",
            );
}

fn longest_wait_ns(waits: &Distribution) -> u64 {
    waits.max().unwrap_or(0)
}

/// Adds to a verdict which thread of the server was busiest in the `wait_ns` before the check, because that thread may delay the others.
/// Leaves the verdict unchanged if the threads of the server are not sampled, or if the server is not in the process that generates tokens.
pub(super) fn add_busiest_server_thread(verdict: &mut Verdict, context: &DetectContext<'_>, wait_ns: u64) {
    // Looks back `COMPARED_NS` at most, because samples are kept only for a little longer.
    let from = MonoNs(context.now.0.saturating_sub(wait_ns.min(COMPARED_NS)));
    let Some(ServerThread { name, spent }) = busiest_server_thread(context, from) else { return };
    // Shares of that time on a CPU, and waiting for one.
    let running = spent.share(spent.on_ns);
    let waiting = spent.wait_ns.map(|ns| spent.share(ns));
    let mentioned_wait = waiting.filter(|share| *share >= MIN_MENTIONED_SHARE);
    verdict.summary.push_str("; ");
    verdict.summary.push_str(&describe_busiest_thread(name, running, mentioned_wait));
    verdict
        .with("busiest_thread", name)
        .with("busiest_thread_running", running)
        .with("busiest_thread_waiting", waiting);
}

/// A thread of the server, with its time use in an interval.
struct ServerThread<'a> {
    name: &'a str,
    spent: TimeUse,
}

/// Finds the thread of the server that ran, or waited for a CPU, for most of the time since `since`. `None` if none is sampled, or if the
/// server has a process of its own.
fn busiest_server_thread<'a>(context: &DetectContext<'a>, since: MonoNs) -> Option<ServerThread<'a>> {
    let name_prefixes = context.facts().server_threads();
    let mut server_threads: Vec<ServerThread<'a>> = Vec::new();
    for thread in context.ledger.threads() {
        let is_of_server = name_prefixes.iter().any(|prefix| thread.name.starts_with(prefix));
        if is_of_server && let Some(spent) = thread.use_between(since, context.now) {
            server_threads.push(ServerThread { name: &thread.name, spent });
        }
    }
    server_threads.into_iter().max_by_key(|thread| thread.spent.wanted_ns())
}

/// Describes how the busiest thread of the server used its time: its share on a CPU and, if it is worth a mention, waiting for one.
fn describe_busiest_thread(name: &str, running: f64, mentioned_wait: Option<f64>) -> String {
    match mentioned_wait {
        None if running < MIN_MENTIONED_SHARE => {
            format!("no thread of the server ran more than {} of that time", percent(MIN_MENTIONED_SHARE))
        }
        None => format!("the server's busiest thread, {name}, ran {} of that time", percent(running)),
        Some(waited) => format!(
            "the server's busiest thread, {name}, ran {} of that time and waited for a CPU {}",
            percent(running),
            percent(waited)
        ),
    }
}
