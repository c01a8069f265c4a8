//! Attribution of time in the report.

use serde::{Deserialize, Serialize};
use trace::detect::attribution::{Attribution, Leg, LegKind, LegTime, ThreadState};

use trace::stats::Spread;
use trace::words::percent;

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
    #[serde(default)]
    pub on_cpu: Option<f64>,
    /// Share of that time in which it waited for a CPU.
    #[serde(default)]
    pub run_wait: Option<f64>,
    /// Receiver with most of the wait, if one stands out.
    pub worker: Option<String>,
}

impl LegLine {
    /// The legs of the path.
    pub fn all(attribution: &Attribution<'_>) -> Vec<Self> {
        attribution.legs.iter().map(line).collect()
    }

    /// Describes the leg: `waiting on scheduler->tokenizer`.
    pub fn words(&self) -> String {
        self.kind.describe(&self.name)
    }

    /// State of the receiving thread while frames waited for it.
    pub(super) fn thread_text(&self) -> String {
        match (self.thread, self.on_cpu, self.kind) {
            // No state has most of the time, so the share says more.
            (Some(ThreadState::PartlyRunning), Some(running), _) => format!("runs {}", percent(running)),
            (Some(state), _, _) => state.as_str().to_owned(),
            (None, _, LegKind::Inside) => "no frame waits".to_owned(),
            (None, _, _) => "not observed".to_owned(),
        }
    }
}

fn observed_share(time: LegTime) -> Option<f64> {
    (time.sum.count > 0).then_some(time.share)
}

fn line(leg: &Leg<'_>) -> LegLine {
    let is_sampled = leg.spent.interval_ns > 0;
    LegLine {
        name: leg.name.to_owned(),
        kind: leg.kind,
        ns: Spread::of_distribution(leg.spread),
        mean_ns: leg.chunk[0].sum.mean().unwrap_or(0),
        share: leg.chunk[0].share,
        recent_share: observed_share(leg.chunk[1]),
        first_token_mean_ns: leg.first_token[0].sum.mean(),
        first_token_share: observed_share(leg.first_token[0]),
        recent_first_token_share: observed_share(leg.first_token[1]),
        busy: leg.busy,
        thread: (leg.kind == LegKind::Wait).then_some(leg.thread),
        on_cpu: is_sampled.then(|| leg.spent.share(leg.spent.on_ns)),
        run_wait: leg.spent.starved_ns().filter(|_| is_sampled).map(|ns| leg.spent.share(ns)),
        worker: leg.worker.clone(),
    }
}
