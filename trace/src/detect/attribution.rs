//! Attribution of the time of chunks and first tokens between scheduler and tokenizer: waiting on hops, and inside the processes between
//! them. Banner, findings, report, screen and metrics share this computation.

use serde::{Deserialize, Serialize};

use super::thresholds::{CPU_BOUND_SHARE, STARVED_SHARE, THROTTLED_SHARE};
use crate::clock::MonoNs;
use crate::event::AwayState;
use crate::ledger::{AwayTimes, Group, Hop, Ledger, ProcessingStage, TimeUse};
use crate::path::{self, Ends};
use crate::stats::{Distribution, Sum, WindowedSum};
use crate::words::{names, percent};

/// Minimum share of the total time that makes a leg the bottleneck.
const BOTTLENECK: f64 = 0.5;
/// Minimum total length of a thread's samples to derive its state from them.
const SHORTEST_NS: u64 = 200_000_000;

/// Kind of time a chunk spends on a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LegKind {
    /// Waiting on a hop: received minus sent.
    FirstTokenWait,
    /// Inside a forwarding process: sent on minus received.
    Inside,
    /// Both together, if receives are not observed: sent on minus sent to the process, of each request's first chunk.
    WaitAndInside,
}

names! {
    LegKind { FirstTokenWait = "wait", Inside = "inside", WaitAndInside = "wait-and-inside" }
}

impl LegKind {
    /// Describes the leg of this kind and name.
    pub fn of(self, name: &str) -> String {
        match self {
            Self::FirstTokenWait => format!("waiting on {name}"),
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
    /// Runnable without a CPU.
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
    /// Neither computing nor runnable while frames wait; the reason is not observed.
    Waiting,
    /// Not observed: its CPU time is not sampled.
    Unknown,
}

names! {
    ThreadState {
        CpuBound = "CPU-bound",
        Starved = "lacks a CPU",
        Throttled = "throttled",
        Busy = "busy",
        Stopped = "stopped",
        Frozen = "frozen",
        Blocked = "blocked",
        Asleep = "asleep",
        Waiting = "not running",
        Unknown = "not sampled",
    }
}

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
    pub chunk: [Time; 2],
    /// Time of requests' first chunks, including those waiting now: over the run, and over the last ten seconds.
    pub first_token: [Time; 2],
    /// Share of the run for which the process was busy, as [`busy`] computes it; `None` if not observed.
    pub busy: Option<f64>,
    /// State of the receiving thread while frames wait for it.
    pub thread: ThreadState,
    /// Shares of that thread's time while frames waited for it; empty if not sampled.
    pub spent: TimeUse,
    /// The receiver with most of the wait, if one of several stands out: `worker 2` or its endpoint.
    pub worker: Option<String>,
}

/// Time spent on a leg.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Time {
    /// Count and sum.
    pub sum: Sum,
    /// Share of all legs, from 0 to 1: of chunks by their means, of first tokens by their sums.
    pub share: f64,
}

/// Attribution over all legs.
#[derive(Clone, Debug, Default)]
pub struct Attribution<'l> {
    /// In path order; empty if no leg between two processing stages was observed.
    pub legs: Vec<Leg<'l>>,
}

