//! Counts per second over the last ten seconds.

use crate::clock::MonoNs;

const SECOND_NS: u64 = 1_000_000_000;
const SECONDS: usize = 10;

/// A second, with its frames, chunks, tokens and bytes.
type Bucket = (u64, [u64; 4]);

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
    buckets: [Bucket; SECONDS],
    first: Option<u64>,
}

impl Rate {
    /// Records one frame.
    pub fn record(&mut self, at: MonoNs, chunks: u64, tokens: u64, bytes: u64) {
        let second = at.0 / SECOND_NS;
        self.first.get_or_insert(second);
        let bucket = &mut self.buckets[(second % SECONDS as u64) as usize];
        if bucket.0 != second {
            if bucket.0 > second {
                return;
            }
            *bucket = (second, [0; 4]);
        }
        for (sum, more) in bucket.1.iter_mut().zip([1, chunks, tokens, bytes]) {
            *sum += more;
        }
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
        let recent = self.buckets.iter().filter(|b| (from..running).contains(&b.0));
        let sums = recent.fold([0; 4], |sums: [u64; 4], b| std::array::from_fn(|n| sums[n] + b.1[n]));
        let [frames, chunks, tokens, bytes] = sums.map(|sum| sum as f64 / seconds as f64);
        PerSecond { frames, chunks, tokens, bytes }
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
