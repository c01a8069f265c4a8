//! The engine's own health check failed: according to its log, a process received nothing although the check asked for a message.

use super::{DetectContext, Severity, Verdicts};
use crate::words::{duration, plural};

/// Reports the longest silence in which the engine's own health check got no response. The silences are those that the engine logged.
pub(super) fn detect_failed_health_check(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let processes = context.ledger.stages().processes();
    // The process with the longest silence of all.
    let silent_processes = processes.iter().filter_map(|process| Some((process, process.silence?)));
    let Some((process, silence)) = silent_processes.max_by_key(|(_, silence)| silence.ns()) else { return };
    let sender = context.facts().checked_sender();
    let process_name = &*process.by;
    let first_check_at = silence.since;
    let summary = format!(
        "{} received nothing from the {sender} for at least {}, although {} asked for a response; its last message came {} before",
        process_name,
        duration(silence.ns()),
        plural(silence.checks, "health check"),
        duration(first_check_at.since(silence.last_message)),
    );
    verdicts.add_verdict(Severity::Critical, summary)
        .since(Some(first_check_at))
        .last_at(Some(silence.until))
        .occurrences(silence.checks)
        .with_weight("silent_ns", silence.ns())
        .with("by", "the engine's log")
        .with("process", process_name)
        .with("checks", silence.checks)
        .with("since_last_message_ns", silence.until.since(silence.last_message))
        .advice(format!(
            "the log does not show which process froze: the {sender}, or the {} before it; while it lasts, `tokengap attach` shows the \
             hop where messages wait and the state of each process",
            context.facts().source()
        ));
}
