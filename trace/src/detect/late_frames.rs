//! Frames that wait on a hop before their receiver receives them, whatever the receiver does.

use super::attribution::{LegKind, ThreadState};
use super::consumer::round_share;
use super::thresholds::{BURST_FRAMES, CPU_BOUND_SHARE, GAP_WARNING_NS, gap_severity};
use super::{DetectContext, Severity, Verdicts, advice};
use crate::ledger::LateFrames;
use crate::words::{duration, percent, plural};

/// Time without a frame that is not late, which makes shorter waits a warning.
pub(super) const LONG_STRETCH_NS: u64 = 2 * GAP_WARNING_NS;

/// Reports frames that were received late, for each group of hops (connections of one name). Names the state of the receiver if it was
/// observed.
pub(super) fn detect_late_frames(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    for (group_index, group) in context.ledger.output_groups() {
        let late = sum_late_frames_of_group(context, group_index);
        // A few late frames are not worth a finding.
        if late.frames < u64::from(BURST_FRAMES) {
            continue;
        }
        // The leg, a part of the tokens' path, that is the wait on these hops. It has the state of the receiving thread.
        let legs = &context.attribution.legs;
        let leg = legs.iter().find(|leg| leg.kind == LegKind::Wait && leg.name == group.name);
        let processing = late.processing_share();
        let mut summary =
            format!("{} waited up to {} on {}: ", plural(late.frames, "frame"), duration(late.longest_ns), group.name);
        summary += &describe_receiver_activity(&group.ends.to, leg.map(|leg| leg.thread), processing);
        // For a thread that is not sampled: if it was processing for nearly all of the time, it is busy.
        let observed = processing.filter(|share| *share >= CPU_BOUND_SHARE).map(|_| ThreadState::Busy);
        let advice = advice::hop_advice_by_state(context.facts(), &context.attribution, &group.name, observed);
        verdicts
            .add_verdict(severity_of_late_frames(&late), summary)
            .hop(&group.name)
            .times(late.times)
            .occurrences(late.frames)
            .with_weight("wait_max_ns", late.longest_ns)
            .with("frames", late.frames)
            .with_known("processing", processing.map(round_share))
            .advice(advice);
    }
}

/// Sums the late frames on the hops of a group.
fn sum_late_frames_of_group(context: &DetectContext<'_>, group_index: usize) -> LateFrames {
    let mut late = LateFrames::default();
    for hop in context.ledger.hops_of_group(group_index) {
        late = late.plus(&hop.late_frames);
    }
    late
}

/// Severity of late frames, by the longest wait of one. If no wait was long, by the longest stretch in which every received frame was late.
fn severity_of_late_frames(late: &LateFrames) -> Severity {
    let is_long_stretch = late.longest_stretch_ns >= LONG_STRETCH_NS;
    let severity_of_stretch = if is_long_stretch { Severity::Warning } else { Severity::Info };
    gap_severity(late.longest_ns).unwrap_or(severity_of_stretch)
}

/// Describes what the receiver did while frames waited, as far as it was observed: `the router was stopped`. If its thread was busy or in
/// an unknown state, describes `processing_share`, which is the share of that time in which it processed frames.
fn describe_receiver_activity(role: &str, thread_state: Option<ThreadState>, processing_share: Option<f64>) -> String {
    match thread_state.unwrap_or(ThreadState::Unknown) {
        ThreadState::Asleep => format!("the {role} was asleep"),
        ThreadState::PartlyRunning => format!("the {role} ran for a part of that time"),
        ThreadState::Busy | ThreadState::Unknown => describe_processing_share(role, processing_share),
        state => format!("the {role} was {} meanwhile", state.as_str()),
    }
}

/// Describes a receiver by the share of the time in which it processed frames, and what is not observed.
fn describe_processing_share(role: &str, processing_share: Option<f64>) -> String {
    let Some(share) = processing_share else { return format!("what the {role} did meanwhile is not observed") };
    let processed_nearly_always = share >= CPU_BOUND_SHARE;
    let unobserved = if processed_nearly_always { "its use of a CPU" } else { "what else it did" };
    format!("the {role} processed frames {} of that time; {unobserved} is not observed", percent(share))
}
