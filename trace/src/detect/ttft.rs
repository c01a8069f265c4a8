//! Requests whose first token comes late because of what happens before the scheduler sends it.

use std::fmt::Write as _;

use super::advice::Receivers;
use super::attribution::{self, ThreadState};
use super::consumer::round_share;
use super::explained_ttft::{describe_part, describe_place_of_request};
use super::finding::REQUESTS_HOP;
use super::thresholds::{GAP_WARNING_NS, STARVED_SHARE, THROTTLED_SHARE, gap_severity};
use super::{DetectContext, Severity, Verdict, Verdicts, advice};
use crate::event::AwayState;
use crate::ledger::{LateLeg, TimeUse, TopFunction, Ttft, TtftLeg, TtftMoment};
use crate::words::{count, duration, percent, plural};

use TtftMoment::{Arrived, BatchEntered, Dispatched, Queued, Read, SchedulerReceived};

/// A part of the time to first token that is smaller than this is information: another part matters more.
pub(super) const MIN_LATE_SHARE: f64 = 0.25;
/// A leg whose late requests take less of all time to first token around them is information, too.
pub(super) const MIN_WHOLE_SHARE: f64 = 0.1;
/// A leg on which others spend this many times as long is not more severe than they are.
pub(super) const MINOR_TIMES: u128 = 10;
/// Fewer requests that are dispatched late at the same time are information: they may all be those of one slow client.
pub(super) const MIN_LATE_DISPATCHES: u64 = 3;
/// Requests that are dispatched late are information if the process that prepares them ran less: then it waited, as for a slow client.
pub(super) const MIN_PREPARING_SHARE: f64 = 0.25;

/// Reports requests that wait long in the server's socket until it reads them.
pub(super) fn detect_late_reads(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let receiver = context.facts().receiver();
    // The requests that waited long between their arrival and the next moment on their path.
    let Some(late) = context.ledger.ttft().late_leg(Arrived) else { return };
    let Some(worst) = late.worst.as_ref() else { return };
    let state = attribution::state_of_socket_reader_during_wait(context.ledger, worst.at, worst.ns);
    // `None` if these waits are not worth a finding.
    let Some(verdict) = add_verdict_on_late_leg(context, late, verdicts) else { return };
    let mut advice = late_read_advice(context, state);
    // Stack samples show the cause only if the thread ran, or may have run.
    if matches!(state, ThreadState::CpuBound | ThreadState::Busy | ThreadState::Unknown)
        && let Some(function) = describe_most_frequent_function(context, Arrived)
    {
        let _ = write!(advice, "; {function}");
    }
    if state != ThreadState::Unknown {
        let _ = write!(verdict.summary, "; the {receiver} was {} then", state.as_str());
    }
    add_late_accepted_connections(verdict, late);
    verdict.with("thread", state.as_str()).advice(advice);
}

/// Adds how many of the late requests came on connections that were accepted late. Adds nothing if there are none.
fn add_late_accepted_connections(verdict: &mut Verdict, late: &LateLeg) {
    if late.accepted_late == 0 {
        return;
    }
    let connections = plural(late.accepted_late, "new connection");
    let longest = duration(late.accept_wait_max_ns);
    let _ = write!(verdict.summary, "; {connections} waited up to {longest} to be accepted");
    verdict.with("connections_accepted_late", late.accepted_late).with("accept_wait_max_ns", late.accept_wait_max_ns);
}

