//! First tokens that wait between the scheduler's send and the tokenizer's receive.

use std::fmt::Write as _;

use serde_json::json;

use super::attribution::RUN;
use super::consumer::{describe_off_cpu_shares, round_share};
use super::explained_ttft::describe_share;
use super::thresholds::{GAP_WARNING_NS, gap_severity};
use super::ttft::severity_of_late_leg;
use super::{DetectContext, Severity, Verdict, Verdicts, advice};
use crate::clock::MonoNs;
use crate::ledger::{CountedRids, LateLeg, Ttft, TtftMoment, WaitBreakdown};
use crate::words::{count, duration, percent, plural};

/// Reports first tokens that wait, or waited, for long between the scheduler's send and the tokenizer's receive.
pub(super) fn detect_late_first_tokens(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let ledger = context.ledger;
    if !ledger.observes_gaps() {
        return;
    }
    let OpenWaits { requests: waiting, oldest_ns, oldest_rid, late_rids } = collect_open_first_token_waits(context);
    let gap = ledger.gap();
    let worst_received_ns = ledger.worst_gap().map_or(0, |worst| worst.ns);
    let worst_ns = worst_received_ns.max(oldest_ns);
    let Some(severity) = severity_of_ended_waits(context).max(gap_severity(oldest_ns)) else { return };
    let above_warning = gap.count_above(GAP_WARNING_NS);
    let mut summary = describe_received_gaps(context, worst_received_ns);
    if oldest_ns >= GAP_WARNING_NS {
        let _ = write!(summary, "; {} waiting, the oldest for {}", count(waiting), duration(oldest_ns));
    }
    let rid = ledger.worst_gap().filter(|gap| gap.ns >= oldest_ns).map_or(oldest_rid, |gap| &gap.rid);
    // It began when the first of the late tokens was sent.
    let mut times = ledger.late_gaps;
    if oldest_ns >= GAP_WARNING_NS {
        times.record_span(MonoNs(context.now.0.saturating_sub(oldest_ns)), context.now);
    }
    let attribution = context.attribution.narrowed_to_longest_gaps();
    let bottleneck = attribution.bottleneck();
    let is_logged = attribution.legs.is_empty();
    if ledger.stages().counts.timed_gaps > 0 {
        summary.push_str("; by times in the engine's log, counted from the end of prefill");
    }
    let _ = write!(summary, "; {}", attribution.describe_first_token_time());
    let waits = &ledger.waits;
    // The tokenizer thread's activity explains only waits for the tokenizer.
    let explained = waits.total.requests > 0 && bottleneck.is_none_or(|leg| ledger.is_last(leg.name));
    if explained {
        let _ = write!(summary, "; meanwhile {}", describe_receiving_thread(&waits.total));
    }
    let facts = ledger.engine().facts();
    let advice = if is_logged {
        advice::logged_first_token_advice(facts)
    } else {
        advice::first_token_advice(facts, bottleneck)
    };
    let verdict = verdicts
        .add_verdict(severity, summary)
        .rid(rid)
        .times(times)
        .requests(&late_rids)
        .weight(worst_ns)
        .with("requests", gap.count())
        .with("requests_above_warning", above_warning)
        .with("waiting_now", waiting)
        .with("oldest_waiting_ns", oldest_ns)
        .advice(advice);
    if is_logged {
        verdict.with("by", "the engine's log");
    }
    // A long wait in progress is a state.
    if oldest_ns < GAP_WARNING_NS {
        verdict.occurrences(above_warning);
    }
    if let Some(late) = late_first_tokens(context) {
        verdict
            .with("ttft_share", round_share(late.share()))
            .with("ttft_share_requests", late.requests)
            .with("ttft_share_of_all", round_share(ledger.ttft().share_of_all(late)));
    }
    if let Some(leg) = bottleneck {
        verdict
            .hop(leg.name)
            .with("bottleneck", leg.describe())
            .with("bottleneck_share", round_share(leg.first_token[RUN].share))
            .with("bottleneck_thread", json!(leg.thread))
            .with_known("bottleneck_worker", leg.worker.as_deref());
    }
    // Before any receive, there is no distribution of gaps.
    if gap.count() > 0 {
        verdict
            .with("p50_ns", gap.quantile(0.5).unwrap_or(0))
            .with("p90_ns", gap.quantile(0.9).unwrap_or(0))
            .with("p99_ns", gap.quantile(0.99).unwrap_or(0))
            .with("max_ns", worst_received_ns);
    }
    if waits.total.requests > 0 {
        verdict.with("judged_requests", waits.total.requests);
        add_wait_breakdown(verdict, "judged", &waits.total);
    }
    // A wait still in progress has no attribution yet.
    if let Some(worst) = waits.worst.as_ref().filter(|worst| *worst.rid == *rid) {
        add_wait_breakdown(verdict, "worst", &worst.breakdown);
    }
}

/// Requests whose first token was sent and has not been received yet.
struct OpenWaits<'l> {
    requests: u64,
    /// Wait of the oldest so far.
    oldest_ns: u64,
    /// Its rid; empty without any.
    oldest_rid: &'l str,
    /// Requests whose gap was long, and those that have waited as long.
    late_rids: CountedRids,
}

