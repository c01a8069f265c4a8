//! The threads that keep frames waiting now. A verdict on a consumer needs queued frames and covers the wait of the oldest one. A busy
//! thread that keeps up is not a problem.

use super::thresholds::{
    BACKLOG_CRITICAL_FRAMES, GAP_CRITICAL_NS, GAP_WARNING_NS, LATE_NS, STARVED_SHARE, THROTTLED_SHARE,
};
use super::{DetectContext, Severity, Verdict, Verdicts, advice};
use crate::clock::MonoNs;
use crate::event::AwayState;
use crate::id::ThreadId;
use crate::ledger::{AwayTimes, Hop, HopGroup, Thread, TimeUse};
use crate::words::{duration, percent, plural};

/// Longest time that a verdict looks back.
const MAX_LOOKBACK_NS: u64 = 10_000_000_000;

/// States in which a thread is not allowed to run.
pub(super) const SUSPENDED: [AwayState; 3] = [AwayState::Stopped, AwayState::Traced, AwayState::Frozen];

/// A thread that keeps frames waiting.
pub(super) struct LateConsumer<'a> {
    pub(super) group: &'a HopGroup,
    pub(super) thread: &'a Thread,
    /// Number of frames waiting for it.
    pub(super) frames: u64,
    /// Wait of the oldest of them.
    pub(super) waited_ns: u64,
    /// Start of the judged interval.
    pub(super) from: MonoNs,
    /// Whether it has received a frame since then.
    pub(super) has_received: bool,
    /// Its time use since then.
    pub(super) spent: TimeUse,
    /// Time since then by reason for not running, where checked.
    pub(super) away: AwayTimes,
}

/// Frames that wait on one hop for too long.
struct LateHop {
    /// Thread that receives from the hop.
    receiver: ThreadId,
    /// Number of frames that wait there.
    frames: u64,
    /// Wait of the oldest of them.
    waited_ns: u64,
    /// Start of the judged interval.
    from: MonoNs,
    /// Whether a frame was received from the hop since then.
    has_received: bool,
}

impl LateHop {
    /// Judges the frames that wait on a hop. `None` if no frame has waited for `min_wait_ns`, or if the receiving thread is unknown.
    fn from_hop_if_late(context: &DetectContext<'_>, hop: &Hop, min_wait_ns: u64) -> Option<Self> {
        let oldest_sent_at = hop.oldest_waiting()?;
        // If no receive was observed, the thread is known only if the role of the receiver has one process.
        let receiver = hop.receiving_thread().or_else(|| context.ledger.only_receiver(hop))?;
        let waited_ns = context.now.since(oldest_sent_at);
        if waited_ns < min_wait_ns {
            return None;
        }
        // The judged interval begins when the oldest frame was sent, but not before `earliest_judged`, because samples of threads are
        // kept only for a little longer than `MAX_LOOKBACK_NS`.
        let earliest_judged = MonoNs(context.now.0.saturating_sub(MAX_LOOKBACK_NS));
        let from = oldest_sent_at.max(earliest_judged);
        let has_received = hop.last_received_at.is_some_and(|at| at > from);
        Some(Self { receiver, frames: hop.counts.backlog, waited_ns, from, has_received })
    }
}

impl<'a> LateConsumer<'a> {
    /// Creates the consumer of a hop of this group. `None` if its thread is not sampled, because nothing then shows what the thread did.
    fn of_hop(context: &DetectContext<'a>, group: &'a HopGroup, hop: &LateHop) -> Option<Self> {
        let thread = context.ledger.thread(hop.receiver)?;
        Some(Self {
            group,
            thread,
            frames: hop.frames,
            waited_ns: hop.waited_ns,
            from: hop.from,
            has_received: hop.has_received,
            spent: thread.use_between(hop.from, context.now)?,
            away: thread.away_between(hop.from, context.now),
        })
    }

    /// Adds another hop from which the consumer receives: several senders into one socket have one consumer.
    fn add_hop(&mut self, hop: &LateHop) {
        self.frames += hop.frames;
        self.has_received |= hop.has_received;
    }
}

