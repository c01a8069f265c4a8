//! Cumulative output: added up by a consumer as if each chunk were new, or mixed with incremental output.

use super::{DetectContext, Severity, Verdict, Verdicts};
use crate::ledger::{Inflation, ModeCounts};
use crate::words::{count, plural};

/// Reports consumers that count all tokens so far as new ones, if deliveries show this. Otherwise reports the requests whose tokens a
/// consumer would count several times if it summed the chunks on the wire.
pub(super) fn detect_inflated_counts(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let totals = context.ledger.totals();
    // The first is counted from deliveries to clients, the second from chunks on the wire. `seen` has the affected requests.
    let claimed = &totals.claimed_inflation;
    let on_wire = &totals.wire_inflation;
    if claimed.seen.rids > 0 {
        let subject = format!("a consumer at the {} counted", context.facts().receiver());
        let confirmed = true;
        report_inflation(verdicts, Severity::Critical, claimed, &subject, confirmed)
            .hop(context.responding_role().unwrap_or_default());
    } else if on_wire.seen.rids > 0 {
        let subject = "a consumer that sums chunks counted";
        let confirmed = false;
        report_inflation(verdicts, Severity::Warning, on_wire, subject, confirmed);
    }
}

/// Reports a consumer whose token count is the sum of the cumulative counts it received.
pub(super) fn detect_summed_counts(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    // `seen` counts the affected requests.
    let summed = &context.ledger.totals().summed;
    if summed.seen.rids == 0 {
        return;
    }
    let summary = format!(
        "a consumer reported {} instead of {}, in {}: exactly the sum of the cumulative counts it received",
        plural(summed.counted, "token"),
        count(summed.made),
        plural(summed.seen.rids, "request"),
    );
    verdicts.add_verdict(Severity::Warning, summary)
            .affected("requests", &summed.seen)
            .occurrences(summed.counted)
            .with_weight("tokens_counted", summed.counted)
            .with("tokens_made", summed.made)
            .advice("use a request's last count, not the sum of all counts: usage, billing and limits based on the sum are wrong");
}

/// Adds a verdict on tokens that are counted several times. The summary begins with `subject`, such as `a consumer at the tokenizer
/// counted`. `is_confirmed` says that deliveries show the error, not only chunks.
fn report_inflation<'v>(
    verdicts: &'v mut Verdicts,
    severity: Severity,
    inflation: &Inflation,
    subject: &str,
    is_confirmed: bool,
) -> &'v mut Verdict {
    let ratio = inflation.counted as f64 / inflation.made.max(1) as f64;
    let summary = format!(
        "{subject} {} instead of {} ({ratio:.1} times as many) in {}: it mistook all tokens so far for new ones",
        plural(inflation.counted, "token"),
        count(inflation.made),
        plural(inflation.seen.rids, "request"),
    );
    verdicts.add_verdict(severity, summary)
        .affected("requests", &inflation.seen)
        .occurrences(inflation.counted)
        .with_weight("tokens_counted", inflation.counted)
        .with("tokens_made", inflation.made)
        .with("ratio", ratio)
        .with("confirmed", is_confirmed)
        .advice("the consumer expects only new tokens but the engine sends all tokens so far: set the engine's incremental flag, or compute differences")
}

/// Reports incremental and cumulative deliveries or streams in one engine. A consumer cannot handle both correctly.
pub(super) fn detect_mixed_modes(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let ModeCounts { incremental, cumulative } = context.ledger.totals().deliveries;
    if incremental > 0 && cumulative > 0 {
        report_mixed_modes(verdicts, "deliveries carried", incremental, cumulative);
    }
    for group in context.ledger.groups() {
        let ModeCounts { incremental, cumulative } = group.streams;
        if incremental > 0 && cumulative > 0 {
            report_mixed_modes(verdicts, "streams listed", incremental, cumulative).hop(&group.name);
        }
    }
}

/// Adds a verdict on deliveries or streams of both modes. `subject` is `deliveries carried` or `streams listed`.
fn report_mixed_modes<'v>(
    verdicts: &'v mut Verdicts,
    subject: &str,
    incremental: u64,
    cumulative: u64,
) -> &'v mut Verdict {
    let summary =
        format!("{} {subject} new tokens only and {} all tokens so far", count(incremental), count(cumulative));
    verdicts
        .add_verdict(Severity::Warning, summary)
        .occurrences(incremental + cumulative)
        .weight(incremental + cumulative)
        .with("incremental", incremental)
        .with("cumulative", cumulative)
        .advice("a consumer written for one mode loses or repeats tokens in the other")
}
