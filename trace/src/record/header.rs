//! Metadata at the beginning and end of a recording.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Config;
use crate::clock::{MonoNs, wall_ns};
use crate::report::{ReportInput, SamplingCost};

/// One instant on both clocks: ties a capture to log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// On the clock of all events.
    pub mono: MonoNs,
    /// Nanoseconds since the Unix epoch.
    pub wall_ns: u64,
}

impl Anchor {
    /// Both clocks, now.
    pub fn now() -> Self {
        Self {
            mono: MonoNs::now(),
            wall_ns: wall_ns(),
        }
    }

    /// The wall clock's time of an instant, in nanoseconds since the Unix epoch, if both clocks ran alike since the anchor.
    pub fn wall_ns_at(self, mono: MonoNs) -> u64 {
        self.wall_ns.wrapping_add(mono.0.wrapping_sub(self.mono.0))
    }
}

/// Recorded part of a chunk's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Payload {
    /// How many ids, not which.
    #[default]
    Lengths,
    /// The token ids themselves.
    Tokens,
}

/// Metadata at the beginning of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of tokengap that wrote it.
    pub tokengap: String,
    /// Where the events came from: `demo`, `tap`, `attach`, `import`.
    pub source: String,
    /// The limits and thresholds of the analysis beside it: with the same ones its replay comes to the same report.
    #[serde(default)]
    pub config: Config,
    /// Both clocks when it began.
    pub anchor: Anchor,
    /// Whether it holds token ids.
    #[serde(default)]
    pub payload: Payload,
    /// Of a recording in several files, which this is; the first is 0.
    #[serde(default)]
    pub part: u32,
}

impl Header {
    /// Of a recording that begins now, without token ids.
    pub fn of(source: &str, config: Config) -> Self {
        Self {
            tokengap: env!("CARGO_PKG_VERSION").to_owned(),
            source: source.to_owned(),
            config,
            anchor: Anchor::now(),
            payload: Payload::Lengths,
            part: 0,
        }
    }
}

/// Data that a report needs besides the events, known at the end of the run. `None` means not observable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Closing {
    /// Codecs and schemas seen on the wire.
    pub wire: Option<Value>,
    /// Targets that could not be attached or were given up.
    pub degraded: Vec<Value>,
    /// Both clocks when the report was made.
    pub wall: Option<Anchor>,
    /// Cost of reading stacks.
    pub sampling: Option<SamplingCost>,
    /// The demo's own truth.
    pub demo: Option<Value>,
    /// CPU time that observing took, in nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Memory it held.
    pub rss_bytes: Option<u64>,
    /// Requests that the run's report listed as the slowest.
    pub slowest: Option<usize>,
}

impl Closing {
    /// What `input` says beside its source's kind.
    pub fn of(input: &ReportInput) -> Self {
        Self {
            wire: input.wire.clone(),
            degraded: input.degraded.clone(),
            wall: input.wall.map(|(mono, wall_ns)| Anchor { mono, wall_ns }),
            sampling: input.sampling,
            demo: input.demo.clone(),
            cpu_ns: input.cpu_ns,
            rss_bytes: input.rss_bytes,
            slowest: Some(input.slowest),
        }
    }

    /// The input of a report on a recording of `source`.
    pub fn input(&self, source: &str) -> ReportInput {
        let of = ReportInput::of(source);
        ReportInput {
            slowest: self.slowest.unwrap_or(of.slowest),
            cpu_ns: self.cpu_ns,
            rss_bytes: self.rss_bytes,
            degraded: self.degraded.clone(),
            wire: self.wire.clone(),
            wall: self.wall.map(|anchor| (anchor.mono, anchor.wall_ns)),
            sampling: self.sampling,
            demo: self.demo.clone(),
            ..of
        }
    }
}

/// The last section before the index: why the file ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) why: Why,
    /// Records dropped because the queue was full.
    pub(super) dropped: u64,
    pub(super) closing: Option<Closing>,
}

/// Why a file ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Why {
    /// The run was over.
    Finished,
    /// The next file goes on.
    Rotated,
    /// The file had reached its largest size.
    Full,
    /// It is the copy of a ring.
    Dumped,
}
