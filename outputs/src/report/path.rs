//! Attribution of time in the report.

use serde::{Deserialize, Serialize};
use trace::detect::attribution::{Attribution, Leg, LegKind, LegTime, ThreadState};

use trace::stats::Spread;
use trace::words::percent;

use super::{HopLine, Report};

/// One leg of the path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LegLine {
    /// Name of the hop, or role of the process.
    pub name: String,
    /// Kind of time a chunk spends there.
    pub kind: LegKind,
    /// Distribution in nanoseconds; for a hop, over frames. `null` if nothing has left the leg.
    pub ns: Option<Spread>,
    /// Mean over chunks, in nanoseconds.
    pub mean_ns: u64,
    /// Share of the means of all legs, from 0 to 1.
    pub share: f64,
    /// The same over the last ten seconds of the run.
    pub recent_share: Option<f64>,
    /// Mean over requests' first chunks in nanoseconds, including those still waiting at the end; `null` if there are none.
    pub first_token_mean_ns: Option<u64>,
    /// Share of the time of all first chunks on all legs, from 0 to 1; `null` if there are none.
    pub first_token_share: Option<f64>,
    /// The same over the last ten seconds of the run.
    pub recent_first_token_share: Option<f64>,
    /// Share of the window in which the process was processing a frame or outside its event loop's poll, mean over its siblings; `null` if
    /// not observed.
    pub busy: Option<f64>,
    /// State of the receiving thread while frames waited for it; `null` for a process.
    pub thread: Option<ThreadState>,
    /// Share of that time in which it ran; `null` if it was not sampled.
    pub on_cpu: Option<f64>,
    /// Share of that time in which it waited for a CPU.
    pub run_wait: Option<f64>,
    /// Receiver with most of the wait, if one stands out.
    pub worker: Option<String>,
}

impl LegLine {
    /// The legs of the path, in order.
    pub fn all_legs(attribution: &Attribution<'_>) -> Vec<Self> {
        attribution.legs.iter().map(leg_line).collect()
    }

    /// Describes the leg: `waiting on scheduler->tokenizer`.
    pub fn words(&self) -> String {
        self.kind.describe(&self.name)
    }

    /// State of the receiving thread while frames waited for it.
    fn describe_receiver(&self) -> String {
        match self.thread {
            Some(state) => describe_thread(state, self.on_cpu),
            // Inside a process, no frame waits for it.
            None if self.kind == LegKind::Inside => String::from("no frame waits"),
            None => String::from("not observed"),
        }
    }
}

/// State of a thread. `on_cpu_share`: its share of the time on a CPU.
fn describe_thread(state: ThreadState, on_cpu_share: Option<f64>) -> String {
    match on_cpu_share {
        // No state has most of the time, so the share says more.
        Some(share) if state == ThreadState::PartlyRunning => format!("runs {}", percent(share)),
        _ => state.as_str().to_owned(),
    }
}

/// A row of the tables of legs. A hop of requests is not on the way of a chunk, so that it has no share of its time.
pub(super) struct PathRow {
    pub(super) kind: LegKind,
    pub(super) name: String,
    pub(super) carries_requests: bool,
    pub(super) mean_ns: Option<u64>,
    pub(super) ns: Option<Spread>,
    pub(super) share: Option<f64>,
    pub(super) first_token_share: Option<f64>,
    pub(super) busy: Option<f64>,
    pub(super) thread: String,
}

impl PathRow {
    /// The hops of requests whose receives were observed, then the legs of the path.
    pub(super) fn all_rows(report: &Report) -> Vec<Self> {
        let requests = report.hops.iter().filter(|hop| hop.carries_requests && hop.queue_wait_ns.is_some());
        requests.map(Self::of_request_hop).chain(report.path.iter().map(Self::of_leg)).collect()
    }

    /// The row of a leg of the path: a hop, or a process between two hops.
    fn of_leg(leg: &LegLine) -> Self {
        Self {
            kind: leg.kind,
            name: leg.name.clone(),
            carries_requests: false,
            mean_ns: Some(leg.mean_ns),
            ns: leg.ns,
            share: Some(leg.share),
            first_token_share: leg.first_token_share,
            busy: leg.busy,
            thread: leg.describe_receiver(),
        }
    }

    /// The row of a hop that carries requests.
    fn of_request_hop(hop: &HopLine) -> Self {
        Self {
            kind: LegKind::Wait,
            name: hop.name.clone(),
            carries_requests: true,
            mean_ns: hop.queue_wait_mean_ns,
            ns: hop.queue_wait_ns,
            // Shares are those of a chunk's way, of which this hop is no part.
            share: None,
            first_token_share: None,
            busy: hop.busy,
            thread: hop.thread.map_or_else(|| String::from("not sampled"), |state| describe_thread(state, hop.on_cpu)),
        }
    }

    /// Describes it: `waiting on scheduler->tokenizer`.
    pub(super) fn words(&self) -> String {
        let words = self.kind.describe(&self.name);
        if self.carries_requests { format!("requests {words}") } else { words }
    }
}

/// Share of a leg; `None` if no chunk was on it.
fn observed_share(time: LegTime) -> Option<f64> {
    (time.sum.count > 0).then_some(time.share)
}

/// Converts a leg of the path with its times and the state of the thread that receives behind it.
fn leg_line(leg: &Leg<'_>) -> LegLine {
    // Without a sample of the thread, its shares are unknown.
    let sampled = if leg.spent.interval_ns > 0 { Some(&leg.spent) } else { None };
    // Each pair has the time over the run, then that over the last ten seconds.
    let [chunk, recent_chunk] = leg.chunk;
    let [first_token, recent_first_token] = leg.first_token;
    LegLine {
        name: leg.name.to_owned(),
        kind: leg.kind,
        ns: Spread::of_distribution(leg.spread),
        mean_ns: chunk.sum.mean().unwrap_or(0),
        share: chunk.share,
        // Unlike the run, the last ten seconds may have no chunk on this leg.
        recent_share: observed_share(recent_chunk),
        first_token_mean_ns: first_token.sum.mean(),
        first_token_share: observed_share(first_token),
        recent_first_token_share: observed_share(recent_first_token),
        busy: leg.busy,
        thread: (leg.kind == LegKind::Wait).then_some(leg.thread),
        on_cpu: sampled.map(|spent| spent.share(spent.on_ns)),
        run_wait: sampled.and_then(|spent| Some(spent.share(spent.starved_ns()?))),
        worker: leg.worker.clone(),
    }
}
