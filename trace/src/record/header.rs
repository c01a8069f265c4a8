//! Metadata at the beginning and end of a recording.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Config;
use crate::clock::{MonoNs, wall_ns};
use crate::report::{ReportInput, SamplingCost};

/// One instant on both clocks. Relates a capture to log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// Time on the clock of all events.
    pub mono: MonoNs,
    /// Nanoseconds since the Unix epoch.
    pub wall_ns: u64,
}

impl Anchor {
    /// Reads both clocks.
    pub fn now() -> Self {
        Self { mono: MonoNs::now(), wall_ns: wall_ns() }
    }

    /// Wall-clock time of an instant, in nanoseconds since the Unix epoch. Assumes that both clocks ran alike since the anchor.
    pub fn wall_ns_at(self, mono: MonoNs) -> u64 {
        self.wall_ns.wrapping_add(mono.0.wrapping_sub(self.mono.0))
    }
}

/// Recorded part of a chunk's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Payload {
    /// Numbers of token ids only.
    #[default]
    Lengths,
    /// Token ids.
    Tokens,
}

/// Metadata at the beginning of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of tokengap that wrote it.
    pub tokengap: String,
    /// Source of the events: `demo`, `tap`, `attach`, `import`.
    pub source: String,
    /// Limits of the live analysis. A replay with the same ones produces the same report.
    #[serde(default)]
    pub config: Config,
    /// Both clocks at the start.
    pub anchor: Anchor,
    /// Whether it contains token ids.
    #[serde(default)]
    pub payload: Payload,
    /// Number of this file in a recording of several files (0-based).
    #[serde(default)]
    pub part: u32,
}

impl Header {
    /// Header of a recording that starts now, without token ids.
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

/// Data known at the end of the run that a report needs in addition to the events. `None`: not observable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Closing {
    /// Codecs and schemas seen on the wire.
    pub wire: Option<Value>,
    /// Targets that could not be attached, or were lost.
    pub degraded: Vec<Value>,
    /// Both clocks at the time of the report.
    pub wall: Option<Anchor>,
    /// Cost of stack sampling.
    pub sampling: Option<SamplingCost>,
    /// Ground truth of a demo.
    pub demo: Option<Value>,
    /// CPU time used by tokengap, in nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Resident memory of tokengap, in bytes.
    pub rss_bytes: Option<u64>,
    /// Number of slowest requests listed in the run's report.
    pub slowest: Option<usize>,
}

impl Closing {
    /// Closing data from `input`, without its source.
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

    /// Report input for a recording of `source`.
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

/// Last section before the index: why the file ends.
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
    /// The run ended.
    Finished,
    /// The recording continues in the next file.
    Rotated,
    /// The file reached its size limit.
    Full,
    /// The file is a copy of a ring.
    Dumped,
}