impl<'l> Attribution<'l> {
    /// Computes the attribution of the run so far.
    pub fn of(ledger: &'l Ledger) -> Self {
        let window_ns = ledger.started().map_or(0, |started| ledger.now().since(started));
        let ends: Vec<Ends<&str>> = ledger.groups().iter().map(|group| group.ends.as_str()).collect();
        let mut order: Vec<usize> = (0..ends.len()).collect();
        order.sort_by_key(|&place| path::depth(&ends, ends[place].from));
        let mut legs: Vec<Leg<'l>> = Vec::new();
        let mut seen: Vec<&str> = Vec::new();
        for place in order {
            let (group, role) = (&ledger.groups()[place], ends[place].to);
            let into: Vec<&Hop> = ledger.hops().iter().filter(|h| ends[h.group].to == role).collect();
            let busy = busy(ledger, into.iter().copied(), window_ns);
            let members: Vec<&Hop> = ledger.members(place).collect();
            legs.extend(wait(ledger, (group, role), &members, (busy, window_ns)));
            if !seen.contains(&role) {
                seen.push(role);
                let processing_stage = ledger.processing_stages().iter().find(|p| p.role == role);
                let receives = members.iter().any(|h| h.capabilities().received);
                legs.extend(processing_stage.and_then(|p| inside(ledger, p, busy, receives)));
            }
        }
        add_open_waits(ledger, &mut legs);
        for window in 0..2 {
            let mean = |s: &Leg<'_>| s.chunk[window].sum.mean().unwrap_or(0) as f64;
            let sum = |s: &Leg<'_>| s.first_token[window].sum.ns as f64;
            let (means, sums) = (legs.iter().map(mean).sum(), legs.iter().map(sum).sum());
            for leg in &mut legs {
                leg.chunk[window].share = part(mean(leg), means);
                leg.first_token[window].share = part(sum(leg), sums);
            }
        }
        Self { legs }
    }

    /// Describes where the first tokens' time went: the bottleneck, or the two legs with most of it.
    pub fn first_token_words(&self) -> String {
        let mut legs: Vec<&Leg<'_>> = self.legs.iter().filter(|leg| leg.first_token[0].sum.ns > 0).collect();
        legs.sort_by(|a, b| b.first_token[0].share.total_cmp(&a.first_token[0].share));
        let limit = if self.bottleneck().is_some() { 1 } else { 2 };
        let parts: Vec<String> = legs.iter().take(limit).map(|leg| leg.first_token_words()).collect();
        if parts.is_empty() {
            return String::from("where first tokens wait is not observed");
        }
        parts.join(", ")
    }

    /// Leg with most of the first tokens' time over the run; `None` if no leg has half of it.
    pub fn bottleneck(&self) -> Option<&Leg<'l>> {
        let share = |s: &&Leg<'_>| s.first_token[0].share;
        let max = self.legs.iter().max_by(|a, b| share(a).total_cmp(&share(b)))?;
        (share(&max) >= BOTTLENECK).then_some(max)
    }
}

impl Leg<'_> {
    /// Describes the leg's share of first tokens' time and its receivers' state.
    fn first_token_words(&self) -> String {
        let of = self.worker.as_deref().map_or(String::new(), |worker| format!(" of {worker}"));
        let share = percent(self.first_token[0].share);
        let thread = match (self.thread, self.busy) {
            (ThreadState::CpuBound, _) => format!(" (the {} is CPU-bound)", self.role),
            (ThreadState::Starved, _) => format!(" (the {} is starved of CPU)", self.role),
            (ThreadState::Throttled, _) => format!(" (the {} is throttled)", self.role),
            (ThreadState::Stopped, _) => format!(" (the {} is stopped)", self.role),
            (ThreadState::Frozen, _) => format!(" (the {} is frozen)", self.role),
            (ThreadState::Blocked, _) => format!(" (the {} is blocked in a system call)", self.role),
            (ThreadState::Asleep, _) => format!(" (the {} is asleep)", self.role),
            (ThreadState::Waiting, _) => format!(" (the {} is away from its poll and not running)", self.role),
            (ThreadState::Busy, Some(busy)) => format!(" (the {} is busy {} of the time)", self.role, percent(busy)),
            _ => String::new(),
        };
        format!("{share} of that time was spent {}{of}{thread}", self.words())
    }

    /// Describes the leg: `waiting on scheduler->tokenizer`.
    pub fn words(&self) -> String {
        self.kind.of(self.name)
    }
}

fn part(of: f64, whole: f64) -> f64 {
    if whole > 0.0 { of / whole } else { 0.0 }
}

