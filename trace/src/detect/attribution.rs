//! Attribution of the time of chunks and first tokens between scheduler and tokenizer: waiting on hops, and inside the processes between
//! them. Banner, findings, report, screen and metrics share this computation.

mod receivers;

pub(super) use receivers::count_receivers;
pub use receivers::mean_busy_share;
use receivers::{hop_of_slowest_receiver, hops_of_receiver, name_receiver, share_of};
use serde::{Deserialize, Serialize};

use super::thresholds::{CPU_BOUND_SHARE, STARVED_SHARE, THROTTLED_SHARE};
use crate::clock::MonoNs;
use crate::event::AwayState;
use crate::id::HopId;
use crate::ledger::{
    AwayTimes, GapPart, GapPlace, Hop, HopGroup, Ledger, ProcessingStage, Thread, TimeUse, parts_of_first_token_gap,
};
use crate::path::{self, Ends};
use crate::stats::{Distribution, DurationSum, LONG_CLASSES, LongDurations, WindowedSum};
use crate::words::{names, percent};

/// Minimum share of the total time that makes a leg the bottleneck.
pub(super) const BOTTLENECK_SHARE: f64 = 0.5;
/// Minimum total length of a thread's samples to derive its state from them.
const MIN_SAMPLED_NS: u64 = 200_000_000;

/// Kind of time a chunk spends on a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LegKind {
    /// Waiting on a hop: received minus sent.
    Wait,
    /// Inside a forwarding process: sent on minus received.
    Inside,
    /// Both together, if receives are not observed: sent on minus sent to the process, of each request's first chunk.
    WaitAndInside,
}

names! {
    LegKind { Wait = "wait", Inside = "inside", WaitAndInside = "wait-and-inside" }
}

impl LegKind {
    /// Describes where on the path time is spent. `name` is the name of the hop or the role of the process.
    pub fn describe(self, name: &str) -> String {
        match self {
            Self::Wait => format!("waiting on {name}"),
            Self::Inside => format!("inside the {name}"),
            Self::WaitAndInside => format!("before and inside the {name}"),
        }
    }
}

/// State of the thread that a leg waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadState {
    /// On a CPU nearly all the time while frames wait: its own work is the limit.
    CpuBound,
    /// Waiting for a CPU.
    Starved,
    /// Held back by the CPU quota of its cgroup.
    Throttled,
    /// Processing a frame nearly all the time; its CPU time is not sampled.
    Busy,
    /// Stopped by a signal or a debugger.
    Stopped,
    /// Its cgroup is frozen.
    Frozen,
    /// Blocked in a system call other than a poll.
    Blocked,
    /// Asleep in its poll, or in a system call that cannot be read.
    Asleep,
    /// Neither running nor waiting for a CPU for most of that time; the reason is not observed.
    Waiting,
    /// Running for a part of that time, and in no other state for long.
    PartlyRunning,
    /// Not observed: its CPU time is not sampled.
    Unknown,
}

names! {
    ThreadState {
        CpuBound = "CPU-bound",
        Starved = "waiting for a CPU",
        Throttled = "throttled",
        Busy = "busy",
        Stopped = "stopped",
        Frozen = "frozen",
        Blocked = "blocked",
        Asleep = "asleep",
        Waiting = "not running",
        PartlyRunning = "partly running",
        Unknown = "not sampled",
    }
}

/// Index of times over the whole run, in [`Leg::chunk`] and [`Leg::first_token`].
pub(super) const RUN: usize = 0;
/// Index of times over the last ten seconds.
const RECENT: usize = 1;