/// Reports requests that stay long in the tokenizer before it sends them to the scheduler.
pub(super) fn detect_late_dispatches(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let receiver = context.facts().receiver();
    // The requests that waited long between their first read and their dispatch.
    let Some(late) = context.ledger.ttft().late_leg(Read) else { return };
    // `None` if these waits are not worth a finding.
    let Some(verdict) = add_verdict_on_late_leg(context, late, verdicts) else { return };
    // How the tokenizer used the time of these waits. `None` if less than half of that time was sampled.
    let used = Some(late.receiver_use).filter(|used| u128::from(used.process.interval_ns) >= late.ns / 2);
    let state = tokenizer_state_during_waits(context, late, used.map(|used| used.main));
    let advice_if_stopped = advice_if_thread_could_not_run(state);
    // A tokenizer that could run but hardly wanted to was waiting itself, perhaps for a slow client.
    let wanted_cpu_share = used.map(|used| used.process.share(used.process.wanted_ns()));
    let hardly_wanted_cpu = wanted_cpu_share.is_some_and(|share| share < MIN_PREPARING_SHARE);
    let may_be_slow_client = advice_if_stopped.is_none() && hardly_wanted_cpu;
    // A few requests that are late at the same time may all be those of one slow client.
    let are_few_at_once = late.concurrent < MIN_LATE_DISPATCHES;
    if are_few_at_once || may_be_slow_client {
        verdict.severity = Severity::Info;
    }
    if used.is_some() {
        add_receiver_use(verdict, late, receiver);
    }
    verdict
        .hop(context.responding_role().unwrap_or_default())
        .with("thread", state.as_str())
        .with("concurrent", late.concurrent);
    verdict.advice(match advice_if_stopped {
        Some(advice) => format!("the {receiver} was {}: {advice}", state.as_str()),
        None if may_be_slow_client => String::from(
            "it hardly ran: clients send long requests slowly, it waits for images from elsewhere or until generation is resumed, or it was \
             stopped",
        ),
        None => slow_preparation_advice(context),
    });
}

/// State of the tokenizer's main thread while requests waited for their dispatch. `main_use` is how the thread used the time of all these
/// waits, if it was sampled. If that shows no lack of CPU time, the state is the one during the longest wait.
fn tokenizer_state_during_waits(context: &DetectContext<'_>, late: &LateLeg, main_use: Option<TimeUse>) -> ThreadState {
    let shortage = main_use.map_or(ThreadState::Unknown, cpu_shortage_state);
    if shortage != ThreadState::Unknown {
        return shortage;
    }
    late.worst.as_ref().map_or(ThreadState::Unknown, |worst| {
        attribution::state_of_socket_reader_during_wait(context.ledger, worst.at, worst.ns)
    })
}

/// Adds how much the process that prepares requests ran while they waited for it, and how long its main thread waited for a CPU.
fn add_receiver_use(verdict: &mut Verdict, late: &LateLeg, receiver: &str) {
    let used = late.receiver_use;
    let running = used.process.share(used.process.on_ns);
    let _ = write!(verdict.summary, "; the {receiver} ran {} of that time", percent(running));
    verdict.with("process_running", round_share(running));
    // Unknown where the kernel does not report waits for a CPU.
    let Some(starved_ns) = used.main.starved_ns() else { return };
    let waiting = used.main.share(starved_ns);
    verdict.with("run_wait", round_share(waiting));
    if waiting >= STARVED_SHARE {
        let _ = write!(verdict.summary, ", and its main thread waited for a CPU {}", percent(waiting));
    }
}

/// Advice for a process that runs while requests wait for it to prepare them. Names its most frequent function, if stacks are sampled.
fn slow_preparation_advice(context: &DetectContext<'_>) -> String {
    let names = describe_most_frequent_function(context, Read)
        .unwrap_or_else(|| String::from("`--python-stacks` names the functions"));
    format!("tokenisation, the chat template or images take this time, or clients send long requests slowly: {names}")
}

