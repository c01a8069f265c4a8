//! Metadata at the beginning and end of a recording.

use serde::{Deserialize, Serialize};

use trace::clock::Anchor;
use trace::{Config, ReportInput};

/// Recorded part of a chunk's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordedPayload {
    /// Numbers of token ids only.
    #[default]
    Lengths,
    /// Token ids.
    Tokens,
}

/// Metadata at the beginning of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordingHeader {
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
    pub payload: RecordedPayload,
    /// Number of this file in a recording of several files (0-based).
    #[serde(default)]
    pub part: u32,
}

impl RecordingHeader {
    /// Header of a recording that starts now, without token ids.
    pub fn for_source(source: &str, config: Config) -> Self {
        Self {
            tokengap: env!("CARGO_PKG_VERSION").to_owned(),
            source: source.to_owned(),
            config,
            anchor: Anchor::now(),
            payload: RecordedPayload::Lengths,
            // The first file of the recording.
            part: 0,
        }
    }
}

/// Last section before the index: why the file ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct EndSection {
    pub(super) why: EndReason,
    /// Records dropped because the queue was full.
    pub(super) dropped: u64,
    pub(super) closing: Option<ReportInput>,
}

/// Reason why a file ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum EndReason {
    /// The run ended.
    Finished,
    /// The recording continues in the next file.
    Rotated,
    /// The file reached its size limit.
    Full,
    /// The file is a copy of a ring.
    Dumped,
}
