//! A backlog of frames from the time at which it began to grow until few frames wait.

use super::BACKLOG_FRAMES;
use crate::clock::MonoNs;
use crate::stats::Trend;

/// Seconds during which a backlog must not have fallen to count as growing.
pub(crate) const MIN_RISING_SECONDS: usize = 3;

/// Where a backlog began to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BacklogRise {
    /// Last time at which it was as small as at the start.
    pub(crate) since: MonoNs,
    /// Frames that waited then.
    pub(crate) from: u64,
}

/// Frames that wait on the hops of one name, since fewer than [`BACKLOG_FRAMES`] waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BacklogCourse {
    /// Start of the first growth of three seconds; `None` before one.
    pub(crate) rise: Option<BacklogRise>,
    /// Most frames at one time.
    pub(crate) peak: u64,
    /// Time of the peak.
    pub(crate) peak_at: MonoNs,
    /// Longest wait of a frame that was received.
    pub(crate) longest_wait_ns: u64,
}

impl BacklogCourse {
    /// Records that a frame was sent, after which `frames` wait.
    pub(crate) fn record_sent(&mut self, at: MonoNs, frames: u64) {
        if frames > self.peak {
            self.peak = frames;
            self.peak_at = at;
        }
    }

    /// Records that a frame was received, after which `frames` wait.
    pub(crate) fn record_received(&mut self, at: MonoNs, frames: u64, wait_ns: u64) {
        if frames < BACKLOG_FRAMES {
            // The backlog is over; a new one begins with these frames.
            *self = Self { peak: frames, peak_at: at, ..Self::default() };
        } else {
            self.longest_wait_ns = self.longest_wait_ns.max(wait_ns);
        }
    }

    /// Records the number of frames that wait at a tick. The first long rise of `trend`, the trend of that number, is kept.
    pub(crate) fn record_tick(&mut self, now: MonoNs, frames: u64, trend: &Trend) {
        if frames < BACKLOG_FRAMES {
            // Frames may also leave without an observed receive.
            *self = Self { peak: frames, peak_at: now, ..Self::default() };
            return;
        }
        if self.rise.is_some() {
            return;
        }
        let Some(rise) = trend.rising_span() else { return };
        if rise.seconds >= MIN_RISING_SECONDS && rise.to >= BACKLOG_FRAMES {
            self.rise = Some(BacklogRise { since: rise.since, from: rise.from });
        }
    }
}
