//! Counts per second over the last ten seconds.

use crate::clock::MonoNs;

const SECOND_NS: u64 = 1_000_000_000;
const SECONDS: usize = 10;

#[derive(Clone, Copy, Debug, Default)]
struct SecondCounts {
    second: u64,
    frames: u64,
    chunks: u64,
    tokens: u64,
    bytes: u64,
}

/// Traffic per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PerSecond {
    /// Frames.
    pub frames: f64,
    /// Chunks.
    pub chunks: f64,
    /// Tokens.
    pub tokens: f64,
    /// Bytes.
    pub bytes: f64,
}

/// A ring of one-second buckets.
#[derive(Clone, Debug, Default)]
pub struct Rate {
    seconds: [SecondCounts; SECONDS],
    first_second: Option<u64>,
}

impl Rate {
    /// Records one frame.
    pub fn record(&mut self, at: MonoNs, chunks: u64, tokens: u64, bytes: u64) {
        let second = at.0 / SECOND_NS;
        self.first_second.get_or_insert(second);
        let counts = &mut self.seconds[(second % SECONDS as u64) as usize];
        if counts.second > second {
            // A late frame: the ring has a newer second here.
            return;
        }
        if counts.second < second {
            *counts = SecondCounts { second, ..SecondCounts::default() };
        }
        counts.frames += 1;
        counts.chunks += chunks;
        counts.tokens += tokens;
        counts.bytes += bytes;
    }

    /// Rates over the whole seconds of the window before `now`, without the current second.
    pub fn recent(&self, now: MonoNs) -> PerSecond {
        let current = now.0 / SECOND_NS;
        let Some(first) = self.first_second else {
            return PerSecond::default();
        };
        let from = current.saturating_sub(SECONDS as u64 - 1).max(first);
        let seconds = current.saturating_sub(from);
        if seconds == 0 {
            return PerSecond::default();
        }
        let mut sums = SecondCounts::default();
        for counts in self.seconds.iter().filter(|counts| (from..current).contains(&counts.second)) {
            sums.frames += counts.frames;
            sums.chunks += counts.chunks;
            sums.tokens += counts.tokens;
            sums.bytes += counts.bytes;
        }
        PerSecond {
            frames: sums.frames as f64 / seconds as f64,
            chunks: sums.chunks as f64 / seconds as f64,
            tokens: sums.tokens as f64 / seconds as f64,
            bytes: sums.bytes as f64 / seconds as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_a_steady_stream_is_exact_and_of_a_stopped_one_zero() {
        let mut rate = Rate::default();
        for tick in 0..200 {
            rate.record(MonoNs(tick * SECOND_NS / 10), 256, 256, 25_000);
        }
        let now = rate.recent(MonoNs(20 * SECOND_NS));
        assert!((now.frames - 10.0).abs() < 1e-9 && (now.chunks - 2560.0).abs() < 1e-9, "{now:?}");
        assert_eq!(rate.recent(MonoNs(40 * SECOND_NS)), PerSecond::default());
    }
}
