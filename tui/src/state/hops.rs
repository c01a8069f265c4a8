//! Summaries of hops, in the order of the path.

use std::cmp::Reverse;

use trace::detect::attribution::{self, HopReceiver};
use trace::detect::thresholds::{BACKLOG_CRITICAL_FRAMES, GAP_CRITICAL_NS, GAP_WARNING_NS};
use trace::detect::{Finding, Severity};
use trace::ledger::{Hop, HopCounts, HopGroup, Ledger};
use trace::path::{self, Ends};
use trace::stats::{Distribution, Spread};
use trace::time_series::RecentTraffic;

use super::flags::Health;
use super::hop_ends::HopEnds;
use super::model::{HopMember, HopRates, HopSummary, KernelQueueBytes, QUEUE_WAIT_BOUNDS_NS};

/// Maximum number of reasons for undecoded frames shown per hop.
const MAX_REASONS: usize = 4;
/// Maximum number of hops listed under one line.
const MAX_MEMBERS: usize = 64;

/// Summaries of the hops, the connections between the engine's processes, in the order of the path. Hops with the same name have one
/// summary.
pub(crate) fn summarise_hops(ledger: &Ledger, findings: &[Finding], traffic: &RecentTraffic) -> Vec<HopSummary> {
    let mut summaries = Vec::new();
    for (index, group) in ledger.groups().iter().enumerate() {
        let members: Vec<&Hop> = ledger.hops_of_group(index).collect();
        // Renaming a hop can leave its old group without hops.
        if members.is_empty() {
            continue;
        }
        let mut summary = summarise_group(ledger, index, group, &members);
        summary.rates = rates_of_group(ledger, index, traffic);
        let by_findings = health_from_findings(findings, &group.name);
        // Findings keep their severity when they have ended, so the hop may be healthier than they say.
        let is_healthier_now = summary.health < by_findings.health;
        summary.has_recovered = is_healthier_now && by_findings.has_ended;
        summary.health = summary.health.max(by_findings.health);
        summaries.push(summary);
    }
    sort_in_path_order(&mut summaries, |summary| &summary.ends, |summary| summary.carries_requests);
    summaries
}

/// Health of a hop by its worst finding.
struct HealthByFindings {
    health: Health,
    /// Every finding of this severity is over.
    has_ended: bool,
}

/// Health of a hop by the worst findings about it, and whether all of those have ended. A finding that is over keeps its severity, as on
/// every other screen.
fn health_from_findings(findings: &[Finding], hop_name: &str) -> HealthByFindings {
    let is_problem_of_hop =
        |finding: &&Finding| finding.verdict.severity >= Severity::Warning && finding.verdict.concerns_hop(hop_name);
    let problems: Vec<&Finding> = findings.iter().filter(is_problem_of_hop).collect();
    let worst_severity = problems.iter().map(|problem| problem.verdict.severity).max();
    let mut worst_problems = problems.iter().filter(|problem| Some(problem.verdict.severity) == worst_severity);
    HealthByFindings {
        health: worst_severity.map_or(Health::Unknown, Health::from),
        has_ended: worst_problems.all(|problem| problem.ended_at().is_some()),
    }
}

/// Lists the hops that carry output, in the order of the path: the id, the sending and receiving role, and the receiver. A receiver is
/// named by its worker number or, without one, by its endpoint.
pub(crate) fn output_hop_ends(ledger: &Ledger) -> Vec<HopEnds> {
    let mut ends = Vec::new();
    for hop in ledger.hops().iter().filter(|hop| !hop.carries_requests) {
        let receiver = match hop.worker {
            Some(worker) => format!("worker {worker}"),
            None => hop.endpoint.to_string(),
        };
        ends.push(HopEnds { id: hop.id, ends: ledger.groups()[hop.group].ends.clone(), receiver });
    }
    // None of these hops carries requests.
    sort_in_path_order(&mut ends, |hop| &hop.ends, |_| false);
    ends
}

/// Sorts hops in the order of the path. Hops that carry requests lead to the scheduler, so they come first. The hops of the output follow,
/// from the scheduler on. `ends_of` and `carries_requests` read these from a hop of any type.
fn sort_in_path_order<T>(hops: &mut [T], ends_of: fn(&T) -> &Ends<Box<str>>, carries_requests: fn(&T) -> bool) {
    let outputs = hops.iter().filter(|hop| !carries_requests(hop));
    // Copied, because the hops cannot be read while they are moved.
    let output_ends: Vec<Ends<Box<str>>> = outputs.map(|hop| ends_of(hop).clone()).collect();
    hops.sort_by_key(|hop| {
        // `None` sorts first.
        if carries_requests(hop) {
            return None;
        }
        let hops_before_sender = path::max_hops_before_role(&output_ends, &ends_of(hop).from);
        Some(hops_before_sender)
    });
}

