//! The threads that keep frames waiting now. A verdict on a consumer needs queued frames and covers the wait of the oldest one. A busy
//! thread that keeps up is not a problem.

use super::thresholds::{BACKLOG_CRITICAL_FRAMES, GAP_CRITICAL_NS, LATE_NS, STARVED_SHARE, THROTTLED_SHARE};
use super::{DetectContext, Severity, Verdict, Verdicts, advice};
use crate::clock::MonoNs;
use crate::event::AwayState;
use crate::ledger::{AwayTimes, Group, Thread, TimeUse};
use crate::words::{duration, percent, plural};

/// Longest time that a verdict looks back.
const FURTHEST_NS: u64 = 10_000_000_000;

/// States in which a thread is not allowed to run.
pub(super) const SUSPENDED: [AwayState; 3] = [AwayState::Stopped, AwayState::Traced, AwayState::Frozen];

/// A thread that keeps frames waiting.
pub(super) struct Late<'a> {
    pub(super) group: &'a Group,
    pub(super) thread: &'a Thread,
    /// Number of frames waiting for it.
    pub(super) frames: u64,
    /// Wait of the oldest of them.
    pub(super) waited_ns: u64,
    /// Start of the judged interval.
    pub(super) from: MonoNs,
    /// Its time use since then.
    pub(super) spent: TimeUse,
    /// Time since then by reason for not running, where checked.
    pub(super) away: AwayTimes,
}

impl Late<'_> {
    /// CPU use of its whole process since then, in CPUs.
    pub(super) fn process_cpus(&self, context: &DetectContext<'_>) -> f64 {
        let of_process = context.ledger.threads().iter().filter(|t| t.id.pid == self.thread.id.pid);
        of_process.filter_map(|t| t.between(self.from, context.now)).map(|spent| spent.share(spent.on_ns)).sum()
    }

    /// Start of every summary: `tokenizer (4711/4711) `.
    pub(super) fn describe_thread(&self) -> String {
        let id = self.thread.id;
        format!("the {} thread ({}/{})", self.thread.role, id.pid, id.tid)
    }

    /// `while 850 frames wait on scheduler->tokenizer, the oldest for 24 s`
    pub(super) fn meanwhile(&self) -> String {
        format!(
            "while {} wait on {}, the oldest for {}",
            plural(self.frames, "frame"),
            self.group.name,
            duration(self.waited_ns),
        )
    }

    /// Adds a verdict with the evidence common to all consumer detectors.
    pub(super) fn report<'v>(
        &self,
        context: &DetectContext<'_>,
        out: &'v mut Verdicts,
        summary: String,
    ) -> &'v mut Verdict {
        let severity =
            Severity::critical_if(self.frames >= BACKLOG_CRITICAL_FRAMES || self.waited_ns >= GAP_CRITICAL_NS);
        let (spent, id) = (&self.spent, self.thread.id);
        let share = |ns: Option<u64>| ns.map(|ns| rounded(spent.share(ns)));
        let verdict = out
            .add(severity, summary)
            .hop(&self.group.name)
            .since(Some(self.from))
            .with("role", &*self.thread.role)
            .with("pid", id.pid)
            .with("tid", id.tid)
            .with("interval_ns", spent.interval_ns)
            .with("on_cpu", rounded(spent.share(spent.on_ns)))
            .with("waiting_frames", self.frames)
            .weighed("oldest_waiting_ns", self.waited_ns)
            .with_known("run_wait", share(spent.starved_ns()))
            .with_known("throttled", share(spent.throttled_ns()))
            .with_known("blocked", share(spent.blocked_ns()))
            .with_known("kernel_bytes_max", self.group.kernel.max_between(self.from, context.now));
        for &state in AwayState::ALL {
            let share = rounded(spent.share(self.away.of(state)));
            if share > 0.0 && state != AwayState::Blocked {
                verdict.with(state.as_str(), share);
            }
        }
        verdict
    }
}

