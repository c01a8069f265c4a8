//! Mann-Whitney U test over slots, with a smaller effective sample size if neighbouring slots correlate. It gives the p-value and, as the
//! shifts that it does not reject (Hodges and Lehmann), the interval of the change: the two cannot contradict each other.

/// The test of two samples.
pub(super) struct MannWhitney {
    /// `b - a` of every pair of slots, in order.
    differences: Vec<f64>,
    /// Standard deviation of U between equal runs.
    deviation: f64,
}

impl MannWhitney {
    /// Prepares the Mann-Whitney U test of whether `b` differs from `a`. Compares each value of one sample with each of the other. A value
    /// is that of one slot, a short span of a run.
    pub(super) fn of_samples(a: &[f64], b: &[f64]) -> Self {
        // U is the number of positive differences. The median of all differences estimates the shift.
        let mut differences: Vec<f64> =
            a.iter().flat_map(|value_a| b.iter().map(move |value_b| value_b - value_a)).collect();
        differences.sort_by(f64::total_cmp);
        // Consecutive slots correlate, for example while a backlog grows. Fewer independent slots have a larger variance.
        let variance = variance_of_u_without_dependence(a, b) / share_of_independent_values_in_both(a, b);
        Self { differences, deviation: variance.sqrt() }
    }

    /// Two-sided p-value, corrected for ties, that both samples have the same distribution; 1 if either is empty or all values are equal.
    pub(super) fn p_value(&self) -> f64 {
        // Half the difference of both counts is the distance of U from its mean.
        let below = self.differences.partition_point(|difference| *difference < 0.0);
        let above = self.differences.len() - self.differences.partition_point(|difference| *difference <= 0.0);
        // Continuity correction, since U is discrete.
        let distance = (below.abs_diff(above) as f64 / 2.0 - 0.5).max(0.0);
        if self.deviation > 0.0 { two_sided_tail(distance / self.deviation) } else { 1.0 }
    }

    /// Smallest and largest shift from `a` to `b` that the test does not reject at `level`; `None` if the samples are too small to reject
    /// any.
    pub(super) fn shift_interval(&self, level: f64) -> Option<[f64; 2]> {
        let median_index = (self.differences.len() as f64 - 1.0) / 2.0;
        // Distance of U from its mean at which the test rejects. The ends of the interval are so many differences away from the median.
        let rejection_distance = z_with_two_sided_tail(level) * self.deviation;
        let rejects_any = rejection_distance <= median_index;
        if !rejects_any {
            return None;
        }
        let low_index = (median_index - rejection_distance) as usize;
        let high_index = self.differences.len() - 1 - low_index;
        Some([self.differences[low_index], self.differences[high_index]])
    }
}

/// Variance of U with ties between two equal runs whose slots do not depend on each other, by the normal approximation.
fn variance_of_u_without_dependence(a: &[f64], b: &[f64]) -> f64 {
    let count_a = a.len() as f64;
    let count_b = b.len() as f64;
    let count = count_a + count_b;
    let ties = tie_correction(a, b) / (count * (count - 1.0)).max(1.0);
    let variance = count_a * count_b / 12.0 * (count + 1.0 - ties);
    variance.max(0.0)
}

/// Share of the slots of both samples that count as independent evidence: the mean of their own shares, weighted by their sizes.
fn share_of_independent_values_in_both(a: &[f64], b: &[f64]) -> f64 {
    let count_a = a.len() as f64;
    let count_b = b.len() as f64;
    (share_of_independent_values(a) * count_a + share_of_independent_values(b) * count_b) / (count_a + count_b)
}

/// Sum of `t^3 - t` over the groups of equal values, each with `t` values. Equal values have no order, which lowers the variance of U.
fn tie_correction(a: &[f64], b: &[f64]) -> f64 {
    let mut all = [a, b].concat();
    all.sort_by(f64::total_cmp);
    let groups = all.chunk_by(|value, next| value.total_cmp(next).is_eq());
    groups.map(|equal| (equal.len() as f64).powi(3) - equal.len() as f64).sum()
}

/// Share of the slots that count as independent evidence, since correlated neighbours repeat each other.
fn share_of_independent_values(values: &[f64]) -> f64 {
    // The standard formula for a series whose neighbours correlate by rho (AR(1)). A drift in one direction looks like correlation. So rho
    // is limited to 0.5, and the share is at least a third.
    let rho = correlation_of_neighbours(values).clamp(0.0, 0.5);
    (1.0 - rho) / (1.0 + rho)
}

/// Correlation between neighbouring values, from -1 to 1.
fn correlation_of_neighbours(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let neighbours = values.iter().zip(values.iter().skip(1));
    let joint: f64 = neighbours.map(|(value, next)| (value - mean) * (next - mean)).sum();
    // Small samples underestimate the correlation by about 1/n.
    if variance > 0.0 { joint / variance + 1.0 / count } else { 0.0 }
}

/// Two-sided tail probability of the normal distribution beyond `z` (Abramowitz and Stegun 7.1.26, error below 1.5e-7).
fn two_sided_tail(z: f64) -> f64 {
    // The tail is erfc(x), which a polynomial in t times e^(-x^2) approximates.
    let x = z / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    // Coefficients of the powers of t, the highest first.
    let mut polynomial = 0.0;
    for coefficient in [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592] {
        polynomial = (polynomial + coefficient) * t;
    }
    (polynomial * (-x * x).exp()).clamp(0.0, 1.0)
}

