//! Counts per second over the last ten seconds.

use serde::{Deserialize, Serialize};

use crate::clock::MonoNs;

const SECOND_NS: u64 = 1_000_000_000;
const SECONDS: usize = 10;

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Bucket {
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
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Rate {
    buckets: [Bucket; SECONDS],
    first: Option<u64>,
}

impl Rate {
    /// Records one frame.
    pub fn record(&mut self, at: MonoNs, chunks: u64, tokens: u64, bytes: u64) {
        let second = at.0 / SECOND_NS;
        self.first.get_or_insert(second);
        let bucket = &mut self.buckets[(second % SECONDS as u64) as usize];
        if bucket.second != second {
            if bucket.second > second {
                return;
            }
            *bucket = Bucket { second, ..Bucket::default() };
        }
        bucket.frames += 1;
        bucket.chunks += chunks;
        bucket.tokens += tokens;
        bucket.bytes += bytes;
    }

    /// Rates over the whole seconds of the window before `now`, without the current second.
    pub fn recent(&self, now: MonoNs) -> PerSecond {
        let running = now.0 / SECOND_NS;
        let Some(first) = self.first else {
            return PerSecond::default();
        };
        let from = running.saturating_sub(SECONDS as u64 - 1).max(first);
        let seconds = running.saturating_sub(from);
        if seconds == 0 {
            return PerSecond::default();
        }
        let mut sum = Bucket::default();
        for b in self.buckets.iter().filter(|b| (from..running).contains(&b.second)) {
            sum.frames += b.frames;
            sum.chunks += b.chunks;
            sum.tokens += b.tokens;
            sum.bytes += b.bytes;
        }
        let per = |n: u64| n as f64 / seconds as f64;
        PerSecond { frames: per(sum.frames), chunks: per(sum.chunks), tokens: per(sum.tokens), bytes: per(sum.bytes) }
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