fn wait<'l>(
    ledger: &'l Ledger,
    (group, role): (&'l Group, &'l str),
    members: &[&'l Hop],
    (busy, window_ns): (Option<f64>, u64),
) -> Option<Leg<'l>> {
    let now = ledger.now();
    let (mut chunk, mut first_token) = ([Time::default(); 2], [Time::default(); 2]);
    for hop in members {
        chunk[0].sum.add(hop.chunk_waits.whole());
        chunk[1].sum.add(hop.chunk_waits.recent(now));
        first_token[0].sum.add(hop.first_waits.whole());
        first_token[1].sum.add(hop.first_waits.recent(now));
    }
    let waits = members.iter().any(|hop| hop.capabilities().received && hop.oldest_waiting().is_some());
    if chunk[0].sum.count == 0 && !waits {
        return None;
    }
    let worker = outlier(members, now);
    let slow: Vec<&Hop> = members.iter().copied().filter(|hop| worker.is_none_or(|w| key(w) == key(hop))).collect();
    let spent = slow.iter().map(|hop| hop.while_waiting).fold(TimeUse::default(), TimeUse::plus);
    let away = slow.iter().map(|hop| hop.away).fold(AwayTimes::default(), AwayTimes::plus);
    let busy = worker.map_or(busy, |_| self::busy(ledger, slow.iter().copied(), window_ns));
    Some(Leg {
        name: &group.name,
        role,
        kind: LegKind::FirstTokenWait,
        spread: &group.queue_wait,
        chunk,
        first_token,
        busy,
        thread: state(&spent, &away, busy),
        spent,
        worker: worker.map(|hop| hop.worker.map_or_else(|| hop.endpoint.to_string(), |n| format!("worker {n}"))),
    })
}

fn inside<'l>(
    ledger: &Ledger,
    processing_stage: &'l ProcessingStage,
    busy: Option<f64>,
    receives: bool,
) -> Option<Leg<'l>> {
    let (kind, spread, of_chunks, of_first) = if receives {
        (LegKind::Inside, &processing_stage.inside, &processing_stage.inside_sum, &processing_stage.first_inside)
    } else {
        (
            LegKind::WaitAndInside,
            &processing_stage.through,
            &processing_stage.through_sum,
            &processing_stage.through_sum,
        )
    };
    let times = |of: &WindowedSum| [of.whole(), of.recent(ledger.now())].map(|sum| Time { sum, share: 0.0 });
    (spread.count() > 0).then(|| Leg {
        name: &processing_stage.role,
        role: &processing_stage.role,
        kind,
        spread,
        chunk: times(of_chunks),
        first_token: times(of_first),
        busy,
        thread: ThreadState::Unknown,
        spent: TimeUse::default(),
        worker: None,
    })
}

/// Derives the state of a thread from its time while frames waited for it.
fn state(spent: &TimeUse, away: &AwayTimes, busy: Option<f64>) -> ThreadState {
    let at_least = |ns: Option<u64>, share: f64| ns.is_some_and(|ns| spent.share(ns) >= share);
    if spent.interval_ns < SHORTEST_NS {
        return match busy {
            Some(busy) if busy >= CPU_BOUND_SHARE => ThreadState::Busy,
            _ => ThreadState::Unknown,
        };
    }
    let stopped = away.sum(&[AwayState::Stopped, AwayState::Traced]);
    let frozen = away.of(AwayState::Frozen);
    let asleep = away.sum(&[AwayState::Polling, AwayState::Asleep]);
    // A thread that is stopped or frozen does not lack a CPU.
    let suspended = stopped.saturating_add(frozen);
    if at_least(Some(suspended), STARVED_SHARE) && spent.starved_ns().is_none_or(|starved| starved < suspended) {
        if stopped >= frozen { ThreadState::Stopped } else { ThreadState::Frozen }
    } else if at_least(spent.throttled_ns(), THROTTLED_SHARE) {
        ThreadState::Throttled
    } else if at_least(spent.starved_ns(), STARVED_SHARE) {
        ThreadState::Starved
    } else if at_least(Some(spent.on_ns), CPU_BOUND_SHARE) {
        ThreadState::CpuBound
    } else if at_least(Some(away.of(AwayState::Blocked)), BOTTLENECK) {
        ThreadState::Blocked
    } else if at_least(Some(asleep), BOTTLENECK) {
        ThreadState::Asleep
    } else if spent.wait_ns.is_some() {
        ThreadState::Waiting
    } else {
        ThreadState::Unknown
    }
}

