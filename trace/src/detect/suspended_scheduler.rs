//! A scheduler that is not allowed to run although it has requests. No frame need wait for it: it may have received all of them before.

use super::consumer::late_consumers;
use super::consumer_away::describe_away_state;
use super::thresholds::{GAP_WARNING_NS, gap_severity};
use super::{DetectContext, Verdicts, advice};
use crate::event::AwayState;
use crate::ledger::CountedRids;
use crate::words::{duration, plural};

/// Reports the scheduler if its main thread has been in one of these `states` for long while it had requests. Does so only if the scheduler
/// has a single process.
pub(super) fn detect_suspended_scheduler(context: &DetectContext<'_>, verdicts: &mut Verdicts, states: &[AwayState]) {
    let ledger = context.ledger;
    let Some(role) = context.token_source_role() else { return };
    let Some(thread) = ledger.only_main_thread(role) else { return };
    let Some(suspension) = thread.suspension().filter(|suspension| states.contains(&suspension.state)) else { return };
    let lasted_ns = suspension.ns.min(context.now.since(suspension.from));
    if lasted_ns < GAP_WARNING_NS {
        return;
    }
    // If frames wait for the thread, another verdict reports it.
    if late_consumers(context).iter().any(|late| late.thread.id == thread.id) {
        return;
    }
    let requests: CountedRids = ledger.rids_in_engine(suspension.from).collect();
    let Some(severity) = gap_severity(lasted_ns).filter(|_| requests.counted() > 0) else { return };
    let id = thread.id;
    let summary = format!(
        "the {role} thread ({}/{}) {} for {} while it had {}",
        id.pid,
        id.tid,
        describe_away_state(suspension.state, ""),
        duration(lasted_ns),
        plural(requests.counted(), "request"),
    );
    let request_hop = ledger.groups().iter().find(|group| group.carries_requests && *group.ends.to == *role);
    verdicts
        .add_verdict(severity, summary)
        .hop(request_hop.map_or("", |group| &group.name))
        .since(Some(suspension.from))
        .requests(&requests)
        .with("role", role)
        .with("pid", id.pid)
        .with("tid", id.tid)
        .with("away", suspension.state.as_str())
        .with("requests_held", requests.counted())
        .with_weight("oldest_waiting_ns", lasted_ns)
        .advice(advice::not_running_advice(suspension.state, ""));
}