/// One leg of the path.
#[derive(Clone, Debug)]
pub struct Leg<'l> {
    /// Name of the hop, or role of the process.
    pub name: &'l str,
    /// Role of the process that receives from the hop, or of the process itself.
    pub role: &'l str,
    /// Kind of time a chunk spends there.
    pub kind: LegKind,
    /// Distribution of the time; for a hop, over frames.
    pub spread: &'l Distribution,
    /// Time of chunks: over the run, and over the last ten seconds.
    pub chunk: [LegTime; 2],
    /// Time of requests' first chunks, including those waiting now: over the run, and over the last ten seconds.
    pub first_token: [LegTime; 2],
    /// Parts of long first-token gaps over the run, by the length of the whole gap. Includes those of requests that wait now.
    pub(super) long_gaps: LongDurations,
    /// Share of the run for which the process was busy, as [`mean_busy_share`] computes it; `None` if not observed.
    pub busy: Option<f64>,
    /// State of the receiving thread while frames wait for it.
    pub thread: ThreadState,
    /// Number of receivers of the hop, or of processes of this role that receive.
    pub receivers: usize,
    /// Shares of that thread's time while frames waited for it; empty if not sampled.
    pub spent: TimeUse,
    /// The receiver with most of the wait, if one of several stands out: `worker 2` or its endpoint.
    pub worker: Option<String>,
}

/// Time spent on a leg.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LegTime {
    /// Count and sum.
    pub sum: DurationSum,
    /// Share of all legs, from 0 to 1: of chunks by their means, of first tokens by their sums.
    pub share: f64,
}

impl LegTime {
    fn mean_ns(&self) -> f64 {
        self.sum.mean().unwrap_or(0) as f64
    }
}

/// Attribution over all legs.
#[derive(Clone, Debug, Default)]
pub struct Attribution<'l> {
    /// In path order; empty if no leg between two processing stages was observed.
    pub legs: Vec<Leg<'l>>,
    /// Long first-token gaps, including those of requests that wait now.
    long_gaps: LongDurations,
}

impl<'l> Attribution<'l> {
    /// Divides the tokens' time in the run so far among the legs, which are the parts of the tokens' path. Each leg is either the inside of
    /// the processes of one role, or the wait on a group of hops. A hop is a connection between two processes, and hops of one name form a
    /// group.
    pub(crate) fn of_token_time(ledger: &'l Ledger) -> Self {
        let run_ns = ledger.started().map_or(0, |started| ledger.now().since(started));
        let mut legs: Vec<Leg<'l>> = Vec::new();
        let mut seen_roles: Vec<&str> = Vec::new();
        for group_index in output_groups_in_path_order(ledger) {
            let group = &ledger.groups()[group_index];
            // Role of the processes to which the group leads.
            let role = group.ends.as_str().to;
            let hops_into_role = output_hops_into(ledger, role);
            let busy = mean_busy_share(ledger, hops_into_role.iter().copied(), run_ns);
            let members: Vec<&Hop> = ledger.hops_of_group(group_index).collect();
            legs.extend(wait_leg(ledger, group, role, &members, busy, run_ns));
            // Several groups may lead to the processes of one role, but their inside is a single leg.
            if !seen_roles.contains(&role) {
                seen_roles.push(role);
                let shows_receives = members.iter().any(|hop| hop.capabilities().received);
                legs.extend(inside_leg(ledger, role, busy, shows_receives, count_receivers(&hops_into_role)));
            }
        }
        let mut attribution = Self { legs, long_gaps: ledger.long_gaps };
        attribution.add_open_first_token_waits(ledger);
        set_leg_shares(&mut attribution.legs);
        attribution
    }

    /// Computes the attribution of the longest first-token gaps of the run alone, because their cause may differ from that of most gaps. A
    /// gap is the time of a first token between the scheduler and the tokenizer. If no gap is long, returns the attribution of all first
    /// tokens.
    pub(crate) fn narrowed_to_longest_gaps(&self) -> Self {
        let mut attribution = self.clone();
        // Class 0 has the gaps of a second or more. Each further class also includes shorter ones.
        let longest_class = (0..LONG_CLASSES).find(|class| self.long_gaps.of_class(*class).count > 0);
        let Some(class) = longest_class else { return attribution };
        let whole_ns = self.long_gaps.of_class(class).ns;
        for leg in &mut attribution.legs {
            let sum = leg.long_gaps.of_class(class);
            leg.first_token[RUN] = LegTime { sum, share: share_of(sum.ns as f64, whole_ns as f64) };
        }
        attribution
    }