/// Sums up the open waits: those of requests whose first token was sent and is not received yet.
fn collect_open_first_token_waits<'l>(context: &DetectContext<'l>) -> OpenWaits<'l> {
    // The list begins with the requests whose long wait has ended. Those whose long wait is open are added.
    let late_rids = context.ledger.late_gap_rids.clone();
    let mut open = OpenWaits { requests: 0, oldest_ns: 0, oldest_rid: "", late_rids };
    for request in context.ledger.requests() {
        let Some(sent) = request.first_token_waiting_since() else { continue };
        open.requests += 1;
        let waited_ns = context.now.since(sent);
        if waited_ns >= GAP_WARNING_NS {
            open.late_rids.add_rid(&request.rid);
        }
        if waited_ns > open.oldest_ns {
            open.oldest_ns = waited_ns;
            open.oldest_rid = &request.rid;
        }
    }
    open
}

/// Describes the gaps that have ended. A gap is the time between the first send and the first receive of a request's first token.
/// `worst_ns` is the longest gap.
fn describe_received_gaps(context: &DetectContext<'_>, worst_ns: u64) -> String {
    let ledger = context.ledger;
    let engine = ledger.engine().facts();
    // Distribution of these gaps.
    let gap = ledger.gap();
    let are_all_gaps_open = gap.count() == 0;
    if are_all_gaps_open {
        return format!("the {} has received no first token yet", engine.receiver());
    }
    format!(
        "first tokens waited up to {} between {} and {}{}: median {}, p90 {}; {} of {} above {}",
        duration(worst_ns),
        engine.source(),
        engine.receiver(),
        late_first_tokens(context).map_or_else(String::new, |late| describe_late_output(ledger.ttft(), late)),
        duration(gap.quantile(0.5).unwrap_or(0)),
        duration(gap.quantile(0.9).unwrap_or(0)),
        count(gap.count_above(GAP_WARNING_NS)),
        plural(gap.count(), "request"),
        duration(GAP_WARNING_NS),
    )
}

/// First tokens that waited a second or more, as far as they are parts of a known time to first token; `None` without any.
fn late_first_tokens<'a>(context: &DetectContext<'a>) -> Option<&'a LateLeg> {
    context.ledger.ttft().late_leg(TtftMoment::FirstSent)
}

fn describe_late_output(ttft: &Ttft, late: &LateLeg) -> String {
    format!(", {}", describe_share(ttft, late.part()))
}

/// Severity of the ended waits of first tokens between send and receive. Waits that are a small part of the time to first token are
/// information only. `None` if no wait is long.
fn severity_of_ended_waits(context: &DetectContext<'_>) -> Option<Severity> {
    let ledger = context.ledger;
    let severity_of_worst = gap_severity(ledger.worst_gap()?.ns)?;
    let long_waits = ledger.gap().count_above(GAP_WARNING_NS);
    // The share of the time to first token decides, but only if it is known for all long waits. Otherwise the longest wait decides.
    if let Some(late) = late_first_tokens(context)
        && late.requests >= long_waits
        && let Some(severity_by_share) = severity_of_late_leg(ledger.ttft(), late)
    {
        return Some(severity_by_share);
    }
    Some(severity_of_worst)
}

/// Describes what the receiving thread did while first tokens waited for it. A gap is the time from the first send of such a token to its
/// receive. `breakdown` has the sum of the gaps, the part of it before the last hop, and what the thread did in that time.
fn describe_receiving_thread(breakdown: &WaitBreakdown) -> String {
    /// A smaller part of the gap is not worth a mention.
    const MIN_UPSTREAM_SHARE: f64 = 0.05;
    let spent = &breakdown.spent;
    let mut words = format!(
        "the receiving thread was on CPU {} of the time, {}",
        percent(spent.share(spent.on_ns)),
        describe_off_cpu_shares(spent)
    );
    // Upstream is the time before the first token was sent on the last hop.
    let upstream_share = breakdown.upstream_ns as f64 / breakdown.gap_ns.max(1) as f64;
    if upstream_share >= MIN_UPSTREAM_SHARE {
        let _ = write!(words, "; {} of the gap was before the last hop", percent(upstream_share));
    }
    words
}

/// Adds the parts of a breakdown as evidence, under names that begin with `prefix`.
fn add_wait_breakdown(verdict: &mut Verdict, prefix: &str, breakdown: &WaitBreakdown) {
    let spent = &breakdown.spent;
    for (name, number) in [
        ("gap_ns", Some(breakdown.gap_ns)),
        ("upstream_ns", Some(breakdown.upstream_ns)),
        ("kernel_bytes_max", breakdown.kernel_bytes_max),
        ("observed_ns", Some(spent.interval_ns)),
        ("processing_ns", Some(spent.processing_ns)),
        ("on_cpu_ns", Some(spent.on_ns)),
        ("run_wait_ns", spent.starved_ns()),
        ("throttled_ns", spent.throttled_ns()),
        ("blocked_ns", spent.blocked_ns()),
    ] {
        verdict.with_known(&format!("{prefix}_{name}"), number);
    }
}