/// Advice for requests that wait in the server's socket, by the state of the thread that reads it.
fn late_read_advice(context: &DetectContext<'_>, state: ThreadState) -> String {
    let receiver = context.facts().receiver();
    match state {
        ThreadState::CpuBound => {
            // 0, because it is unknown how many processes read the socket.
            advice::cpu_bound_advice(context.facts(), Receivers { role: receiver, count: 0 })
        }
        ThreadState::Starved => advice::STARVED.to_owned(),
        ThreadState::Throttled => advice::THROTTLED.to_owned(),
        ThreadState::Stopped => advice::not_running_advice(AwayState::Stopped, advice::ANY_SYSTEM_CALL).to_owned(),
        ThreadState::Frozen => advice::not_running_advice(AwayState::Frozen, advice::ANY_SYSTEM_CALL).to_owned(),
        ThreadState::Busy | ThreadState::PartlyRunning | ThreadState::Unknown => {
            format!("the {receiver}'s event loop is busy or held up")
        }
        ThreadState::Blocked | ThreadState::Asleep | ThreadState::Waiting => String::from(
            "it neither ran nor waited for a CPU: a signal or a debugger stopped it (`kill -CONT PID` resumes it), or a call blocks its event \
             loop (`py-spy dump --native` shows where)",
        ),
    }
}

/// Role of the process between tokenizer and scheduler that receives the late requests. `None` if the scheduler itself does.
fn role_that_forwards<'a>(context: &DetectContext<'a>, late: &LateLeg) -> Option<&'a str> {
    let ledger = context.ledger;
    let hop = ledger.hop(late.worst_hop?)?;
    hop.forwards_requests.then(|| &*ledger.groups()[hop.group].ends.to)
}

/// Reports requests that the scheduler receives late.
pub(super) fn detect_late_receives(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let source = context.facts().source();
    // The requests that waited long between their dispatch and the scheduler's receive.
    let Some(late) = context.ledger.ttft().late_leg(Dispatched) else { return };
    let Some(worst) = late.worst.as_ref() else { return };
    let state = attribution::state_of_request_receiver_during_wait(context.ledger, late.worst_hop, worst.at, worst.ns);
    // `None` if these waits are not worth a finding.
    let Some(verdict) = add_verdict_on_late_leg(context, late, verdicts) else { return };
    verdict.with_known(REQUESTS_HOP, late.worst_hop.map(|hop| context.ledger.hop_name(hop).into_owned()));
    verdict.with("thread", state.as_str());
    // `Some` if a process between tokenizer and scheduler receives the requests, and forwards them.
    let forwarding_role = role_that_forwards(context, late);
    // If the thread could not run, that is the cause, whichever process it belongs to.
    if let Some(advice) = advice_if_thread_could_not_run(state) {
        let receiver = forwarding_role.unwrap_or(source);
        let _ = write!(verdict.summary, "; the {receiver}'s thread that receives them was {} then", state.as_str());
        verdict.advice(advice);
    } else if let Some(role) = forwarding_role {
        verdict.advice(format!("the {role} holds them: `py-spy dump` shows what it does"));
    } else {
        verdict.advice(context.facts().late_receive());
    }
}

/// Advice about a thread that could not run: it waited for a CPU, was throttled by its quota, or was stopped or frozen. `None` for other
/// states.
fn advice_if_thread_could_not_run(state: ThreadState) -> Option<&'static str> {
    match state {
        ThreadState::Starved => Some(advice::STARVED),
        ThreadState::Throttled => Some(advice::THROTTLED),
        ThreadState::Stopped => Some(advice::not_running_advice(AwayState::Stopped, advice::ANY_SYSTEM_CALL)),
        ThreadState::Frozen => Some(advice::not_running_advice(AwayState::Frozen, advice::ANY_SYSTEM_CALL)),
        _ => None,
    }
}

/// Reports requests that the scheduler has received and that enter its queue late.
pub(super) fn detect_late_intakes(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    // The requests that waited long between the scheduler's receive and its queue.
    let Some(late) = context.ledger.ttft().late_leg(SchedulerReceived) else { return };
    if let Some(verdict) = add_verdict_on_late_leg(context, late, verdicts) {
        verdict.hop(context.token_source_role().unwrap_or_default()).advice(context.facts().late_intake());
    }
}

