//! Seeded random numbers: the same seed gives the same requests on every machine and release of tokengap.

use std::f64::consts::TAU;

/// `SplitMix64` (Steele, Lea and Flood, 2014): small, fast, and good enough for drawing lengths and ids.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Creates an independent stream, so that a peer's draws do not depend on those of other peers.
    pub(super) fn fork(&mut self) -> Self {
        Self(self.next_u64())
    }

    /// Next number of the generator `SplitMix64`, which also gives the constants.
    pub(super) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws a number that is uniform in `[0, 1)`.
    pub(super) fn draw_unit(&mut self) -> f64 {
        // An `f64` holds 53 bits exactly, so the other 11 of the 64 are dropped.
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Draws a number that is uniform in `low..=high`.
    pub(super) fn draw_between(&mut self, low: u32, high: u32) -> u32 {
        low + (self.draw_unit() * f64::from(high - low + 1)) as u32
    }

    /// Returns true with this probability.
    pub(super) fn draw_chance(&mut self, probability: f64) -> bool {
        self.draw_unit() < probability
    }

    /// Draws the waiting time to the next event of a Poisson process. `mean` is the mean interval, and gives the unit.
    pub(super) fn draw_wait(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.draw_unit()).ln()
    }

    /// Draws a number that is log-normal around `median`, like lengths of prompts and answers.
    pub(super) fn draw_log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        // Box-Muller transform: two uniform numbers give a normal one.
        let normal = (-2.0 * (1.0 - self.draw_unit()).ln()).sqrt() * (TAU * self.draw_unit()).cos();
        median * (sigma * normal).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_gives_the_reference_sequence() {
        let mut random = Random::new(1_234_567);
        let drawn: [u64; 3] = std::array::from_fn(|_| random.next_u64());
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn draws_stay_in_range_and_have_the_expected_average() {
        let mut random = Random::new(7);
        let mut lengths: Vec<f64> = (0..10_001).map(|_| random.draw_log_normal(100.0, 0.8)).collect();
        lengths.sort_by(f64::total_cmp);
        assert!((90.0..110.0).contains(&lengths[5000]), "median {}", lengths[5000]);
        let waits: f64 = (0..10_000).map(|_| random.draw_wait(2.0)).sum();
        assert!((1.9..2.1).contains(&(waits / 10_000.0)), "mean {}", waits / 10_000.0);
        assert!((0..1000).all(|_| (3..=5).contains(&random.draw_between(3, 5))));
    }
}
