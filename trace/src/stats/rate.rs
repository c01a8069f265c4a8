//! Counts per second over the last ten seconds: the current second, and the ten before it.

use crate::clock::MonoNs;

const SECOND_NS: u64 = 1_000_000_000;
const SECONDS: usize = 11;
/// A shorter time since the first frame counts as this long, so that the first frames make no peak.
const SHORTEST_NS: u64 = SECOND_NS / 4;

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
    first_at: Option<MonoNs>,
}

impl Rate {
    /// Records one frame.
    pub fn record(&mut self, at: MonoNs, chunks: u64, tokens: u64, bytes: u64) {
        let second = at.0 / SECOND_NS;
        self.first_at.get_or_insert(at);
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

    /// Rates over the window before `now`, or since the first frame.
    pub fn recent(&self, now: MonoNs) -> PerSecond {
        let Some(first_at) = self.first_at else { return PerSecond::default() };
        let first_second = (now.0 / SECOND_NS).saturating_sub(SECONDS as u64 - 1);
        let begin = MonoNs(first_second * SECOND_NS).max(first_at);
        // A rate over a moment would be huge.
        let seconds = now.since(begin).max(SHORTEST_NS) as f64 / SECOND_NS as f64;
        let mut sums = SecondCounts::default();
        for counts in self.seconds.iter().filter(|counts| counts.second >= first_second) {
            sums.frames += counts.frames;
            sums.chunks += counts.chunks;
            sums.tokens += counts.tokens;
            sums.bytes += counts.bytes;
        }
        PerSecond {
            frames: sums.frames as f64 / seconds,
            chunks: sums.chunks as f64 / seconds,
            tokens: sums.tokens as f64 / seconds,
            bytes: sums.bytes as f64 / seconds,
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

    #[test]
    fn a_rate_counts_from_the_first_frame() {
        let mut rate = Rate::default();
        for tick in 0..30 {
            let at = MonoNs(7 * SECOND_NS + SECOND_NS * 7 / 10 + tick * SECOND_NS / 10);
            rate.record(at, 256, 512, 25_000);
            if tick >= 2 {
                let tokens = rate.recent(MonoNs(at.0 + SECOND_NS / 10)).tokens;
                assert!((tokens - 5120.0).abs() < 1e-6, "{tick}: {tokens}");
            }
        }
        let mut rate = Rate::default();
        rate.record(MonoNs(SECOND_NS), 1, 1, 1);
        assert!((rate.recent(MonoNs(SECOND_NS)).frames - 4.0).abs() < 1e-9);
    }
}
