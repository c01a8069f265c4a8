//! Known patterns of change.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use trace::detect::attribution::LegKind;
use trace::engine::{Mode, Waiter};
use trace::path::Ends;
use trace::words::{duration, percent};

use super::wait_shift::{CHANGED_NS, LegChange, LegShift, WaitShift};
use super::{ProblemOutcome, ProblemState};
use crate::report::{FindingLine, Report};

/// Share of its time on a CPU, or in work on frames, that makes a receiver the cause of its queue.
const CPU_BOUND_SHARE: f64 = 0.9;

/// A known pattern that matches the change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangePattern {
    /// Machine-readable kind: `mode`, `release`, `workers`, `processing`, `path`, `inflation`, `cpu-bound`.
    pub kind: String,
    /// Short title.
    pub title: String,
    /// Evidence and consequence.
    pub summary: String,
    /// Problems whose change it explains; empty if it only limits what can be compared.
    pub explains: Vec<String>,
}

/// Finds the causes of the problems that changed from run `a` to run `b`, and differences that limit what can be compared. `outcomes` says
/// which problems changed, and `wait_shift` how long a chunk spends on each part of the path in both runs.
pub(super) fn find_change_patterns(
    a: &Report,
    b: &Report,
    outcomes: &[ProblemOutcome],
    wait_shift: Option<&WaitShift>,
) -> Vec<ChangePattern> {
    // Without the waits of both runs, no part of the path can be compared.
    let legs = wait_shift.map_or(&[][..], |wait_shift| &wait_shift.legs);
    let mut patterns = find_causes(a, b, outcomes, legs);
    // A difference between the runs that explains no change is not worth a reader's time.
    patterns.retain(|cause| !cause.explains.is_empty());
    // These two limit what can be compared, whether they explain a change or not.
    patterns.extend(find_path_change(a, b));
    patterns.extend(find_token_inflation_change(a, b));
    patterns
}

/// Differences between the runs, each with the changed problems that it explains, if any. `legs` are the parts of the path: its hops, and
/// the processes between them.
fn find_causes(a: &Report, b: &Report, outcomes: &[ProblemOutcome], legs: &[LegShift]) -> Vec<ChangePattern> {
    let mut causes = Vec::new();
    causes.extend(find_output_mode_change(a, b, outcomes));
    causes.extend(find_queue_handling_change(a, b, outcomes));
    causes.extend(find_cpu_bound_receiver(a, b, outcomes));
    causes.extend(find_worker_change(a, b, outcomes, legs));
    // A receiver that only the second run has cannot be compared with an earlier one.
    causes.extend(find_processing_time_change(outcomes, legs).or_else(|| find_slow_new_receiver(b, outcomes, legs)));
    causes
}

impl ChangePattern {
    /// A pattern that explains no problem yet.
    fn new(kind: &str, title: impl Into<String>, summary: impl Into<String>) -> Self {
        Self { kind: kind.to_owned(), title: title.into(), summary: summary.into(), explains: Vec::new() }
    }

    /// The pattern as cause of these problems.
    fn explaining(mut self, problems: Vec<String>) -> Self {
        self.explains = problems;
        self
    }
}

/// Problems with waits, which a change of the queues explains.
const WAIT_PROBLEMS: [&str; 2] = ["first-token gap", "inter-token latency"];
/// Problems with queued chunks, which a change of their handling explains.
const QUEUED_CHUNK_PROBLEMS: [&str; 2] = ["lost tokens", "merged chunks"];

/// Names of the problems among `names` that changed.
fn changed_problems(outcomes: &[ProblemOutcome], names: &[&str]) -> Vec<String> {
    names_of_problems_in_state(outcomes, names, ProblemState::is_change)
}

/// Names of the problems about waits that changed in the same direction as a part of the path: worse if it takes longer, better if shorter.
fn names_of_changed_wait_problems(outcomes: &[ProblemOutcome], leg_change: LegChange) -> Vec<String> {
    names_of_problems_in_state(outcomes, &WAIT_PROBLEMS, |state| match leg_change {
        LegChange::Longer => state == ProblemState::Regressed,
        LegChange::Shorter => matches!(state, ProblemState::Fixed | ProblemState::Improved),
    })
}

