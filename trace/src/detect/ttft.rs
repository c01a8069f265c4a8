//! Requests whose first token comes late because of what happens before the scheduler sends it.

use super::thresholds::{GAP_WARNING_NS, gap_severity};
use super::{DetectContext, Severity, Verdicts, advice};
use crate::ledger::TtftMoment;
use crate::words::{duration, percent, plural};

/// A part of the time to first token that is smaller than this is information: another part matters more.
pub(super) const MIN_LATE_SHARE: f64 = 0.25;

/// Requests that wait in the server's socket until it reads them.
pub(super) fn detect_late_reads(context: &DetectContext<'_>, out: &mut Verdicts) {
    let receiver = context.facts().receiver();
    let advice = format!(
        "the {receiver}'s event loop is busy or held up; {}",
        advice::own_work_advice(context.facts(), receiver)
    );
    detect_late_leg(
        context,
        TtftMoment::Arrived,
        &format!("in the server's socket until the {receiver} reads them"),
        advice,
        out,
    );
}

/// Requests that stay long in the tokenizer before it sends them to the scheduler.
pub(super) fn detect_late_dispatches(context: &DetectContext<'_>, out: &mut Verdicts) {
    let receiver = context.facts().receiver();
    let advice = "tokenisation, the chat template or images take this time, or clients send long requests slowly: `--python-stacks` names the \
                  functions";
    detect_late_leg(
        context,
        TtftMoment::Read,
        &format!("in the {receiver} before it dispatches them"),
        advice.to_owned(),
        out,
    );
}

/// Requests that wait long in the scheduler's queue.
pub(super) fn detect_queued_requests(context: &DetectContext<'_>, out: &mut Verdicts) {
    let facts = context.facts();
    // While the engine stands still, its queue does, too.
    let is_silence = |wait_end: u64, wait_ns: u64| {
        let silence = context.ledger.engine_silences().longest.as_ref();
        silence.is_some_and(|silence| {
            let wait_start = wait_end.saturating_sub(wait_ns);
            let overlap_ns = silence.to.0.min(wait_end).saturating_sub(silence.from.0.max(wait_start));
            overlap_ns > wait_ns / 2
        })
    };
    let late = context.ledger.ttft().late_leg(TtftMoment::Queued);
    if late.and_then(|late| late.worst.as_ref()).is_some_and(|worst| is_silence(worst.at.0, worst.ns)) {
        return;
    }
    let advice = format!("more requests arrive than fit into its batches: {}", facts.queue_relief());
    detect_late_leg(context, TtftMoment::Queued, &format!("in the {}'s queue", facts.source()), advice, out);
}

fn detect_late_leg(context: &DetectContext<'_>, from: TtftMoment, place: &str, advice: String, out: &mut Verdicts) {
    let ttft = context.ledger.ttft();
    let Some((late, worst)) = ttft.late_leg(from).and_then(|late| Some((late, late.worst.as_ref()?))) else { return };
    let Some(severity) = gap_severity(worst.ns) else { return };
    let severity = if late.share() < MIN_LATE_SHARE { Severity::Info } else { severity };
    let summary = format!(
        "{} of {} wait {} or more {place}, up to {}: {} of their time to first token",
        late.requests,
        plural(ttft.requests(), "request"),
        duration(GAP_WARNING_NS),
        duration(worst.ns),
        percent(late.share()),
    );
    out.add_verdict(severity, summary)
        .rid(&worst.rid)
        .occurrences(late.requests)
        .weighed("longest_ns", worst.ns)
        .with("requests", ttft.requests())
        .with("requests_late", late.requests)
        .with("ttft_share", super::consumer::round_share(late.share()))
        .advice(advice);
}
