//! Thresholds of the detectors.

use serde::{Deserialize, Serialize};

use super::Severity;

/// The thresholds of all detectors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Thresholds {
    /// Wait of a first token between scheduler and tokenizer that causes a warning, in nanoseconds.
    pub gap_warning_ns: u64,
    /// Wait that is critical, in nanoseconds.
    pub gap_critical_ns: u64,
    /// Number of tokens missing on the wire that makes the loss critical.
    pub wire_loss_critical_tokens: u64,
    /// Share of dropped chunks that makes confirmed drops critical.
    pub drops_critical_share: f64,
    /// Share of merged chunks that causes a warning.
    pub merged_warning_share: f64,
    /// Minimum size of a growing backlog, in frames.
    pub backlog_frames: u64,
    /// Seconds during which the backlog must not have fallen.
    pub backlog_seconds: usize,
    /// Backlog that is critical, in frames.
    pub backlog_critical_frames: u64,
    /// Minimum wait of the oldest frame to judge a consumer or a backlog, in nanoseconds.
    pub late_ns: u64,
    /// Share of that wait on a CPU that makes a thread CPU-bound.
    pub consumer_busy_share: f64,
    /// Share of that wait runnable without a CPU that makes a thread starved.
    pub starved_share: f64,
    /// Share of that wait held back by a quota that makes a thread throttled.
    pub throttled_share: f64,
    /// Frames in one wakeup that make a burst.
    pub burst_frames: u64,
    /// Ratio of the busiest worker's chunks to the mean of its line that makes the load uneven.
    pub imbalance: f64,
    /// Minimum number of chunks on a line to judge the load of its workers.
    pub imbalance_chunks: u64,
    /// Silence of an unfinished request after its first chunk that makes it stalled, in nanoseconds.
    pub stalled_ns: u64,
    /// Share of undecoded frames that causes a warning.
    pub undecoded_warning_share: f64,
    /// Share that is critical, because the rest of the report cannot be trusted.
    pub undecoded_critical_share: f64,
}

impl Thresholds {
    /// Severity of tokens that wait this long; `None` if it is not worth a finding.
    pub(super) fn gap_severity(&self, ns: u64) -> Option<Severity> {
        match ns {
            _ if ns >= self.gap_critical_ns => Some(Severity::Critical),
            _ if ns >= self.gap_warning_ns => Some(Severity::Warning),
            _ => None,
        }
    }
}

impl Default for Thresholds {
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        Self {
            gap_warning_ns: SECOND,
            gap_critical_ns: 5 * SECOND,
            wire_loss_critical_tokens: 16,
            drops_critical_share: 0.001,
            merged_warning_share: 0.05,
            backlog_frames: 64,
            backlog_seconds: 3,
            backlog_critical_frames: 1_000,
            late_ns: SECOND / 4,
            consumer_busy_share: 0.8,
            starved_share: 0.25,
            throttled_share: 0.1,
            burst_frames: 8,
            imbalance: 1.5,
            imbalance_chunks: 1_000,
            stalled_ns: 30 * SECOND,
            undecoded_warning_share: 0.001,
            undecoded_critical_share: 0.05,
        }
    }
}
