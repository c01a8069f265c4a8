//! The engine sent nothing at all although several streams were open.

use std::fmt::Write as _;

use super::consumer::round_share;
use super::explained_ttft::describe_part;
use super::finding::REQUESTS_HOP;
use super::thresholds::{GAP_WARNING_NS, gap_severity};
use super::{DetectContext, Severity, Verdict, Verdicts};
use crate::ledger::{ControlMessages, EngineSilence, Ttft};
use crate::words::{count, duration, percent, plural};

/// Reports the silence of the engine that lasts, and the longest one that has ended.
pub(super) fn detect_engine_silence(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    report_current_silence(context, verdicts);
    report_longest_silence(context, verdicts);
}

/// Reports the silence that lasts, if there is one.
fn report_current_silence(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let Some(current) = context.ledger.current_engine_silence(context.now) else { return };
    let summary = format!(
        "the {} has sent no frame for {} so far while {} are open (usual time between two chunks of a stream: {})",
        context.facts().source(),
        duration(current.ns()),
        plural(current.streams, "stream"),
        duration(current.usual_ns),
    );
    report_silence(context, &current, summary, verdicts);
}

/// Reports the longest silence that has ended, with the number of all silences and the requests that they delayed. A silence is a time in
/// which the engine sent nothing although streams were open.
fn report_longest_silence(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let silences = context.ledger.engine_silences();
    let source = context.facts().source();
    let Some(longest) = &silences.longest else { return };
    // The text about delayed requests ends with `while` or `meanwhile,`, so that the number of open streams can follow it.
    let mut summary = format!(
        "the {source} sent no frame for {}{} {} were open (usual time between two chunks of a stream: {})",
        duration(longest.ns()),
        describe_requests_delayed_by_silences(context.ledger.ttft()),
        plural(longest.streams, "stream"),
        duration(longest.usual_ns),
    );
    if silences.count > 1 {
        let _ = write!(summary, "; {} such silences, {} in total", count(silences.count), duration(silences.total_ns));
        summary += &describe_silence_begins(context);
    }
    if let Some(verdict) = report_silence(context, longest, summary, verdicts) {
        add_requests_delayed_by_silences(verdict, context);
        verdict
            .occurrences(silences.count)
            .times(silences.times)
            .with("silences", silences.count)
            .with("silences_total_ns", silences.total_ns);
    }
}

/// Describes when each silence began, as times since the start of the run: `, from 14.000 s and 26.000 s on`. Empty if there are too many
/// to list.
fn describe_silence_begins(context: &DetectContext<'_>) -> String {
    /// Beyond this number, no silence is listed.
    const MAX_LISTED: u64 = 4;
    let silences = context.ledger.engine_silences();
    let started = context.ledger.started().unwrap_or_default();
    let begins: Vec<String> = silences.recent_begins().map(|from| duration(from.since(started))).collect();
    // The ledger keeps only when the latest silences began.
    let are_all_known = begins.len() as u64 == silences.count;
    if silences.count > MAX_LISTED || !are_all_known {
        return String::new();
    }
    let Some((last, earlier)) = begins.split_last() else { return String::new() };
    format!(", from {} and {last} on", earlier.join(", "))
}

/// Describes the requests that waited for their first token because of the silences. The text stands in a summary between the length of
/// the silence and the number of open streams. Without such requests, it is only ` while`.
fn describe_requests_delayed_by_silences(ttft: &Ttft) -> String {
    let silenced = ttft.silenced();
    // `rids` is the number of these requests, and `amount` the longest wait.
    if silenced.requests.rids == 0 {
        return String::from(" while");
    }
    format!(
        "; {}: {} or more, up to {}; meanwhile,",
        describe_part(ttft, silenced.part, "between dispatch and first token"),
        duration(GAP_WARNING_NS),
        duration(silenced.requests.amount),
    )
}

/// Adds the requests that waited for their first token because of the silences.
fn add_requests_delayed_by_silences(verdict: &mut Verdict, context: &DetectContext<'_>) {
    let silenced = context.ledger.ttft().silenced();
    // `rids` is the number of these requests, and `amount` the longest wait.
    let late = &silenced.requests;
    if late.rids == 0 {
        return;
    }
    // Hop on which the request with the longest wait waited for the scheduler.
    let hop = silenced.worst_hop.map(|hop| context.ledger.hop_name(hop).into_owned());
    verdict
        .rid(&late.worst)
        .requests(&late.requests)
        .with("requests_late", late.rids)
        .with("requests_late_longest_ns", late.amount)
        .with("ttft_share", round_share(silenced.part.share()))
        .with_known(REQUESTS_HOP, hop);
}

/// Describes whether the engine may have been told to pause by a control message; empty if it was not.
fn describe_control_messages(control: ControlMessages, source: &str) -> String {
    match control {
        ControlMessages::None => String::new(),
        ControlMessages::Sent => {
            format!("; a control message to the {source} was sent then, which may have paused it")
        }
        ControlMessages::Unobserved => {
            String::from("; whether it was asked to pause or to load weights is not observed")
        }
    }
}

/// Adds a verdict on a silence, with what the engine's main thread did and whether a control message may be the cause. `None` if the
/// silence is too short for a verdict.
fn report_silence<'v>(
    context: &DetectContext<'_>,
    silence: &EngineSilence,
    mut summary: String,
    verdicts: &'v mut Verdicts,
) -> Option<&'v mut Verdict> {
    let severity_of_length = gap_severity(silence.ns())?;
    // A control message may have asked the engine to pause, or to load other weights. The silence is then no failure of the engine.
    let may_be_requested = silence.control != ControlMessages::None;
    let severity = if may_be_requested { severity_of_length.min(Severity::Warning) } else { severity_of_length };
    let source = context.facts().source();
    let started = context.ledger.started().unwrap_or_default();
    let running = silence.main_thread.map(|spent| spent.share(spent.on_ns));
    if let Some(running) = running {
        let _ = write!(summary, "; its main thread ran {} of that time", percent(running));
    }
    summary += &describe_control_messages(silence.control, source);
    let verdict = verdicts.add_verdict(severity, summary);
    verdict
        .hop(&silence.hop)
        .since(Some(silence.from))
        .with_weight("silence_ns", silence.ns())
        .with("silence_at_ns", silence.from.since(started))
        .with("streams", silence.streams)
        .with("usual_chunk_interval_ns", silence.usual_ns)
        .with_known("main_thread_running", running)
        .advice(format!(
            "all streams paused together, so look at the {source} and not at one request: its process was stopped or \
             debugged, or one step took this long (a long prefill, a compilation, a weight update or pause); read its log \
             of that time, and while it lasts `py-spy dump`",
        ));
    Some(verdict)
}
