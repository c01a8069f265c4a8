//! Attribution of time in the report.

use serde::{Deserialize, Serialize};
use trace::detect::attribution::{Attribution, Leg, LegKind, LegTime, ThreadState};

use trace::stats::Spread;

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
    pub(super) fn thread_text(&self) -> &'static str {
        match (self.thread, self.kind) {
            (Some(state), _) => state.as_str(),
            (None, LegKind::Inside) => "no frame waits",
            (None, _) => "not observed",
        }
    }
}

fn observed_share(time: LegTime) -> Option<f64> {
    (time.sum.count > 0).then_some(time.share)
}

fn line(leg: &Leg<'_>) -> LegLine {
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
        worker: leg.worker.clone(),
    }
}