/// Reports requests that wait long in the scheduler's queue.
pub(super) fn detect_queued_requests(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let facts = context.facts();
    // The requests that waited long between the queue and a batch.
    let Some(late) = context.ledger.ttft().late_leg(Queued) else { return };
    // `None` if these waits are not worth a finding.
    let Some(verdict) = add_verdict_on_late_leg(context, late, verdicts) else { return };
    verdict.hop(context.token_source_role().unwrap_or_default());
    add_scheduler_load(verdict, late);
    let relief = facts.queue_relief();
    // If the scheduler sent output of other requests during most of these waits, its batches were full.
    verdict.advice(if late.is_beside_others() {
        format!("more requests arrive than fit into its batches: {relief}")
    } else {
        format!(
            "whether its batches were full is not known, because it sent little output of others meanwhile: a request also waits there for \
             its grammar (structured output), and while the engine is paused or asleep; if it computed long prompts, {relief}"
        )
    });
}

/// Adds the scheduler's load at the time when most requests waited: how many others had output, and how many had none yet. Adds nothing if
/// the load was not observed. The engine reports only with its output which requests are in a batch, so it is not known for those without.
fn add_scheduler_load(verdict: &mut Verdict, late: &LateLeg) {
    // Without a hop, the messages of requests to the scheduler were not observed, so its load is unknown.
    if late.worst_hop.is_none() {
        return;
    }
    let load = late.most_waiting;
    let _ = write!(
        verdict.summary,
        "; when most waited, {} had output and {} waited for their first token, in the queue or in a prefill",
        plural(load.running, "other"),
        count(load.waiting)
    );
    verdict.with("with_output", load.running).with("waiting", load.waiting);
}

/// Reports requests whose prefill takes much longer than other prefills with as many tokens.
pub(super) fn detect_slow_prefills(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let source = context.facts().source();
    // The requests whose prefill, from the batch to the first token, took long.
    let Some(late) = context.ledger.ttft().late_leg(BatchEntered) else { return };
    // `None` if these prefills are not worth a finding.
    let Some(verdict) = add_verdict_on_late_leg(context, late, verdicts) else { return };
    verdict.hop(context.token_source_role().unwrap_or_default());
    let mut state = ThreadState::Unknown;
    if let Some(slowest) = context.ledger.ttft().slowest_prefill() {
        let others = slowest.comparison;
        let _ = write!(verdict.summary, "; usual: {} for {} tokens", duration(others.usual_ns), count(others.tokens));
        verdict.with("usual_ns", others.usual_ns).with("tokens", others.tokens);
        // State of the scheduler's thread during this prefill.
        state = slowest.scheduler_use.map_or(ThreadState::Unknown, cpu_shortage_state);
    }
    if let Some(advice) = advice_if_thread_could_not_run(state) {
        let _ = write!(verdict.summary, "; the {source} was {} meanwhile", state.as_str());
        verdict.with("thread", state.as_str()).advice(advice);
        return;
    }
    verdict.advice(format!(
        "neither the number of tokens nor the prefix cache explains it: images or audio in the prompt, other work on its device, a \
         compilation, a retraction or a transfer of its cache; read the {source}'s log of that time"
    ));
}

/// Whether a thread was throttled or lacked a CPU; [`ThreadState::Unknown`] otherwise.
fn cpu_shortage_state(used: TimeUse) -> ThreadState {
    if used.throttled_ns().is_some_and(|ns| used.share(ns) >= THROTTLED_SHARE) {
        ThreadState::Throttled
    } else if used.starved_ns().is_some_and(|ns| used.share(ns) >= STARVED_SHARE) {
        ThreadState::Starved
    } else {
        ThreadState::Unknown
    }
}