/// Summary of all hops with one name: the `members` of `group`, which has this index in the ledger.
fn summarise_group(ledger: &Ledger, group_index: usize, group: &HopGroup, members: &[&Hop]) -> HopSummary {
    let now = ledger.now();
    let observes_receives = members.iter().any(|hop| hop.capabilities().received);
    let oldest_wait_ns = members.iter().filter_map(|hop| hop.oldest_waiting()).min().map(|at| now.since(at));
    let frames = sum_of_counts(members, observed_frames);
    // 0 if no wakeup was observed.
    let wakeup_frames_max = members.iter().map(|hop| hop.counts.wakeup_frames_max).max().unwrap_or(0);
    let receives_end = ledger.group_receives_end(group_index);
    let busy_share = receiver_busy_share(ledger, members);
    // Once receives are not observed any more, it is unknown what waits now. Times of earlier waits stay known.
    let observes_queue = observes_receives && receives_end.is_none();
    HopSummary {
        name: group.name.clone(),
        group: group_index,
        carries_requests: group.carries_requests,
        observes_sends: members.iter().any(|hop| hop.capabilities().sent),
        busy_share,
        thread: HopReceiver::of_hops(ledger, members, busy_share, run_ns(ledger)).describe(),
        ends: group.ends.clone(),
        health: health_by_queue(group, observes_queue, oldest_wait_ns, frames),
        // The caller sets these two.
        has_recovered: false,
        rates: None,
        frames,
        chunks: sum_of_counts(members, |counts| counts.chunks),
        bytes: sum_of_counts(members, |counts| counts.bytes),
        undecoded: sum_of_counts(members, |counts| counts.undecoded),
        undecoded_reasons: most_frequent_undecoded_reasons(ledger, group_index),
        receives_end,
        backlog_frames: observes_queue.then_some(group.backlog),
        backlog_max_frames: observes_receives.then_some(group.backlog_max),
        oldest_wait_ns: if observes_queue { oldest_wait_ns } else { None },
        queue_wait: if observes_receives { Spread::of_distribution(&group.queue_wait) } else { None },
        queue_wait_histogram: if observes_receives { queue_wait_histogram(&group.queue_wait) } else { Vec::new() },
        send_wait: Spread::of_distribution(group.send_wait.whole()),
        relay_delay: Spread::of_distribution(&group.relay),
        processing_time: Spread::of_distribution(&group.processing),
        wakeup_frames_max: (wakeup_frames_max > 0).then_some(wakeup_frames_max.into()),
        kernel_queue: kernel_queue_bytes(ledger, group),
        inbox_max_frames: group.kernel.inbox_max,
        members: members.iter().take(MAX_MEMBERS).map(|hop| summarise_member(ledger, hop)).collect(),
    }
}

/// Sum of one of the counts over these hops.
fn sum_of_counts(members: &[&Hop], count_of: fn(&HopCounts) -> u64) -> u64 {
    members.iter().map(|hop| count_of(&hop.counts)).sum()
}

/// Bytes in the receivers' kernel queues: the current ones, by the newest sample, and the maximum. If the samples have ended, also when
/// that was. `None` if the queues were never read.
fn kernel_queue_bytes(ledger: &Ledger, group: &HopGroup) -> Option<KernelQueueBytes> {
    let queue = &group.kernel;
    let last_sample_at = queue.last_sample_at?;
    let is_recent = last_sample_at >= ledger.recent_window().from;
    Some(KernelQueueBytes {
        current: queue.bytes?,
        max: queue.bytes_max?,
        ended_at: (!is_recent).then_some(last_sample_at),
    })
}

/// Rates of a group, the hops with one name, in recent seconds. `None` if the group has no time series, if its frames are not observed any
/// more, or if the run has just begun.
pub(super) fn rates_of_group(ledger: &Ledger, group_index: usize, traffic: &RecentTraffic) -> Option<HopRates> {
    let sums = traffic.hops.get(group_index)?;
    let observes_sends = ledger.hops_of_group(group_index).any(|hop| hop.capabilities().sent);
    // Sent frames count if they are observed, otherwise received ones. The curve of the hop does the same.
    let (frames, observation_end) = if observes_sends {
        (sums.frames_sent, ledger.sends_end())
    } else {
        (sums.frames_received, ledger.group_receives_end(group_index))
    };
    if observation_end.is_some() {
        return None;
    }
    Some(HopRates {
        frames: traffic.per_second(frames)?,
        chunks: traffic.per_second(sums.chunks)?,
        bytes: traffic.per_second(sums.bytes)?,
    })
}

/// Frames that passed a hop, by the larger count. An end that is not observed has a count of 0.
fn observed_frames(counts: &HopCounts) -> u64 {
    counts.frames_sent.max(counts.frames_received)
}

/// Reasons why frames of the hop were not decoded, with the number of frames, the most frequent first.
fn most_frequent_undecoded_reasons(ledger: &Ledger, group_index: usize) -> Vec<(String, u64)> {
    let counts = ledger.undecoded_by_reason(group_index).into_iter();
    let mut reasons: Vec<(String, u64)> = counts.map(|(reason, frames)| (reason.to_owned(), frames)).collect();
    reasons.sort_by_key(|(_, frames)| Reverse(*frames));
    reasons.truncate(MAX_REASONS);
    reasons
}

