//! Requests whose first token comes late because of what happens before the scheduler sends it.

use super::advice::Receivers;
use super::attribution::{self, ThreadState};
use super::thresholds::{GAP_WARNING_NS, gap_severity};
use super::{DetectContext, Severity, Verdict, Verdicts, advice};
use crate::event::AwayState;
use crate::ledger::{LateLeg, TtftMoment};
use crate::words::{count, duration, percent, plural};

/// A part of the time to first token that is smaller than this is information: another part matters more.
pub(super) const MIN_LATE_SHARE: f64 = 0.25;

/// Fewer requests that are dispatched late are information: the time since their first bytes may be that of a client's slow upload.
pub(super) const MIN_LATE_DISPATCHES: u64 = 3;

/// Requests that wait in the server's socket until it reads them.
pub(super) fn detect_late_reads(context: &DetectContext<'_>, out: &mut Verdicts) {
    let receiver = context.facts().receiver();
    let worst = context.ledger.ttft().late_leg(TtftMoment::Arrived).and_then(|late| late.worst.as_ref());
    let Some(worst) = worst else { return };
    let state = attribution::reader_state(context.ledger, worst.at, worst.ns);
    let Some(verdict) = detect_late_leg(context, TtftMoment::Arrived, "in the server's socket", out) else { return };
    let advice = match state {
        ThreadState::CpuBound => {
            // How many processes read the socket is not observed.
            advice::cpu_bound_advice(context.facts(), Receivers { role: receiver, count: 0 })
        }
        ThreadState::Starved => advice::STARVED.to_owned(),
        ThreadState::Throttled => advice::THROTTLED.to_owned(),
        ThreadState::Stopped => advice::not_running_advice(AwayState::Stopped, "").to_owned(),
        ThreadState::Frozen => advice::not_running_advice(AwayState::Frozen, "").to_owned(),
        ThreadState::Busy | ThreadState::PartlyRunning | ThreadState::Unknown => {
            format!("the {receiver}'s event loop is busy or held up")
        }
        ThreadState::Blocked | ThreadState::Asleep | ThreadState::Waiting => String::from(
            "it neither ran nor waited for a CPU: a signal or a debugger stopped it (`kill -CONT PID` resumes it), or a call blocks its event \
             loop (`py-spy dump --native` shows where)",
        ),
    };
    if state != ThreadState::Unknown {
        let state = format!("; the {receiver} was {} then", state.as_str());
        verdict.summary.push_str(&state);
    }
    verdict.with("thread", state.as_str()).advice(advice);
}

/// Requests that stay long in the tokenizer before it sends them to the scheduler.
pub(super) fn detect_late_dispatches(context: &DetectContext<'_>, out: &mut Verdicts) {
    let place = format!("in the {} before dispatch", context.facts().receiver());
    if let Some(verdict) = detect_late_leg(context, TtftMoment::Read, &place, out) {
        if context.ledger.ttft().late_leg(TtftMoment::Read).is_some_and(|late| late.requests < MIN_LATE_DISPATCHES) {
            verdict.severity = Severity::Info;
        }
        verdict.advice(
            "tokenisation, the chat template or images take this time, or clients send long requests slowly: `--python-stacks` names the \
             functions",
        );
    }
}

/// Requests that the scheduler receives late.
pub(super) fn detect_late_receives(context: &DetectContext<'_>, out: &mut Verdicts) {
    let facts = context.facts();
    let source = facts.source();
    let place = format!("on the way to the {source}");
    let Some(verdict) = detect_late_leg(context, TtftMoment::Dispatched, &place, out) else { return };
    let state = attribution::scheduler_state(context.ledger);
    let cure = match state {
        ThreadState::Starved => advice::STARVED,
        ThreadState::Throttled => advice::THROTTLED,
        ThreadState::Stopped => advice::not_running_advice(AwayState::Stopped, ""),
        ThreadState::Frozen => advice::not_running_advice(AwayState::Frozen, ""),
        _ => facts.step_relief(),
    };
    let cause = match state {
        ThreadState::Unknown => format!("the {source} receives requests between its steps"),
        _ => format!("the {source} receives requests between its steps, and was {}", state.as_str()),
    };
    verdict.with("thread", state.as_str()).advice(format!("{cause}: {cure}"));
}

/// Requests that wait long in the scheduler's queue.
pub(super) fn detect_queued_requests(context: &DetectContext<'_>, out: &mut Verdicts) {
    let facts = context.facts();
    let place = format!("in the {}'s queue", facts.source());
    if let Some(verdict) = detect_late_leg(context, TtftMoment::Queued, &place, out) {
        verdict.advice(format!("more requests arrive than fit into its batches: {}", facts.queue_relief()));
    }
}

/// Requests whose prefill is slow beside others with as much work.
pub(super) fn detect_slow_prefills(context: &DetectContext<'_>, out: &mut Verdicts) {
    let source = context.facts().source();
    let place = "in slow prefills";
    let Some(verdict) = detect_late_leg(context, TtftMoment::BatchEntered, place, out) else { return };
    if let Some(slowest) = context.ledger.ttft().slowest_prefill() {
        let usual = format!("; usual: {} for {} tokens", duration(slowest.usual_ns), count(slowest.tokens));
        verdict.summary.push_str(&usual);
        verdict.with("usual_ns", slowest.usual_ns).with("tokens", slowest.tokens);
    }
    verdict.advice(format!(
        "neither prompt length nor the prefix cache explains it: other work on its device, a compilation, a retraction or a transfer of its \
         cache; read the {source}'s log of that time"
    ));
}

/// Adds a verdict on the leg that begins at `from`, without advice.
fn detect_late_leg<'v>(
    context: &DetectContext<'_>,
    from: TtftMoment,
    place: &str,
    out: &'v mut Verdicts,
) -> Option<&'v mut Verdict> {
    let ttft = context.ledger.ttft();
    let late: &LateLeg = ttft.late_leg(from)?;
    let worst = late.worst.as_ref()?;
    let severity = gap_severity(worst.ns)?;
    let severity = if late.share() < MIN_LATE_SHARE { Severity::Info } else { severity };
    // The share is that of the late requests alone: with all others it would be unrelated to what their clients saw.
    let summary = format!(
        "{} of the TTFT of {} of {} is spent {place}: {} or more, up to {}",
        percent(late.share()),
        count(late.requests),
        plural(ttft.requests(), "request"),
        duration(GAP_WARNING_NS),
        duration(worst.ns),
    );
    let verdict = out.add_verdict(severity, summary);
    verdict
        .rid(&worst.rid)
        .times(late.times)
        .occurrences(late.requests)
        .weighed("longest_ns", worst.ns)
        .with("requests", ttft.requests())
        .with("requests_late", late.requests)
        .with("ttft_share", super::consumer::round_share(late.share()));
    Some(verdict)
}
