//! What counts as too much.

use serde::{Deserialize, Serialize};

/// The thresholds of all detectors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Thresholds {
    /// A first token that waits this long between scheduler and tokenizer deserves a warning, in nanoseconds.
    pub gap_warning_ns: u64,
    /// And this long is critical, in nanoseconds.
    pub gap_critical_ns: u64,
    /// Missing tokens on the wire from which on the loss is critical.
    pub wire_loss_critical_tokens: u64,
    /// Share of delivered chunks from which on confirmed drops are critical.
    pub drops_critical_share: f64,
    /// Share of chunks from which on merged deliveries deserve a warning.
    pub coalesced_warning_share: f64,
    /// Frames that a growing backlog must have reached.
    pub backlog_frames: u64,
    /// Seconds over which it must not have fallen.
    pub backlog_seconds: usize,
    /// Backlog from which on it is critical, in frames.
    pub backlog_critical_frames: u64,
    /// A consumer, or a backlog, is judged while its oldest frame has waited this long, in nanoseconds.
    pub late_ns: u64,
    /// Share of that time on a CPU from which on its own work is the limit.
    pub consumer_busy_share: f64,
    /// Share of it runnable without a CPU from which on a thread is starved.
    pub starved_share: f64,
    /// Share of it held back by a quota from which on it is throttled.
    pub throttled_share: f64,
    /// Frames in one wakeup that make a burst.
    pub burst_frames: u64,
    /// Chunks of a line's busiest worker over the mean of all from which on the load is uneven.
    pub imbalance: f64,
    /// Chunks that the workers of a line must have had before their load is judged.
    pub imbalance_chunks: u64,
    /// A request that has begun and neither gone on nor finished for this long is stalled, in nanoseconds.
    pub stalled_ns: u64,
    /// Share of undecoded frames from which on it deserves a warning.
    pub undecoded_warning_share: f64,
    /// And from which on nothing else in the report is to be trusted.
    pub undecoded_critical_share: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        Self {
            gap_warning_ns: SECOND,
            gap_critical_ns: 5 * SECOND,
            wire_loss_critical_tokens: 16,
            drops_critical_share: 0.001,
            coalesced_warning_share: 0.05,
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