/// Values of one of several hops with the same name.
fn summarise_member(ledger: &Ledger, hop: &Hop) -> HopMember {
    HopMember {
        worker: hop.worker,
        endpoint: hop.endpoint.to_string(),
        frames: observed_frames(&hop.counts),
        chunks: hop.counts.chunks,
        backlog_frames: hop.shows.received.then_some(hop.counts.backlog),
        busy_share: receiver_busy_share(ledger, &[hop]),
    }
}

/// Share of the time since the first event during which the receivers were busy.
fn receiver_busy_share(ledger: &Ledger, members: &[&Hop]) -> Option<f64> {
    attribution::mean_busy_share(ledger, members.iter().copied(), run_ns(ledger))
}

/// Time since the first event; 0 before it.
fn run_ns(ledger: &Ledger) -> u64 {
    ledger.started().map_or(0, |started| ledger.now().since(started))
}

/// Health by the oldest waiting frame, judged by the thresholds for first tokens. A large backlog alone is a warning. The health is unknown
/// without frames, or if what waits now is not observed.
fn health_by_queue(group: &HopGroup, observes_queue: bool, oldest_wait_ns: Option<u64>, frame_count: u64) -> Health {
    let wait_ns = oldest_wait_ns.unwrap_or(0);
    if wait_ns >= GAP_CRITICAL_NS {
        Health::Critical
    } else if wait_ns >= GAP_WARNING_NS || (observes_queue && group.backlog >= BACKLOG_CRITICAL_FRAMES) {
        Health::Warning
    } else if observes_queue && frame_count > 0 {
        Health::Good
    } else {
        Health::Unknown
    }
}

/// Number of frames in each class of queue waits. A class ends at one of [`QUEUE_WAIT_BOUNDS_NS`], and begins above the bound before. The
/// last class has the waits above all bounds.
fn queue_wait_histogram(waits: &Distribution) -> Vec<u64> {
    // Frames that are in none of the classes so far.
    let mut unclassified = waits.count();
    let mut frames = Vec::with_capacity(QUEUE_WAIT_BOUNDS_NS.len() + 1);
    for bound_ns in QUEUE_WAIT_BOUNDS_NS {
        // Limited, because counts near a bound are not exact, and no class may be negative.
        let above_bound = waits.count_above(bound_ns).min(unclassified);
        frames.push(unclassified - above_bound);
        unclassified = above_bound;
    }
    frames.push(unclassified);
    frames
}

#[cfg(test)]
mod tests {
    use trace::MonoNs;
    use trace::detect::Verdict;
    use trace::event::Capabilities;

    use super::*;
    use crate::state::tests::scene::{MS, Scene};

    #[test]
    fn hops_are_listed_in_path_order() {
        let capabilities = Capabilities::SENT;
        let scene = Scene::new(&[
            ("router->tokenizer", capabilities),
            ("detokenizer->router", capabilities),
            ("scheduler->detokenizer", capabilities),
        ]);
        let lines = summarise_hops(scene.analysis.ledger(), &[], &RecentTraffic::default());
        let from: Vec<&str> = lines.iter().map(|l| &*l.ends.from).collect();
        assert_eq!(from, ["scheduler", "detokenizer", "router"]);
    }

    #[test]
    fn a_waiting_frame_is_critical_and_unobserved_receives_are_unknown() {
        let mut scene = Scene::delivering();
        scene.send(0, &[("a", 1, 1)]);
        scene.receive(3 * MS, 0, 1);
        scene.send(5 * MS, &[("a", 1, 2)]);
        let at = |scene: &Scene| summarise_hops(scene.analysis.ledger(), &[], &RecentTraffic::default()).remove(0);
        assert_eq!((at(&scene).health, at(&scene).queue_wait_histogram), (Health::Good, vec![0, 0, 1, 0, 0, 0, 0, 0]));
        scene.tick(6_000 * MS);
        assert_eq!((at(&scene).health, at(&scene).backlog_frames), (Health::Critical, Some(1)));
        let verdict = Verdict { severity: Severity::Warning, hop: at(&scene).name, ..Verdict::default() };
        let moment = MonoNs(MS);
        let over = Finding { began: moment, last_at: moment, verdict, ..Finding::default() };
        scene.receive(6_000 * MS, 1, 2);
        assert_eq!(at(&scene).health, Health::Good);
        let health = summarise_hops(scene.analysis.ledger(), &[over], &RecentTraffic::default()).remove(0).health;
        assert_eq!(health, Health::Warning, "a finding that is over keeps its severity");
        let mut tapped = Scene::tapped();
        tapped.send(0, &[("a", 1, 1)]);
        assert_eq!((at(&tapped).health, at(&tapped).backlog_frames), (Health::Unknown, None));
    }
}