/// Reports requests whose first token comes late, where the parts of that time cannot be told apart.
pub(super) fn detect_slow_first_tokens(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let facts = context.facts();
    // A leg is a part of a request's path. A merged leg spans moments in between that were not observed.
    let merged_legs = context.ledger.ttft().late_legs().iter().filter(|late| late.leg.is_merged());
    let Some(late) = merged_legs.max_by_key(|late| late.ns) else { return };
    let Some(worst) = late.worst.as_ref() else { return };
    let source = facts.source();
    let state = attribution::state_of_request_receiver_during_wait(context.ledger, late.worst_hop, worst.at, worst.ns);
    let place = describe_merged_leg(context, late.leg);
    // `None` if these waits are not worth a finding.
    let Some(verdict) = add_verdict_on_late_leg_at(context, late, &place, verdicts) else { return };
    add_scheduler_load(verdict, late);
    verdict.with("leg", late.leg.to_string());
    // A leg that begins before or at the read may include the wait for a slow client. Moments are compared in the order of the path.
    if late.leg.from <= Read {
        verdict.severity = Severity::Info;
    }
    let relief = facts.queue_relief();
    let advice = if let Some(advice) = advice_if_thread_could_not_run(state) {
        let _ = write!(verdict.summary, "; the thread that receives them was {} then", state.as_str());
        advice.to_owned()
    } else if late.is_beside_others() {
        format!("if the {source} runs as many requests as it can, {relief}; if few run, its prefills may be slow")
    } else {
        format!(
            "if many requests wait, {relief}; if none runs meanwhile, they wait for something else, such as a grammar or a paused engine: \
             `py-spy dump` shows what the {source} does"
        )
    };
    verdict.with("thread", state.as_str()).advice(advice);
}

/// Describes where a request is on a merged leg, a part of its path in which some moments were not observed. Also says why they were not:
/// `between dispatch and the first token (its parts are not observed)`.
fn describe_merged_leg(context: &DetectContext<'_>, leg: TtftLeg) -> String {
    let source = context.facts().source();
    let begin = match leg.from {
        Arrived => "arrival",
        Read => "the first read",
        _ => "dispatch",
    };
    let end = match leg.to {
        Dispatched => "dispatch".to_owned(),
        SchedulerReceived => format!("the receive by the {source}"),
        Queued => format!("the {source}'s queue"),
        BatchEntered => format!("the {source}'s batch"),
        _ => "the first token".to_owned(),
    };
    let why = describe_unknown_parts(context, leg);
    // Moments are compared in the order of the path.
    let is_in_scheduler = leg.from >= SchedulerReceived;
    if is_in_scheduler {
        format!("in the {source} before {end} ({why})")
    } else {
        format!("between {begin} and {end} ({why})")
    }
}

/// Describes which parts of a leg (a part of a request's path) cannot be told apart, and why.
fn describe_unknown_parts(context: &DetectContext<'_>, leg: TtftLeg) -> String {
    // Why the engine's own times, such as its `entries` to queue and batch, are unknown.
    let absent = context.ledger.reasons_for_absent_engine_times();
    let source = context.facts().source();
    // Moments are compared in the order of the path.
    if leg.to > Queued {
        format!("queue and prefill cannot be told apart: {}", absent.entries)
    } else if leg.from <= Dispatched && leg.to > SchedulerReceived {
        format!("its receive by the {source} is not observed")
    } else {
        String::from("its parts are not observed")
    }
}

/// Names the most frequent function in stack samples of the process that answers clients. Uses the samples taken while requests waited on
/// the leg that begins with `leg_from`. If these are too few, uses those of the whole run. `None` if these are too few as well.
fn describe_most_frequent_function(context: &DetectContext<'_>, leg_from: TtftMoment) -> Option<String> {
    let ledger = context.ledger;
    // The last hop of the path leads to the process that answers clients.
    let last_hop = ledger.hops().iter().find(|hop| hop.last)?;
    let role = &ledger.groups()[last_hop.group].ends.to;
    let stacks = ledger.stacks().iter().find(|stacks| stacks.role == *role)?;
    // `None` if the samples are too few to be significant.
    let top_while_late = stacks.top_function_of_late(leg_from).filter(TopFunction::is_significant);
    let period = if top_while_late.is_some() { "in that time" } else { "over the whole run" };
    let top = top_while_late.or_else(|| stacks.top_function().filter(TopFunction::is_significant))?;
    // Share of the samples in the function itself among all samples of a running thread.
    let share = percent(top.own as f64 / top.running as f64);
    Some(format!(
        "most frequent function of the {role} {period}: {} ({}), {share} of its samples",
        top.function.function, top.function.file
    ))
}