/// Names of the problems among `problem_names` whose state fulfils the condition.
fn names_of_problems_in_state(
    outcomes: &[ProblemOutcome],
    problem_names: &[&str],
    has_state: impl Fn(ProblemState) -> bool,
) -> Vec<String> {
    let named = outcomes.iter().filter(|outcome| problem_names.contains(&outcome.name.as_str()));
    named.filter(|outcome| has_state(outcome.state)).map(|outcome| outcome.name.clone()).collect()
}

/// A change of the tokenizer's output mode; `None` if the mode stayed or is unknown.
fn find_output_mode_change(a: &Report, b: &Report, outcomes: &[ProblemOutcome]) -> Option<ChangePattern> {
    let before = a.source.mode?;
    let after = b.source.mode?;
    if before == after {
        return None;
    }
    let pattern = match after {
        Mode::Incremental => ChangePattern::new(
            "mode",
            "incremental output was enabled",
            "The tokenizer yielded all tokens so far and now yields only new ones: each chunk must be delivered separately.",
        ),
        Mode::Cumulative => ChangePattern::new(
            "mode",
            "incremental output was disabled",
            "The tokenizer yielded only new tokens and now yields all so far: a later chunk replaces an earlier one.",
        ),
    };
    // The mode can change how long chunks wait, and what becomes of several queued ones.
    let explained = changed_problems(outcomes, &[WAIT_PROBLEMS, QUEUED_CHUNK_PROBLEMS].concat());
    Some(pattern.explaining(explained))
}

/// A change of what the engine does with several chunks queued for one request, which depends on its release. `None` if that stayed the
/// same or is unknown.
fn find_queue_handling_change(a: &Report, b: &Report, outcomes: &[ProblemOutcome]) -> Option<ChangePattern> {
    // The waiter is the coroutine that takes a request's chunks from its queue, as this release implements it.
    let before = a.source.waiter?;
    let after = b.source.waiter?;
    if before == after {
        return None;
    }
    let title = format!("queue handling changed: {} to {}", release_of(a), release_of(b));
    let summary =
        format!("It {} before and {} after.", describe_queue_handling(before), describe_queue_handling(after));
    Some(ChangePattern::new("release", title, summary).explaining(changed_problems(outcomes, &QUEUED_CHUNK_PROBLEMS)))
}

/// Release of the run's engine, for a title.
fn release_of(report: &Report) -> &str {
    report.source.engine_version.as_deref().unwrap_or("of unknown release")
}

/// What the coroutine that waits for a request's chunks does with several of them, as the end of a sentence.
fn describe_queue_handling(waiter: Waiter) -> &'static str {
    match waiter {
        Waiter::KeepsLast => "keeps only the last of several queued chunks",
        Waiter::YieldsAll => "hands out every queued chunk",
        Waiter::Merges => "merges queued chunks",
    }
}

/// Hops, the steps of the path from one process to the next, that only one of the runs has; `None` without any.
fn find_path_change(a: &Report, b: &Report) -> Option<ChangePattern> {
    let removed = names_of_hops_only_in(a, b);
    let new = names_of_hops_only_in(b, a);
    let mut sentences = Vec::new();
    if !removed.is_empty() {
        sentences.push(format!("Removed hops: {removed}."));
    }
    if !new.is_empty() {
        sentences.push(format!("New hops: {new}."));
    }
    if sentences.is_empty() { None } else { Some(ChangePattern::new("path", "another path", sentences.join(" "))) }
}

/// Names of the hops that the other run does not have; empty without any.
fn names_of_hops_only_in(report: &Report, other_report: &Report) -> String {
    let names = report.hops.iter().map(|hop| hop.name.as_str());
    let only_here: Vec<&str> = names.filter(|name| other_report.hops.iter().all(|hop| hop.name != *name)).collect();
    only_here.join(", ")
}