type Key<'h> = (Option<u16>, &'h str);

fn key(hop: &Hop) -> Key<'_> {
    (hop.worker, &hop.endpoint)
}

/// The receiver with most of the wait, if there are several and it has half of the wait and 1.5 times an even share.
fn outlier<'h>(members: &[&'h Hop], now: MonoNs) -> Option<&'h Hop> {
    let waits = |hop: &Hop| {
        let counts = hop.counts;
        let open = hop.oldest_waiting().map_or(0, |at| u128::from(now.since(at)) * u128::from(counts.backlog) / 2);
        hop.chunk_waits.whole().ns + open
    };
    let mut receivers: Vec<(&Hop, u128)> = Vec::new();
    for hop in members {
        match receivers.iter_mut().find(|(known, _)| key(known) == key(hop)) {
            Some((_, ns)) => *ns += waits(hop),
            None => receivers.push((hop, waits(hop))),
        }
    }
    let whole: u128 = receivers.iter().map(|(_, ns)| ns).sum();
    let (hop, max) = receivers.iter().max_by_key(|(_, ns)| *ns)?;
    let share = part(*max as f64, whole as f64);
    let named = hop.worker.is_some() || !hop.endpoint.is_empty();
    (receivers.len() > 1 && named && share >= BOTTLENECK && share * receivers.len() as f64 >= 1.5).then_some(*hop)
}

/// Adds first tokens that have not reached the tokenizer to the leg where each was last observed, with the time since then.
fn add_open_waits(ledger: &Ledger, legs: &mut [Leg<'_>]) {
    if !ledger.observes_gaps() {
        return;
    }
    for request in ledger.requests().filter(|r| r.waiting_since().is_some()) {
        let Some(stream) = request.streams.iter().filter(|s| s.whole()).max_by_key(|s| s.first_at) else {
            continue;
        };
        let Some(hop) = ledger.hops().iter().find(|h| h.id == stream.hop) else {
            continue;
        };
        let group = &ledger.groups()[hop.group];
        let (inside, since) = match request.in_process_since(stream) {
            Some(at) => (true, at),
            None => (!hop.capabilities().received, stream.first_at),
        };
        let name = if inside { &*group.ends.to } else { &group.name };
        let sum = Sum { count: 1, ns: ledger.now().since(since).into() };
        for leg in legs.iter_mut().filter(|leg| leg.name == name && inside == (leg.kind != LegKind::FirstTokenWait)) {
            leg.first_token.iter_mut().for_each(|time| time.sum.add(sum));
        }
    }
}

/// Share of the window for which the receivers of these hops were busy; the mean over observed receivers. Busy means processing a frame or,
/// if its event loop's polls are observed, outside the poll, which includes HTTP writes.
pub fn busy<'h>(ledger: &Ledger, hops: impl Iterator<Item = &'h Hop>, window_ns: u64) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0_u32);
    for hop in hops.filter(|hop| hop.capabilities().processed) {
        let processing = part(hop.counts.busy_ns as f64, window_ns as f64);
        let poll = hop.receiving_thread().and_then(|by| ledger.thread(by)?.poll);
        let away = poll
            .map_or(0.0, |poll| part(poll.interval_ns.saturating_sub(poll.polled_ns) as f64, poll.interval_ns as f64));
        sum += processing.max(away).min(1.0);
        count += 1;
    }
    (count > 0 && window_ns > 0).then(|| sum / f64::from(count))
}