    /// Adds the times of first tokens that have not reached the tokenizer yet. Such a token still waits in the leg where it was last
    /// observed, which is the open part of its path. The parts before have ended.
    fn add_open_first_token_waits(&mut self, ledger: &Ledger) {
        // Without observed gaps, a wait that has ended may look open.
        if !ledger.observes_gaps() {
            return;
        }
        let now = ledger.now();
        for request in ledger.requests() {
            let Some(sent) = request.first_token_waiting_since() else { continue };
            let gap_ns = now.since(sent);
            self.long_gaps.record(gap_ns);
            for part in parts_of_first_token_gap(request, ledger.hops(), now) {
                let Some(leg) = self.legs.iter_mut().find(|leg| leg.covers_gap_part(ledger, part)) else { continue };
                leg.long_gaps.record_part(part.ns, gap_ns);
                // The leg's sum of first tokens contains the ended parts already.
                if part.is_open {
                    leg.add_first_token_time(part.ns);
                }
            }
        }
    }

    /// Describes where the first tokens' time went: the bottleneck, or the two legs (hops or processes) with most of it.
    pub(crate) fn describe_first_token_time(&self) -> String {
        let mut legs: Vec<&Leg<'_>> = self.legs.iter().filter(|leg| leg.first_token[RUN].sum.ns > 0).collect();
        // The greatest share first.
        legs.sort_by(|a, b| b.first_token[RUN].share.total_cmp(&a.first_token[RUN].share));
        let max_legs = if self.bottleneck().is_some() { 1 } else { 2 };
        let parts: Vec<String> = legs.iter().take(max_legs).map(|leg| leg.describe_first_token_time()).collect();
        if parts.is_empty() {
            return String::from("where first tokens wait is not observed");
        }
        parts.join(", ")
    }

    /// Leg with most of the first tokens' time over the run; `None` if no leg has half of it.
    pub fn bottleneck(&self) -> Option<&Leg<'l>> {
        let max = self.legs.iter().max_by(|a, b| a.first_token[RUN].share.total_cmp(&b.first_token[RUN].share))?;
        (max.first_token[RUN].share >= BOTTLENECK_SHARE).then_some(max)
    }
}

impl Leg<'_> {
    /// Describes the share of first tokens' time that was spent on this leg (a hop or a process), and what its receiver did.
    fn describe_first_token_time(&self) -> String {
        let of_worker = self.worker.as_deref().map_or(String::new(), |worker| format!(" of {worker}"));
        let share = percent(self.first_token[RUN].share);
        let thread = self
            .describe_receiving_thread_activity()
            .map_or_else(String::new, |state| format!(" (the {} {state})", self.role));
        format!("{share} of that time was spent {}{of_worker}{thread}", self.describe())
    }

    /// Describes what the receiving thread did while frames waited for it: `was blocked in a system call`. `None` if that is not observed.
    fn describe_receiving_thread_activity(&self) -> Option<String> {
        match self.thread {
            ThreadState::Unknown => None,
            ThreadState::Busy => self.busy.map(|busy| format!("was busy {} of the run", percent(busy))),
            ThreadState::PartlyRunning => {
                Some(format!("ran {} of that time", percent(self.spent.share(self.spent.on_ns))))
            }
            ThreadState::Blocked => Some(String::from("was blocked in a system call")),
            state => Some(format!("was {}", state.as_str())),
        }
    }

    /// Describes how much the receiving thread ran while frames waited for it: `runs 75 % of that time`.
    pub(super) fn describe_running_share(&self) -> String {
        let running = percent(self.spent.share(self.spent.on_ns));
        let waiting =
            self.spent.starved_ns().map(|ns| format!(" and waits for a CPU {}", percent(self.spent.share(ns))));
        format!("runs {running} of that time{}", waiting.unwrap_or_default())
    }

    /// Adds the time of one first token, over the run and over the last ten seconds.
    fn add_first_token_time(&mut self, gap_part_ns: u64) {
        for time in &mut self.first_token {
            time.sum.add(DurationSum { count: 1, ns: gap_part_ns.into() });
        }
    }

    /// Whether a part of a request's first-token gap was spent on this leg. A leg is the wait on the hops of one name, or the time inside
    /// the processes of one role.
    fn covers_gap_part(&self, ledger: &Ledger, part: GapPart) -> bool {
        let Some(hop) = ledger.hop(part.hop) else { return false };
        let group = &ledger.groups()[hop.group];
        let is_hop_leg = self.kind == LegKind::Wait;
        match part.place {
            GapPlace::OnHop => is_hop_leg && self.name == group.name,
            // A leg inside a process has the name of its role.
            GapPlace::InReceiver | GapPlace::OnHopOrInReceiver => !is_hop_leg && *self.name == *group.ends.to,
        }
    }

    /// Describes the leg: `waiting on scheduler->tokenizer`.
    pub fn describe(&self) -> String {
        self.kind.describe(self.name)
    }
}

