//! Correlation of long gaps with many states: Spearman's rank correlation, which needs no linear relation and no units.

/// Maximum number of pairs kept; beyond that, a uniform random sample.
const MAX_PAIRS: usize = 131_072;

/// With fewer pairs, no correlation is computed.
const MIN_PAIRS: usize = 3;

/// Correlation of two quantities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Correlation {
    /// Coefficient from -1 (one falls as the other rises) to 1 (they rise together).
    pub rho: f64,
    /// Number of requests where both are known.
    pub of: u64,
    /// Number of sampled requests.
    pub sampled: u64,
}

/// Multiplier of the linear congruential generator of random numbers, by Knuth.
const KNUTH_MULTIPLIER: u64 = 6_364_136_223_846_793_005;

#[derive(Debug, Default)]
pub(super) struct GapStatePairs {
    sample: Vec<GapState>,
    /// Number of pairs, including those not in the sample.
    seen: u64,
    random: u64,
}

/// Gap of a request, and the number of request states when its first token was received.
#[derive(Clone, Copy, Debug)]
struct GapState {
    gap_ns: u64,
    states: u32,
}

impl GapStatePairs {
    /// Adds a gap, in nanoseconds, and the number of states at its end. Beyond the limit, a random sample of all pairs is kept.
    pub(super) fn add_gap_with_states(&mut self, gap_ns: u64, states: u32) {
        self.seen += 1;
        if self.sample.len() < MAX_PAIRS {
            self.sample.push(GapState { gap_ns, states });
            return;
        }
        // Reservoir sampling: draws a random index below `seen`. The new pair replaces the pair at that index, or none if the index is
        // beyond the sample. All pairs are then kept with the same probability. The random numbers form a fixed sequence (see
        // [`KNUTH_MULTIPLIER`]), so that replaying a recording gives the same correlation.
        self.random = self.random.wrapping_mul(KNUTH_MULTIPLIER).wrapping_add(1);
        // The random number divided by 2^64 is a fraction below 1, which is multiplied by `seen`.
        let index = ((u128::from(self.random) * u128::from(self.seen)) >> 64) as usize;
        if let Some(pair) = self.sample.get_mut(index) {
            *pair = GapState { gap_ns, states };
        }
    }

    /// Rank correlation (Spearman's) between gaps and states. `None` if it is not defined.
    pub(super) fn rank_correlation(&self) -> Option<Correlation> {
        let gap_ranks = rank_values(self.sample.iter().map(|pair| pair.gap_ns));
        let state_ranks = rank_values(self.sample.iter().map(|pair| u64::from(pair.states)));
        let rho = pearson_correlation(&gap_ranks, &state_ranks)?;
        Some(Correlation { rho, of: self.seen, sampled: self.sample.len() as u64 })
    }
}

/// Rank of each value; equal values share their mean rank.
fn rank_values(values: impl Iterator<Item = u64>) -> Vec<f64> {
    let values: Vec<u64> = values.collect();
    let mut indices_by_value: Vec<usize> = (0..values.len()).collect();
    indices_by_value.sort_unstable_by_key(|&index| values[index]);
    let mut ranks = vec![0.0; values.len()];
    let mut first_rank = 0;
    for equal_values in indices_by_value.chunk_by(|&index, &next| values[index] == values[next]) {
        let mean_rank = first_rank as f64 + (equal_values.len() - 1) as f64 / 2.0;
        for &index in equal_values {
            ranks[index] = mean_rank;
        }
        first_rank += equal_values.len();
    }
    ranks
}

/// Pearson correlation of two lists of ranks; `None` with fewer than [`MIN_PAIRS`] pairs, or if all values of one side are equal.
fn pearson_correlation(gap_ranks: &[f64], state_ranks: &[f64]) -> Option<f64> {
    let pairs = gap_ranks.len();
    if pairs < MIN_PAIRS {
        return None;
    }
    // Ranks are 0 to `pairs - 1` and ties share their mean, so the overall mean is known.
    let mean = (pairs - 1) as f64 / 2.0;
    let mut covariance = 0.0;
    let mut gap_variance = 0.0;
    let mut state_variance = 0.0;
    for (gap_rank, state_rank) in gap_ranks.iter().zip(state_ranks) {
        covariance += (gap_rank - mean) * (state_rank - mean);
        gap_variance += (gap_rank - mean) * (gap_rank - mean);
        state_variance += (state_rank - mean) * (state_rank - mean);
    }
    let scale = (gap_variance * state_variance).sqrt();
    (scale > 0.0).then(|| (covariance / scale).clamp(-1.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(u64, u32)]) -> Option<f64> {
        let mut all = GapStatePairs::default();
        for &(gap, states) in pairs {
            all.add_gap_with_states(gap, states);
        }
        all.rank_correlation().map(|c| c.rho)
    }

    #[test]
    fn correlation_depends_on_ranks_only() {
        assert_eq!(of(&[(1, 1), (10, 2), (1_000_000, 3)]), Some(1.0));
        assert_eq!(of(&[(1, 9), (10, 5), (11, 1)]), Some(-1.0));
        assert_eq!(of(&[(1, 5), (2, 5), (3, 5)]), None, "constant states have no correlation");
        assert_eq!(of(&[(1, 1), (2, 2)]), None);
        // By hand: ranks 0 1 2 3 4 against 1 0 3 2 4, rho = 1 - 6 * 4 / (5 * 24).
        let rho = of(&[(1, 20), (2, 10), (3, 40), (4, 30), (5, 50)]).unwrap();
        assert!((rho - 0.8).abs() < 1e-12, "{rho}");
    }

    #[test]
    fn ties_share_a_rank() {
        assert_eq!(rank_values([7, 3, 7, 1].into_iter()), [2.5, 1.0, 2.5, 0.0]);
    }

    #[test]
    fn pairs_over_the_limit_are_sampled_and_counted() {
        let mut all = GapStatePairs::default();
        for n in 0..2 * MAX_PAIRS as u64 {
            all.add_gap_with_states(n, n as u32);
        }
        let found = all.rank_correlation().unwrap();
        assert_eq!((found.of, found.sampled), (2 * MAX_PAIRS as u64, MAX_PAIRS as u64));
        assert!(found.rho > 0.999);
        let late = all.sample.iter().filter(|pair| pair.gap_ns >= MAX_PAIRS as u64).count();
        assert!(late.abs_diff(MAX_PAIRS / 2) < MAX_PAIRS / 20, "{late} of the later half");
    }
}