/// The slowest consumer of each line that keeps frames waiting too long.
pub(super) fn late<'a>(context: &DetectContext<'a>) -> Vec<Late<'a>> {
    let ledger = context.ledger;
    let mut late: Vec<Late<'a>> = Vec::new();
    for (place, group) in ledger.groups().iter().enumerate() {
        let first = late.len();
        for hop in ledger.members(place) {
            let receiving_thread = hop.receiving_thread().or_else(|| ledger.only_receiver(hop));
            let (Some(oldest), Some(by)) = (hop.oldest_waiting(), receiving_thread) else {
                continue;
            };
            let waited_ns = context.now.since(oldest);
            if waited_ns < LATE_NS {
                continue;
            }
            // Several senders into one socket have one consumer.
            if let Some(known) = late[first..].iter_mut().find(|l| l.thread.id == by) {
                known.frames += hop.counts.backlog;
                continue;
            }
            let from = MonoNs(oldest.0.max(context.now.0.saturating_sub(FURTHEST_NS)));
            let Some(thread) = ledger.thread(by) else { continue };
            let Some(spent) = thread.between(from, context.now) else {
                continue;
            };
            late.push(Late {
                group,
                thread,
                frames: hop.counts.backlog,
                waited_ns,
                from,
                spent,
                away: thread.away(from, context.now),
            });
        }
    }
    late
}

/// The slowest late consumer of each line whose `share` is at least `min`, with its share.
pub(super) fn worst_of_each_line<'a>(
    context: &DetectContext<'a>,
    min: f64,
    share: impl Fn(&Late<'_>) -> Option<f64>,
) -> Vec<(Late<'a>, f64)> {
    let mut worst: Vec<(Late<'a>, f64)> = Vec::new();
    for one in late(context) {
        let Some(share) = share(&one).filter(|s| *s >= min) else {
            continue;
        };
        match worst.iter_mut().find(|(w, _)| w.group.name == one.group.name) {
            Some(known) if known.0.waited_ns < one.waited_ns => *known = (one, share),
            Some(_) => {}
            None => worst.push((one, share)),
        }
    }
    worst
}

/// Reports the worst consumer of each line that spends at least `min` of its time as `state` says.
fn report_waits(
    context: &DetectContext<'_>,
    out: &mut Verdicts,
    min: f64,
    share: impl Fn(&Late<'_>) -> Option<f64>,
    (state, advice): (&str, &str),
) {
    for (one, share) in worst_of_each_line(context, min, share) {
        let summary = format!(
            "{} {state} {} of the time {} ({} running; {})",
            one.describe_thread(),
            percent(share),
            one.meanwhile(),
            percent(one.spent.share(one.spent.on_ns)),
            rest(&one.spent),
        );
        one.report(context, out, summary).advice(advice);
    }
}

/// Rounds a share for the evidence: samples justify no more than three digits.
pub(super) fn rounded(share: f64) -> f64 {
    (share * 1_000.0).round() / 1_000.0
}

/// Describes the remaining known shares: `12 % waiting for a CPU, 85 % asleep`.
pub(super) fn rest(spent: &TimeUse) -> String {
    let mut parts = Vec::new();
    for (ns, what) in [
        (spent.starved_ns(), "waiting for a CPU"),
        (spent.throttled_ns(), "throttled by its quota"),
        (spent.blocked_ns(), "asleep"),
    ] {
        if let Some(ns) = ns {
            parts.push(format!("{} {what}", percent(spent.share(ns))));
        }
    }
    parts.join(", ")
}

/// A runnable consumer that gets no CPU because other threads have it.
pub(super) fn starved(context: &DetectContext<'_>, out: &mut Verdicts) {
    // A stopped or mostly throttled thread does not lack a CPU: another verdict names its cause. The kernel counts a throttled period
    // when it ends, so a period in progress looks like waiting for a CPU.
    let starved = |one: &Late<'_>| {
        let suspended = one.away.sum(&SUSPENDED).max(one.spent.throttled_ns().unwrap_or(0));
        one.spent.starved_ns().filter(|ns| *ns > suspended).map(|ns| one.spent.share(ns))
    };
    report_waits(context, out, STARVED_SHARE, starved, ("waits for a CPU", advice::STARVED));
}

/// A consumer that cannot run because its container's CPU quota is used up.
pub(super) fn throttled(context: &DetectContext<'_>, out: &mut Verdicts) {
    let throttled = |one: &Late<'_>| one.spent.throttled_ns().map(|ns| one.spent.share(ns));
    report_waits(context, out, THROTTLED_SHARE, throttled, ("is throttled by its CPU limit", advice::THROTTLED));
}