impl LateConsumer<'_> {
    /// Whether it has received nothing and has computed for longer than it waited for a CPU: with a CPU of its own, it would have
    /// kept the frames waiting, too.
    pub(super) fn is_held_by_own_work(&self) -> bool {
        !self.has_received && self.spent.starved_ns().is_none_or(|starved_ns| starved_ns < self.spent.on_ns)
    }

    /// Mean number of CPUs that all threads of the consumer's process used since `from`.
    pub(super) fn mean_cpus_of_process(&self, context: &DetectContext<'_>) -> f64 {
        let process_threads = context.ledger.threads().iter().filter(|thread| thread.id.pid == self.thread.id.pid);
        let uses = process_threads.filter_map(|thread| thread.use_between(self.from, context.now));
        uses.map(|spent| spent.share(spent.on_ns)).sum()
    }

    /// Names the thread at the start of a summary: `the tokenizer thread (4711/4711)`.
    pub(super) fn describe_thread(&self) -> String {
        let id = self.thread.id;
        format!("the {} thread ({}/{})", self.thread.role, id.pid, id.tid)
    }

    /// Describes what waited meanwhile: `while 850 frames waited on scheduler->tokenizer, the oldest for 24 s`.
    pub(super) fn describe_waiting_frames(&self) -> String {
        format!(
            "while {} waited on {}, the oldest for {}",
            plural(self.frames, "frame"),
            self.group.name,
            duration(self.waited_ns),
        )
    }

    /// Adds a verdict with the evidence common to all detectors of consumers, the threads that receive frames. Shares are those of the
    /// judged interval, which begins when the oldest waiting frame was sent, but at most ten seconds ago.
    pub(super) fn add_verdict<'v>(
        &self,
        context: &DetectContext<'_>,
        verdicts: &'v mut Verdicts,
        summary: String,
    ) -> &'v mut Verdict {
        let severity =
            Severity::critical_if(self.frames >= BACKLOG_CRITICAL_FRAMES || self.waited_ns >= GAP_CRITICAL_NS);
        let spent = &self.spent;
        let id = self.thread.id;
        let verdict = verdicts
            .add_verdict(severity, summary)
            .hop(&self.group.name)
            .since(Some(self.from))
            .with("role", &*self.thread.role)
            .with("pid", id.pid)
            .with("tid", id.tid)
            .with("interval_ns", spent.interval_ns)
            .with("on_cpu", round_share(spent.share(spent.on_ns)))
            .with("waiting_frames", self.frames)
            .with_weight("oldest_waiting_ns", self.waited_ns)
            .with_known("run_wait", known_share(spent, spent.starved_ns()))
            .with_known("throttled", known_share(spent, spent.throttled_ns()))
            .with_known("blocked", known_share(spent, spent.blocked_ns()))
            .with_known("kernel_bytes_max", self.group.kernel.max_bytes_between(self.from, context.now));
        self.add_shares_of_away_states(verdict);
        verdict
    }

    /// Adds the share of each state in which the thread was off the CPU, if it was in that state.
    fn add_shares_of_away_states(&self, verdict: &mut Verdict) {
        for &state in AwayState::ALL {
            let share = round_share(self.spent.share(self.away.time_in(state)));
            // The evidence `blocked` is another number: all time off the CPU without waiting for one.
            if share > 0.0 && state != AwayState::Blocked {
                verdict.with(state.as_str(), share);
            }
        }
    }
}

/// Finds the consumers that keep frames waiting too long. A consumer is a thread that receives from a hop. A consumer of several groups of
/// hops is listed once for each group.
pub(super) fn late_consumers<'a>(context: &DetectContext<'a>) -> Vec<LateConsumer<'a>> {
    let ledger = context.ledger;
    let mut late: Vec<LateConsumer<'a>> = Vec::new();
    for (group_index, group) in ledger.groups().iter().enumerate() {
        // A request may wait for a whole step of a busy scheduler, so requests are late only after a longer time than output.
        let late_ns = if group.carries_requests { GAP_WARNING_NS } else { LATE_NS };
        // The late consumers of this group begin at this index of the list.
        let group_start = late.len();
        for hop in ledger.hops_of_group(group_index).filter(|hop| hop.capabilities().received) {
            let Some(late_hop) = LateHop::from_hop_if_late(context, hop, late_ns) else { continue };
            let known = late[group_start..].iter_mut().find(|known| known.thread.id == late_hop.receiver);
            match known {
                Some(known) => known.add_hop(&late_hop),
                // `of_hop` returns `None` if the thread is not sampled.
                None => late.extend(LateConsumer::of_hop(context, group, &late_hop)),
            }
        }
    }
    late
}

/// A late consumer with the share of its time that a detector judges it by.
pub(super) struct JudgedConsumer<'a> {
    pub(super) consumer: LateConsumer<'a>,
    pub(super) share: f64,
}

