//! Block bootstrap: confidence interval of a change of means. Resampling in blocks keeps neighbouring slots together.

/// Small generator (splitmix64): the same seed gives the same interval on every machine.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Next number from 0 to 1.
    #[cfg(test)]
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// 99 % interval of the change of the mean from `a` to `b`; `None` if either is empty.
pub(super) fn interval(a: &[f64], b: &[f64], resamples: usize, seed: u64) -> Option<[f64; 2]> {
    if a.is_empty() || b.is_empty() || resamples == 0 {
        return None;
    }
    let mut random = Random::new(seed);
    let mut changes: Vec<f64> = (0..resamples).map(|_| redrawn(b, &mut random) - redrawn(a, &mut random)).collect();
    changes.sort_by(f64::total_cmp);
    let at = |share: f64| changes[((changes.len() - 1) as f64 * share).round() as usize];
    Some([at(0.005), at(0.995)])
}

/// Mean of a resample of the same size, in circular blocks of about the cube root of that size.
fn redrawn(values: &[f64], random: &mut Random) -> f64 {
    let block = (values.len() as f64).cbrt().ceil() as usize;
    let (mut sum, mut drawn) = (0.0, 0);
    while drawn < values.len() {
        let from = random.below(values.len());
        for n in 0..block.min(values.len() - drawn) {
            sum += values[(from + n) % values.len()];
            drawn += 1;
        }
    }
    sum / drawn as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_contains_the_change_and_is_deterministic() {
        let a: Vec<f64> = (0..30).map(|n| 100.0 + f64::from(n * 7 % 10)).collect();
        let b: Vec<f64> = a.iter().map(|v| v + 20.0).collect();
        let [low, high] = interval(&a, &b, 2_000, 1).expect("there is one");
        assert!(low > 10.0 && low < 20.0 && high > 20.0 && high < 30.0, "{low} {high}");
        assert_eq!(interval(&a, &b, 2_000, 1), Some([low, high]));
        assert_eq!(interval(&a, &[], 2_000, 1), None);
    }
}