/// Hops that carry output to the processes of a role.
fn output_hops_into<'l>(ledger: &'l Ledger, role: &str) -> Vec<&'l Hop> {
    let output_hops = ledger.hops().iter().filter(|hop| !hop.carries_requests);
    output_hops.filter(|hop| ledger.groups()[hop.group].ends.as_str().to == role).collect()
}

/// Indices of the groups of hops that carry output, ordered by the number of hops from the scheduler to their senders.
fn output_groups_in_path_order(ledger: &Ledger) -> Vec<usize> {
    let mut group_indices: Vec<usize> = ledger.output_groups().map(|(group_index, _)| group_index).collect();
    let ends: Vec<Ends<&str>> = ledger.output_groups().map(|(_, group)| group.ends.as_str()).collect();
    group_indices
        .sort_by_key(|&group_index| path::max_hops_before_role(&ends, ledger.groups()[group_index].ends.as_str().from));
    group_indices
}

/// State of the main thread of the process that answers clients, while a request waited in its socket for `wait_ns` until `wait_end`.
/// Samples always show whether the thread is stopped. Only while frames wait for it do they also show whether it is blocked or asleep.
pub(super) fn state_of_socket_reader_during_wait(ledger: &Ledger, wait_end: MonoNs, wait_ns: u64) -> ThreadState {
    // The last hop of the path leads to the process that answers clients.
    let mut last_hops = ledger.hops().iter().filter(|hop| hop.last);
    let reader = last_hops.find_map(|hop| ledger.only_receiver(hop));
    let Some(thread) = reader.and_then(|id| ledger.thread(id)) else { return ThreadState::Unknown };
    thread_state_during_wait(thread, wait_end, wait_ns)
}

/// State of the thread that receives requests from this hop, while one waited on it for `wait_ns` until `wait_end`.
pub(super) fn state_of_request_receiver_during_wait(
    ledger: &Ledger,
    hop: Option<HopId>,
    wait_end: MonoNs,
    wait_ns: u64,
) -> ThreadState {
    let receiver = hop.and_then(|hop| ledger.hop(hop)?.receiving_thread());
    receiver
        .and_then(|id| ledger.thread(id))
        .map_or(ThreadState::Unknown, |thread| thread_state_during_wait(thread, wait_end, wait_ns))
}

/// State of a thread in the `wait_ns` before `wait_end`; [`ThreadState::Unknown`] if it was not sampled then.
fn thread_state_during_wait(thread: &Thread, wait_end: MonoNs, wait_ns: u64) -> ThreadState {
    let from = MonoNs(wait_end.0.saturating_sub(wait_ns));
    // The busy share is known for the whole run only, not for an interval.
    let busy_share = None;
    match thread.use_between(from, wait_end) {
        Some(spent) => thread_state(&spent, &thread.away_between(from, wait_end), busy_share),
        None => ThreadState::Unknown,
    }
}