/// Finds in each group of hops (connections of one name) the consumer for which a frame has waited longest. Only consumers for which
/// `judged_share` returns at least `min_share` count.
pub(super) fn worst_consumer_of_each_group<'a>(
    context: &DetectContext<'a>,
    min_share: f64,
    judged_share: impl Fn(&LateConsumer<'_>) -> Option<f64>,
) -> Vec<JudgedConsumer<'a>> {
    let mut worst: Vec<JudgedConsumer<'a>> = Vec::new();
    for consumer in late_consumers(context) {
        let Some(share) = judged_share(&consumer) else { continue };
        if share < min_share {
            continue;
        }
        let worst_of_group = worst.iter_mut().find(|known| known.consumer.group.name == consumer.group.name);
        match worst_of_group {
            None => worst.push(JudgedConsumer { consumer, share }),
            Some(known) => {
                if consumer.waited_ns > known.consumer.waited_ns {
                    *known = JudgedConsumer { consumer, share };
                }
            }
        }
    }
    worst
}

/// Reports the worst consumer of each group of hops that spends at least `min_share` of its time in a state. `share_of_state` computes that
/// share, and `state_description` names the state: `was waiting for a CPU`.
fn report_waiting_consumers(
    context: &DetectContext<'_>,
    verdicts: &mut Verdicts,
    min_share: f64,
    share_of_state: impl Fn(&LateConsumer<'_>) -> Option<f64>,
    state_description: &str,
    advice: &str,
) {
    for JudgedConsumer { consumer, share } in worst_consumer_of_each_group(context, min_share, share_of_state) {
        let spent = &consumer.spent;
        let summary = format!(
            "{} {state_description} {} of the time {} ({} running; {})",
            consumer.describe_thread(),
            percent(share),
            consumer.describe_waiting_frames(),
            percent(spent.share(spent.on_ns)),
            describe_off_cpu_shares(spent),
        );
        consumer.add_verdict(context, verdicts, summary).advice(advice);
    }
}

/// Rounds a share for the evidence: samples justify no more than three digits.
pub(super) fn round_share(share: f64) -> f64 {
    (share * 1_000.0).round() / 1_000.0
}

/// Rounded share of a part of a thread's time; `None` if the part is not observed.
fn known_share(spent: &TimeUse, part_ns: Option<u64>) -> Option<f64> {
    part_ns.map(|ns| round_share(spent.share(ns)))
}

/// Describes the shares of the time in which a thread did not run, as far as they are known: `12 % waiting for a CPU, 85 % asleep`.
pub(super) fn describe_off_cpu_shares(spent: &TimeUse) -> String {
    let mut parts = Vec::new();
    for (ns, activity) in [
        (spent.starved_ns(), "waiting for a CPU"),
        (spent.throttled_ns(), "throttled by its quota"),
        (spent.blocked_ns(), "asleep"),
    ] {
        if let Some(ns) = ns {
            parts.push(format!("{} {activity}", percent(spent.share(ns))));
        }
    }
    parts.join(", ")
}

/// Reports runnable consumers that get no CPU because other threads have it.
pub(super) fn detect_starved_consumer(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    report_waiting_consumers(context, verdicts, STARVED_SHARE, starved_share, "was waiting for a CPU", advice::STARVED);
}

/// Share of the time in which the consumer waited for a CPU; `None` if that is not sampled, or if something else explains its lateness.
fn starved_share(late: &LateConsumer<'_>) -> Option<f64> {
    let starved_ns = late.spent.starved_ns()?;
    // A thread that was mostly stopped or throttled does not lack a CPU, and another verdict names its cause. Its time waiting for a CPU
    // may be a throttled period in progress, which the kernel counts only when it ends.
    let suspended_ns = late.away.time_in_any(&SUSPENDED).max(late.spent.throttled_ns().unwrap_or(0));
    let was_mostly_suspended = starved_ns <= suspended_ns;
    // A thread with too much work of its own would have kept the frames waiting even with a CPU of its own.
    if was_mostly_suspended || late.is_held_by_own_work() {
        return None;
    }
    Some(late.spent.share(starved_ns))
}

/// Share of the time in which its CPU quota held the consumer back; `None` if that is not observed.
fn throttled_share(late: &LateConsumer<'_>) -> Option<f64> {
    Some(late.spent.share(late.spent.throttled_ns()?))
}

/// Reports consumers that cannot run because their container's CPU quota is used up.
pub(super) fn detect_throttled_consumer(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let state = "was throttled by its CPU limit";
    report_waiting_consumers(context, verdicts, THROTTLED_SHARE, throttled_share, state, advice::THROTTLED);
}
