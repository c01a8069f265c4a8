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
        let Some(state) = self.thread else {
            // Inside a process, no frame waits for it.
            let is_inside = self.kind == LegKind::Inside;
            return String::from(if is_inside { "no frame waits" } else { "not observed" });
        };
        match self.on_cpu {
            // No state has most of the time, so the share says more.
            Some(running) if state == ThreadState::PartlyRunning => format!("runs {}", percent(running)),
            _ => state.as_str().to_owned(),
        }
    }
}

fn observed_share(time: LegTime) -> Option<f64> {
    (time.sum.count > 0).then_some(time.share)
}

fn line(leg: &Leg<'_>) -> LegLine {
    // Without a sample of the thread, its shares are unknown.
    let sampled = if leg.spent.interval_ns > 0 { Some(&leg.spent) } else { None };
    let [chunk, recent_chunk] = leg.chunk;
    let [first_token, recent_first_token] = leg.first_token;
    LegLine {
        name: leg.name.to_owned(),
        kind: leg.kind,
        ns: Spread::of_distribution(leg.spread),
        mean_ns: chunk.sum.mean().unwrap_or(0),
        share: chunk.share,
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