/// Waits of chunks on the hops of a group.
struct WaitTimes {
    chunk: [LegTime; 2],
    first_token: [LegTime; 2],
    long_gaps: LongDurations,
}

impl WaitTimes {
    /// Sums the waits of chunks and of first tokens on these hops, over the run and over the last ten seconds. Also sums, over the run
    /// only, the parts of long first-token gaps that were spent there. A gap is the time from the scheduler's send to the tokenizer's
    /// receive.
    fn sum_over_hops(hops: &[&Hop], now: MonoNs) -> Self {
        let mut chunk = [LegTime::default(); 2];
        let mut first_token = [LegTime::default(); 2];
        let mut long_gaps = LongDurations::default();
        for hop in hops {
            long_gaps.add(&hop.long_gap_waits);
            chunk[RUN].sum.add(hop.chunk_waits.whole());
            chunk[RECENT].sum.add(hop.chunk_waits.recent(now));
            first_token[RUN].sum.add(hop.first_waits.whole());
            first_token[RECENT].sum.add(hop.first_waits.recent(now));
        }
        Self { chunk, first_token, long_gaps }
    }
}

/// Computes the leg (a part of the path) that is the wait on a group of hops, the connections of one name. `group_hops` are the hops of
/// `group`. They lead to processes of `receiver_role`, which were busy for `receivers_busy_share` of the run. `None` if no chunk was
/// received from these hops and no frame waits on them.
fn wait_leg<'l>(
    ledger: &'l Ledger,
    group: &'l HopGroup,
    receiver_role: &'l str,
    group_hops: &[&'l Hop],
    receivers_busy_share: Option<f64>,
    run_ns: u64,
) -> Option<Leg<'l>> {
    let times = WaitTimes::sum_over_hops(group_hops, ledger.now());
    // Waiting frames need the leg even before the first received chunk, because `add_open_first_token_waits` adds their time to it.
    let has_waiting = group_hops.iter().any(|hop| hop.capabilities().received && hop.oldest_waiting().is_some());
    let has_received_chunks = times.chunk[RUN].sum.count > 0;
    if !has_received_chunks && !has_waiting {
        return None;
    }
    let receiver = HopReceiver::of_hops(ledger, group_hops, receivers_busy_share, run_ns);
    Some(Leg {
        name: &group.name,
        role: receiver_role,
        kind: LegKind::Wait,
        spread: &group.queue_wait,
        chunk: times.chunk,
        first_token: times.first_token,
        long_gaps: times.long_gaps,
        busy: receiver.busy,
        thread: receiver.thread,
        receivers: count_receivers(group_hops),
        spent: receiver.spent,
        worker: receiver.worker,
    })
}

/// The thread that receives from the hops of one name, while frames waited for it.
#[derive(Clone, Debug)]
pub struct HopReceiver {
    /// Its state.
    pub thread: ThreadState,
    /// Shares of its time; empty if not sampled.
    pub spent: TimeUse,
    /// Share of the run for which it was busy, as [`mean_busy_share`] computes it; `None` if not observed.
    pub busy: Option<f64>,
    /// The receiver with most of the wait, if one of several stands out: `worker 2` or its endpoint.
    pub worker: Option<String>,
}

impl HopReceiver {
    /// Computes the state of the receivers of these hops, which share a name. If frames wait much longer for one receiver than for the
    /// others, the state is that of this receiver alone. `receivers_busy_share` is the mean share of the run for which the receivers were
    /// busy, and `run_ns` is the length of the run.
    pub fn of_hops(ledger: &Ledger, group_hops: &[&Hop], receivers_busy_share: Option<f64>, run_ns: u64) -> Self {
        let Some(hop_of_slowest) = hop_of_slowest_receiver(group_hops, ledger.now()) else {
            let worker = None;
            return Self::of_summed_hops(group_hops, receivers_busy_share, worker);
        };
        let hops_of_slowest = hops_of_receiver(group_hops, hop_of_slowest);
        let busy_of_slowest = mean_busy_share(ledger, hops_of_slowest.iter().copied(), run_ns);
        Self::of_summed_hops(&hops_of_slowest, busy_of_slowest, Some(name_receiver(hop_of_slowest)))
    }