/// Severity of the late requests on a leg (a part of their path), by the longest time on it and without regard to other legs. `None` if
/// they are not worth a finding.
fn severity_regardless_of_other_legs(ttft: &Ttft, late: &LateLeg) -> Option<Severity> {
    let worst = late.worst.as_ref()?;
    let severity = gap_severity(worst.ns)?;
    // If the leg takes a small share of the time to first token, another leg matters more.
    let is_minor_for_late_requests = late.share() < MIN_LATE_SHARE;
    let is_minor_for_all_requests = ttft.window_share(late) < MIN_WHOLE_SHARE;
    let is_minor = is_minor_for_late_requests || is_minor_for_all_requests;
    Some(if is_minor { Severity::Info } else { severity })
}

/// Severity of the late requests on a leg, a part of their path. It does not exceed the severity of a leg that takes far more time, so that
/// few requests do not outrank many. `None` if the requests are not worth a finding.
pub(super) fn severity_of_late_leg(ttft: &Ttft, late: &LateLeg) -> Option<Severity> {
    let mut severity = severity_regardless_of_other_legs(ttft, late)?;
    let longer_legs = ttft.late_legs().iter().filter(|other| other.ns >= late.ns.saturating_mul(MINOR_TIMES));
    // A leg that begins with the read sets no limit, because slow clients may have caused its late dispatches.
    let limiting_legs = longer_legs.filter(|other| other.leg.from != Read);
    let worst_of_longer = limiting_legs.filter_map(|other| severity_regardless_of_other_legs(ttft, other)).max();
    // A leg that is information only must not lower the severity.
    if let Some(limit) = worst_of_longer.filter(|limit| *limit > Severity::Info) {
        severity = severity.min(limit);
    }
    Some(severity)
}

/// Adds a verdict without advice on a leg that has one part. `None` if the leg is not worth a finding.
fn add_verdict_on_late_leg<'v>(
    context: &DetectContext<'_>,
    late: &LateLeg,
    verdicts: &'v mut Verdicts,
) -> Option<&'v mut Verdict> {
    add_verdict_on_late_leg_at(context, late, &describe_place_of_request(context.facts(), late.leg.from), verdicts)
}

/// Adds a verdict on requests that waited long on a leg, a part of their path. `place` says where requests are on this leg. The caller adds
/// the advice. `None` if the waits are not worth a finding.
fn add_verdict_on_late_leg_at<'v>(
    context: &DetectContext<'_>,
    late: &LateLeg,
    place: &str,
    verdicts: &'v mut Verdicts,
) -> Option<&'v mut Verdict> {
    let ttft = context.ledger.ttft();
    let worst = late.worst.as_ref()?;
    let severity = severity_of_late_leg(ttft, late)?;
    let requests = ttft.judged().requests;
    let summary = format!(
        "{}: {} or more, up to {}",
        describe_part(ttft, late.part(), place),
        duration(GAP_WARNING_NS),
        duration(worst.ns),
    );
    let verdict = verdicts.add_verdict(severity, summary);
    verdict
        .rid(&worst.rid)
        .times(late.times)
        .requests(&late.rids)
        .occurrences(late.requests)
        .with_weight("longest_ns", worst.ns)
        .with("requests", requests)
        .with("requests_late", late.requests)
        .with("ttft_share", round_share(late.share()))
        .with("ttft_share_of_all", round_share(ttft.share_of_all(late)));
    Some(verdict)
}