/// Hops whose wait changed because another number of workers shares the load. Workers are the processes that receive or send on a hop in
/// parallel.
fn find_worker_change(a: &Report, b: &Report, outcomes: &[ProblemOutcome], legs: &[LegShift]) -> Vec<ChangePattern> {
    let hops = a.hops.iter().map(|hop| hop.name.as_str());
    hops.filter_map(|hop| find_worker_change_of_hop(hop, a, b, outcomes, legs)).collect()
}

/// Finds a change of the number of workers on the hop with this name. `None` if it does not explain how the wait on the hop changed, or if
/// only one run has the hop.
fn find_worker_change_of_hop(
    hop_name: &str,
    a: &Report,
    b: &Report,
    outcomes: &[ProblemOutcome],
    legs: &[LegShift],
) -> Option<ChangePattern> {
    let before = count_workers(a, hop_name)?;
    let after = count_workers(b, hop_name)?;
    let expected = expected_wait_change(before, after)?;
    let wait = legs.iter().find(|leg| leg.kind == LegKind::Wait && leg.name == hop_name)?;
    // A wait that stayed, or changed in the other direction, has another cause.
    if wait.leg_change() != Some(expected) {
        return None;
    }
    let title = format!("{before} workers became {after} on {hop_name}");
    let summary =
        format!("{hop_name} had {before} receivers or senders and has {after}: the load is distributed differently.");
    Some(ChangePattern::new("workers", title, summary).explaining(names_of_changed_wait_problems(outcomes, expected)))
}

/// How a wait changes with the number of workers: more make it shorter, fewer longer. `None` if the number stayed.
fn expected_wait_change(workers_before: usize, workers_after: usize) -> Option<LegChange> {
    match workers_after.cmp(&workers_before) {
        Ordering::Greater => Some(LegChange::Shorter),
        Ordering::Less => Some(LegChange::Longer),
        Ordering::Equal => None,
    }
}

/// Finds the cause of the wait that changed most. The receiver of the hop is the cause if its own time per chunk changed in the same
/// direction. `None` if it did not, or if no wait changed.
fn find_processing_time_change(outcomes: &[ProblemOutcome], legs: &[LegShift]) -> Option<ChangePattern> {
    let wait = most_changed_wait(legs)?;
    let processing = find_processing_leg_of_receiver(&wait.name, legs)?;
    let change = processing.leg_change()?;
    // A wait that changed in the other direction has another cause.
    if wait.leg_change() != Some(change) {
        return None;
    }
    let before = duration(processing.a_ns?);
    let after = duration(processing.b_ns?);
    let title = format!("the {} needs {after} a chunk instead of {before}", processing.name);
    let summary = format!("Chunks wait on {} for it.", wait.name);
    let explained = names_of_changed_wait_problems(outcomes, change);
    Some(ChangePattern::new("processing", title, summary).explaining(explained))
}

/// The wait that changed by the longest time; `None` if none changed.
fn most_changed_wait(legs: &[LegShift]) -> Option<&LegShift> {
    let changed_waits = legs.iter().filter(|leg| leg.kind == LegKind::Wait && leg.leg_change().is_some());
    // A wait that changed is known in both runs, so the 0 is never used.
    changed_waits.max_by_key(|leg| leg.a_ns.unwrap_or(0).abs_diff(leg.b_ns.unwrap_or(0)))
}

/// The time that a chunk spends inside the receiver of the hop with this name; `None` if it was not observed.
fn find_processing_leg_of_receiver<'l>(hop_name: &str, legs: &'l [LegShift]) -> Option<&'l LegShift> {
    // A hop is named `sender->receiver`, and the leg inside a process has the name of that process.
    let receiver = Ends::from(hop_name).to;
    legs.iter().find(|leg| leg.kind == LegKind::Inside && leg.name == receiver)
}