    /// Sums what the threads that receive from these hops did while frames waited for them. `worker_name` is the name of the only receiver.
    fn of_summed_hops(hops: &[&Hop], run_busy_share: Option<f64>, worker_name: Option<String>) -> Self {
        let mut spent = TimeUse::default();
        let mut away = AwayTimes::default();
        for hop in hops {
            spent = spent.plus(hop.while_waiting);
            away = away.plus(hop.away);
        }
        Self { thread: thread_state(&spent, &away, run_busy_share), spent, busy: run_busy_share, worker: worker_name }
    }

    /// The state in words, with the share of that time in which the thread ran; `None` if not sampled.
    pub fn describe(&self) -> Option<String> {
        if self.spent.interval_ns == 0 {
            return None;
        }
        let running = percent(self.spent.share(self.spent.on_ns));
        let worker_prefix = self.worker.as_deref().map_or_else(String::new, |worker| format!("{worker}: "));
        let state = match self.thread {
            ThreadState::Unknown | ThreadState::PartlyRunning => String::new(),
            state => format!("{}, ", state.as_str()),
        };
        Some(format!("{worker_prefix}{state}ran {running} of the time that frames waited"))
    }
}

/// Times of chunks in a process, from one moment before it to the send behind it.
struct StageTimes<'l> {
    kind: LegKind,
    spread: &'l Distribution,
    chunks: &'l WindowedSum,
    first_tokens: &'l WindowedSum,
    long_gaps: LongDurations,
}

impl<'l> StageTimes<'l> {
    /// Times from the receive by the process.
    fn since_receive(stage: &'l ProcessingStage) -> Self {
        Self {
            kind: LegKind::Inside,
            spread: &stage.inside,
            chunks: &stage.inside_sum,
            first_tokens: &stage.first_inside,
            long_gaps: stage.long_gaps_inside,
        }
    }

    /// Times from the send to the process. They are known even if its receives are not observed, but only for the first chunk of each
    /// request.
    fn since_send(stage: &'l ProcessingStage) -> Self {
        Self {
            kind: LegKind::WaitAndInside,
            spread: &stage.through,
            chunks: &stage.through_sum,
            first_tokens: &stage.through_sum,
            long_gaps: stage.long_gaps_through,
        }
    }
}

/// Computes the leg (a part of the path) inside the processes of a role. `busy_share` is the share of the run for which they were busy, and
/// `receivers` is their number. `shows_receives`: their receives are observed. `None` if no chunk has passed through them.
fn inside_leg<'l>(
    ledger: &'l Ledger,
    role: &str,
    busy_share: Option<f64>,
    shows_receives: bool,
    receivers: usize,
) -> Option<Leg<'l>> {
    let stage = ledger.processing_stages().iter().find(|stage| stage.role == role)?;
    // If the receives of a process are not observed, its time counts from the send to it. That includes the wait on the hop.
    let times = if shows_receives { StageTimes::since_receive(stage) } else { StageTimes::since_send(stage) };
    if times.spread.count() == 0 {
        return None;
    }
    Some(Leg {
        name: &stage.role,
        role: &stage.role,
        kind: times.kind,
        spread: times.spread,
        chunk: times_of_sum(times.chunks, ledger.now()),
        first_token: times_of_sum(times.first_tokens, ledger.now()),
        long_gaps: times.long_gaps,
        busy: busy_share,
        thread: ThreadState::Unknown,
        receivers,
        spent: TimeUse::default(),
        worker: None,
    })
}

/// The sum over the run, and over the last ten seconds; without shares.
fn times_of_sum(sum: &WindowedSum, now: MonoNs) -> [LegTime; 2] {
    [sum.whole(), sum.recent(now)].map(|sum| LegTime { sum, share: 0.0 })
}

