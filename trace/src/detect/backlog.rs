//! Frames that wait on a hop.

use super::consumer::round_share;
use super::thresholds::{BACKLOG_CRITICAL_FRAMES, BACKLOG_FRAMES, BURST_FRAMES, LATE_NS};
use super::{DetectContext, Severity, Verdicts, advice};
use crate::ledger::{Hop, HopGroup};
use crate::stats::Distribution;
use crate::words::{count, duration, percent, plural};

/// Time for which the oldest frame on the hops of a group has waited; 0 if none waits.
fn wait_of_oldest_frame_ns(context: &DetectContext<'_>, group_index: usize) -> u64 {
    let oldest = context.ledger.hops_of_group(group_index).filter_map(Hop::oldest_waiting).min();
    oldest.map_or(0, |sent_at| context.now.since(sent_at))
}

/// Reports a backlog, which is many frames between send and receive, for each group of hops (connections of one name). A backlog must have
/// grown for some time. It is then reported until few frames wait, even if it no longer grows. The group's `course` says how the backlog
/// developed: where it began to grow, and its peak.
pub(super) fn detect_backlog(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    for (group_index, group) in context.ledger.output_groups() {
        let waited_ns = wait_of_oldest_frame_ns(context, group_index);
        // The number of frames is not enough: on a hop with many small frames, a backlog of a hundred clears within milliseconds.
        if group.backlog < BACKLOG_FRAMES || waited_ns < LATE_NS {
            continue;
        }
        let course = &group.course;
        // `rise` is the first growth that lasted three seconds. A backlog without one only goes up and down, which is no problem.
        let Some(rise) = course.rise else { continue };
        let added_frames = course.peak.saturating_sub(rise.from);
        let growth_ns = course.peak_at.since(rise.since);
        let longest_ns = course.longest_wait_ns.max(waited_ns);
        let requests = context.ledger.late_requests(group_index, context.now);
        let summary = format!(
            "up to {} waited on {}, grown by {} in {}; the oldest for {}; {} waited {} or more",
            plural(course.peak, "frame"),
            group.name,
            plural(added_frames, "frame"),
            duration(growth_ns),
            duration(longest_ns),
            plural(requests.counted(), "request"),
            duration(LATE_NS),
        );
        verdicts
            .add_verdict(Severity::critical_if(course.peak >= BACKLOG_CRITICAL_FRAMES), summary)
            .hop(&group.name)
            .since(Some(rise.since))
            .requests(&requests)
            .with_weight("backlog_frames", course.peak)
            .with("backlog_frames_before", rise.from)
            .with("grew_for_ns", growth_ns)
            .with("requests_late", requests.counted())
            .with("oldest_waiting_ns", longest_ns)
            .advice(advice::hop_advice(context.facts(), &context.attribution, &group.name));
    }
}

/// Reports frames received in bursts. A burst happens when the receiver's event loop was away from its poll: it then receives all queued
/// frames in one wakeup, which is the time between two waits in the poll. This is information only. Other detectors measure whether
/// tokens wait or are lost.
pub(super) fn detect_bursts(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    for (group_index, group) in context.ledger.output_groups() {
        let hops: Vec<&Hop> = context.ledger.hops_of_group(group_index).collect();
        let max_frames = u64::from(hops.iter().map(|hop| hop.counts.wakeup_frames_max).max().unwrap_or(0));
        // `max_frames` counts only wakeups that have ended. A receiver that is far behind may never end its first wakeup.
        let long_first_wakeups =
            hops.iter().filter(|hop| hop.frames_of_unended_first_wakeup() >= BURST_FRAMES).count() as u64;
        let has_bursts = max_frames >= u64::from(BURST_FRAMES);
        if !has_bursts && long_first_wakeups == 0 {
            continue;
        }
        let largest_burst = has_bursts.then_some(max_frames);
        let mut summary = describe_bursts(group, largest_burst);
        let away = largest_share_away_from_poll(context, group_index);
        if let Some(share) = away {
            summary += ": the receiver's event loop was away from its poll ";
            summary += &percent(share);
        }
        let ended_bursts = group.wakeups.count_above(u64::from(BURST_FRAMES) - 1);
        verdicts
            .add_verdict(Severity::Info, summary)
            .hop(&group.name)
            .with("wakeups_ended", group.wakeups.count())
            .with_known("frames_max", (max_frames > 0).then_some(max_frames))
            .weight(max_frames)
            .with_known("frames_p50", group.wakeups.quantile(0.5))
            .with_known("frames_p99", group.wakeups.quantile(0.99))
            .with_known("away_from_poll", away.map(round_share))
            .times(group.bursts)
            .occurrences(ended_bursts + long_first_wakeups);
    }
}

/// Describes the bursts on a group of hops. A burst is many frames received in one wakeup. `largest_burst` is the number of frames of the
/// largest one. `None` if no such wakeup has ended, because a receiver is still in its first wakeup.
fn describe_bursts(group: &HopGroup, largest_burst: Option<u64>) -> String {
    if let Some(frames) = largest_burst
        && let Some(usual_size) = describe_usual_frames_per_wakeup(&group.wakeups)
    {
        return format!(
            "up to {} of {} were received in one wakeup ({usual_size})",
            plural(frames, "frame"),
            group.name
        );
    }
    format!(
        "a receiver of {} has not waited for a frame since its first: its frames per wakeup are not known",
        group.name
    )
}

/// Describes the usual number of frames received in one wakeup of the event loop: `median 3, p99 40`. `None` if no wakeup has ended.
fn describe_usual_frames_per_wakeup(frames_per_wakeup: &Distribution) -> Option<String> {
    /// With fewer values, the 99th percentile is only the largest value.
    const MIN_WAKEUPS: u64 = 100;
    let median = count(frames_per_wakeup.quantile(0.5)?);
    let p99 = count(frames_per_wakeup.quantile(0.99)?);
    let ended = frames_per_wakeup.count();
    Some(if ended < MIN_WAKEUPS {
        format!("median {median} of {} that ended", plural(ended, "wakeup"))
    } else {
        format!("median {median}, p99 {p99}")
    })
}

/// Largest share of its time that a receiver of this group of hops spent outside the poll of its event loop. In the poll, it waits for
/// work. `None` if polls are not observed.
fn largest_share_away_from_poll(context: &DetectContext<'_>, group_index: usize) -> Option<f64> {
    let mut largest_share: Option<f64> = None;
    for hop in context.ledger.hops_of_group(group_index) {
        let thread = hop.receiving_thread().and_then(|id| context.ledger.thread(id));
        let Some(poll) = thread.and_then(|thread| thread.poll) else { continue };
        let share = 1.0 - poll.polled_ns as f64 / poll.interval_ns.max(1) as f64;
        largest_share = Some(largest_share.map_or(share, |largest| largest.max(share)));
    }
    largest_share
}