/// The `z` beyond which the two-sided tail probability of the normal distribution is `p`. Inverts [`two_sided_tail`] by bisection.
fn z_with_two_sided_tail(p: f64) -> f64 {
    let mut low = 0.0;
    // The tail beyond 10 standard deviations is smaller than any level in use.
    let mut high = 10.0;
    // Each step halves the interval. After 60 steps it is smaller than the precision of the result.
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if two_sided_tail(middle) > p { low = middle } else { high = middle }
    }
    high
}

/// Largest p-value that counts as a change (Benjamini-Hochberg). If nothing changed, `alpha` is the probability that any measure has such a
/// p-value.
pub(super) fn significance_level(mut p_values: Vec<f64>, alpha: f64) -> f64 {
    p_values.sort_by(f64::total_cmp);
    let count = p_values.len().max(1) as f64;
    // The level of a p-value grows with its rank. The largest p-value that is within its level decides for all smaller ones.
    for (index, p) in p_values.iter().enumerate().rev() {
        let level = alpha * (index + 1) as f64 / count;
        if *p <= level {
            return level;
        }
    }
    // No p-value is small enough. The level is that of the smallest one, which exceeds it.
    alpha / count
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn p(a: &[f64], b: &[f64]) -> f64 {
        MannWhitney::of_samples(a, b).p_value()
    }

    #[test]
    fn p_values_match_known_results() {
        assert!((two_sided_tail(1.959_964) - 0.05).abs() < 1e-6);
        assert!((two_sided_tail(0.0) - 1.0).abs() < 1e-6);
        assert!((z_with_two_sided_tail(0.05) - 1.959_964).abs() < 1e-5);
        // The tortoise and hare example of Wikipedia (U = 11 of 36), by the normal approximation with continuity correction.
        let known = p(&[1.0, 7.0, 8.0, 9.0, 10.0, 11.0], &[2.0, 3.0, 4.0, 5.0, 6.0, 12.0]);
        assert!((0.2..0.8).contains(&known), "{known}");
        assert!((p(&[3.0; 9], &[3.0; 9]) - 1.0).abs() < 1e-9);
    }

    /// For equal runs, the rate of reported differences stays near the level of 5 %; about twice that with correlated neighbours.
    #[test]
    fn equal_runs_rarely_differ_significantly() {
        for (carried, max) in [(0.0, 6), (0.6, 11)] {
            let (mut state, mut different, tries) = (7_u64, 0, 2_000);
            for _ in 0..tries {
                let mut last = 0.0;
                let mut walk = || {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    last = carried * last + (state >> 33) as f64 / (1_u64 << 31) as f64 - 0.5;
                    last
                };
                let values: Vec<f64> = (0..40).map(|_| walk()).collect();
                different += usize::from(p(&values[..20], &values[20..]) < 0.05);
            }
            assert!(different <= tries * max / 100, "{different} of {tries} at {carried}");
        }
    }

    #[test]
    fn different_values_are_distinguished() {
        let a: Vec<f64> = (0..30).map(|n| 100.0 + f64::from(n * 7 % 10)).collect();
        let b: Vec<f64> = a.iter().map(|v| v + 20.0).collect();
        assert!(p(&a, &b) < 0.001);
        let [low, high] = MannWhitney::of_samples(&a, &b).shift_interval(0.01).expect("there is one");
        assert!(low > 10.0 && low < 20.0 && high > 20.0 && high < 30.0, "{low} {high}");
        assert!(p(&a, &[]) > 0.99);
        assert_eq!(MannWhitney::of_samples(&a, &[]).shift_interval(0.01), None);
    }

    proptest! {
        #[test]
        fn the_interval_excludes_zero_exactly_if_the_test_rejects_it(
            a in prop::collection::vec(0_u8..9, 1..20), b in prop::collection::vec(0_u8..12, 1..20), level in 0.0001..0.2,
        ) {
            let floats = |values: &[u8]| values.iter().map(|&v| v.into()).collect::<Vec<f64>>();
            let test = MannWhitney::of_samples(&floats(&a), &floats(&b));
            let interval = test.shift_interval(level);
            if test.p_value() < level {
                prop_assert!(interval.is_some_and(|[low, high]| low >= 0.0 || high <= 0.0), "{interval:?}");
            }
            if interval.is_some_and(|[low, high]| low > 0.0 || high < 0.0) {
                prop_assert!(test.p_value() <= level + 1e-6, "{interval:?} {}", test.p_value());
            }
        }
    }

    #[test]
    fn significance_is_corrected_for_multiple_comparisons() {
        for (ps, alpha, expected) in
            [(vec![0.02, 0.4, 0.9, 0.5], 0.04, 0.01), (vec![0.02, 0.9, 0.03, 0.4], 0.08, 0.04), (vec![], 0.01, 0.01)]
        {
            assert!((significance_level(ps, alpha) - expected).abs() < 1e-12, "{expected}");
        }
    }
}