/// Derives the state of a thread from the time during which frames waited for it. `spent` says how the thread used that time, and `away`
/// why it did not run. If that time is too short for a judgement, the state depends on the thread's busy share of the whole run.
fn thread_state(spent: &TimeUse, away: &AwayTimes, run_busy_share: Option<f64>) -> ThreadState {
    let is_too_short_to_judge = spent.interval_ns < MIN_SAMPLED_NS;
    if is_too_short_to_judge {
        return match run_busy_share {
            Some(share) if share >= CPU_BOUND_SHARE => ThreadState::Busy,
            _ => ThreadState::Unknown,
        };
    }
    let asleep = away.time_in_any(&[AwayState::Polling, AwayState::Asleep]);
    // The first state that applies is returned. Causes outside the thread that keep it from running come before its own work.
    if let Some(suspended_state) = suspended_state(spent, away) {
        suspended_state
    } else if has_share(spent, spent.throttled_ns(), THROTTLED_SHARE) {
        ThreadState::Throttled
    } else if has_share(spent, spent.starved_ns(), STARVED_SHARE) {
        ThreadState::Starved
    } else if spent.share(spent.on_ns) >= CPU_BOUND_SHARE {
        ThreadState::CpuBound
    } else if spent.share(away.time_in(AwayState::Blocked)) >= BOTTLENECK_SHARE {
        ThreadState::Blocked
    } else if spent.share(asleep) >= BOTTLENECK_SHARE {
        ThreadState::Asleep
    } else if has_share(spent, spent.blocked_ns(), BOTTLENECK_SHARE) {
        ThreadState::Waiting
    } else if spent.wait_ns.is_none() && spent.share(spent.on_ns) < BOTTLENECK_SHARE {
        // Without sampled waits for a CPU, it is unknown whether the thread waited for one or slept for most of the time.
        ThreadState::Unknown
    } else {
        ThreadState::PartlyRunning
    }
}

/// State of a thread that was stopped or frozen for long, which is no lack of a CPU. `None` if it was neither, or waited for a CPU for
/// longer.
fn suspended_state(spent: &TimeUse, away: &AwayTimes) -> Option<ThreadState> {
    let stopped = away.time_in_any(&[AwayState::Stopped, AwayState::Traced]);
    let frozen = away.time_in(AwayState::Frozen);
    let suspended = stopped.saturating_add(frozen);
    let is_long = spent.share(suspended) >= STARVED_SHARE;
    let waited_longer_for_cpu = spent.starved_ns().is_some_and(|starved| starved >= suspended);
    if !is_long || waited_longer_for_cpu {
        return None;
    }
    Some(if stopped >= frozen { ThreadState::Stopped } else { ThreadState::Frozen })
}

/// Whether this part of a thread's time has at least the share `minimum`. `false` if it is not observed.
fn has_share(spent: &TimeUse, part_ns: Option<u64>, minimum: f64) -> bool {
    part_ns.is_some_and(|ns| spent.share(ns) >= minimum)
}

/// Sets the share of each leg (a hop or a process) in the times of all legs, over the run and over the last ten seconds.
fn set_leg_shares(legs: &mut [Leg<'_>]) {
    for window in [RUN, RECENT] {
        // Legs may have counted different numbers of chunks, so the means of their chunk times are compared. The times of first tokens are
        // compared as sums, because each request has only one.
        let mean_sum: f64 = legs.iter().map(|leg| leg.chunk[window].mean_ns()).sum();
        let first_token_sum: f64 = legs.iter().map(|leg| leg.first_token[window].sum.ns as f64).sum();
        for leg in legs.iter_mut() {
            leg.chunk[window].share = share_of(leg.chunk[window].mean_ns(), mean_sum);
            leg.first_token[window].share = share_of(leg.first_token[window].sum.ns as f64, first_token_sum);
        }
    }
}