/// Finds a busy receiver that only the second run has, and for which chunks wait long. Looks at the new hop with the longest wait; `None`
/// if its receiver is not the cause.
fn find_slow_new_receiver(b: &Report, outcomes: &[ProblemOutcome], legs: &[LegShift]) -> Option<ChangePattern> {
    let wait = longest_new_wait(legs)?;
    let busy_share = b.hops.iter().find(|hop| hop.name == wait.name)?.busy?;
    let wait_ns = wait.b_ns?;
    // A short wait is no problem, and a receiver that is seldom busy is not its cause.
    if wait_ns < CHANGED_NS || busy_share < CPU_BOUND_SHARE {
        return None;
    }
    let processing = find_processing_leg_of_receiver(&wait.name, legs).filter(|leg| is_new(leg))?;
    let time = duration(processing.b_ns?);
    let busy = percent(busy_share);
    let title = format!("the {}, new on the path, needs {time} a chunk and is busy {busy}", processing.name);
    let summary = format!("Chunks wait on {} for it.", wait.name);
    let explained = names_of_changed_wait_problems(outcomes, LegChange::Longer);
    Some(ChangePattern::new("processing", title, summary).explaining(explained))
}

/// The longest wait on a hop that only the second run has; `None` without such a hop.
fn longest_new_wait(legs: &[LegShift]) -> Option<&LegShift> {
    legs.iter().filter(|leg| leg.kind == LegKind::Wait && is_new(leg)).max_by_key(|leg| leg.b_ns)
}

/// Whether only the second run has the leg, so that the first has no time of it.
fn is_new(leg: &LegShift) -> bool {
    leg.a_ns.is_none()
}

/// Number of processes that receive or send on the hop with this name in parallel; `None` without the hop.
fn count_workers(report: &Report, hop_name: &str) -> Option<usize> {
    let hop = report.hops.iter().find(|hop| hop.name == hop_name)?;
    // Workers are listed only if there are several.
    Some(hop.workers.as_ref().map_or(1, Vec::len))
}

/// The first finding of this kind; `None` if the run has none.
fn first_finding_of_kind<'a>(report: &'a Report, kind: &str) -> Option<&'a FindingLine> {
    report.findings.iter().find(|finding| finding.kind == kind)
}

/// Token counts that are inflated in one run only. `None` if they are in both runs or in neither. A client inflates its count if it takes
/// all token ids so far for new ones.
fn find_token_inflation_change(a: &Report, b: &Report) -> Option<ChangePattern> {
    match (first_finding_of_kind(a, "inflation"), first_finding_of_kind(b, "inflation")) {
        (None, Some(found)) => {
            Some(ChangePattern::new("inflation", "token counts became inflated", found.summary.clone()))
        }
        (Some(found), None) => Some(ChangePattern::new(
            "inflation",
            "token counts are no longer inflated",
            format!("Rates that clients counted before cannot be compared with those after. Before: {}", found.summary),
        )),
        (Some(_), Some(_)) | (None, None) => None,
    }
}

/// The receiving thread with the highest CPU share.
struct BusiestReceiver<'r> {
    share: f64,
    role: &'r str,
}

impl<'r> BusiestReceiver<'r> {
    /// The receiver with the largest share on a CPU; `None` if none was sampled.
    fn of_report(report: &'r Report) -> Option<Self> {
        let receiving_threads = report.cpu.iter().flatten().filter(|thread| thread.receives);
        let shares = receiving_threads.filter_map(|thread| Some(Self { share: thread.on_cpu?, role: &thread.role }));
        shares.max_by(|left, right| left.share.total_cmp(&right.share))
    }
}

/// A receiver that is CPU-bound in the second run only; `None` if there is none, or threads were not sampled.
fn find_cpu_bound_receiver(a: &Report, b: &Report, outcomes: &[ProblemOutcome]) -> Option<ChangePattern> {
    let before = BusiestReceiver::of_report(a)?;
    let after = BusiestReceiver::of_report(b)?;
    // One that was CPU-bound before explains no change.
    let became_cpu_bound = before.share < CPU_BOUND_SHARE && after.share >= CPU_BOUND_SHARE;
    if !became_cpu_bound {
        return None;
    }
    let summary = format!(
        "It was on CPU {} of the time and is now {}: it cannot receive frames faster.",
        percent(before.share),
        percent(after.share)
    );
    let explained = names_of_changed_wait_problems(outcomes, LegChange::Longer);
    let title = format!("the {} became CPU-bound", after.role);
    Some(ChangePattern::new("cpu-bound", title, summary).explaining(explained))
}
