//! Thresholds that several detectors or the screen share. One that only a single detector reads is a constant in its file.

use super::Severity;
pub(crate) use crate::ledger::{BACKLOG_FRAMES, BURST_FRAMES};
pub use crate::ledger::{GAP_WARNING_NS, LATE_NS};

const SECOND: u64 = 1_000_000_000;

/// Wait of a first token between scheduler and tokenizer that is critical, in nanoseconds.
pub const GAP_CRITICAL_NS: u64 = 5 * SECOND;
/// Backlog that is critical, in frames.
pub const BACKLOG_CRITICAL_FRAMES: u64 = 1_000;
/// Share of that wait on a CPU that makes a thread CPU-bound.
pub(crate) const CPU_BOUND_SHARE: f64 = 0.8;
/// Share of that wait spent waiting for a CPU that makes a thread starved.
pub(crate) const STARVED_SHARE: f64 = 0.25;
/// Share of that wait held back by a quota that makes a thread throttled.
pub(crate) const THROTTLED_SHARE: f64 = 0.1;
/// Silence of an unfinished request after its first chunk that makes it stalled, in nanoseconds.
pub const STALLED_NS: u64 = 30 * SECOND;

/// Severity of tokens that wait this long; `None` if it is not worth a finding.
pub(crate) fn gap_severity(wait_ns: u64) -> Option<Severity> {
    match wait_ns {
        GAP_CRITICAL_NS.. => Some(Severity::Critical),
        GAP_WARNING_NS.. => Some(Severity::Warning),
        _ => None,
    }
}
