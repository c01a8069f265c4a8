//! Mann-Whitney U test over slots, with a smaller effective sample size if neighbouring slots correlate.

/// Two-sided p-value, corrected for ties, that both samples have the same distribution. Consecutive slots correlate, for example while a
/// backlog grows. The statistic is therefore scaled to the effective sample size by the lag-1 correlation. Returns 1 if either sample is
/// empty or all values are equal.
pub(super) fn mann_whitney(a: &[f64], b: &[f64]) -> f64 {
    let (na, nb) = (a.len() as f64, b.len() as f64);
    let mut all: Vec<(f64, bool)> = a.iter().map(|&v| (v, true)).chain(b.iter().map(|&v| (v, false))).collect();
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    let (mut rank_sum, mut ties, mut at) = (0.0, 0.0, 0);
    while at < all.len() {
        let equal = all[at..].iter().take_while(|v| v.0.total_cmp(&all[at].0).is_eq()).count();
        let n = equal as f64;
        let rank = at as f64 + f64::midpoint(n, 1.0);
        rank_sum += rank * all[at..at + equal].iter().filter(|v| v.1).count() as f64;
        ties += n * n * n - n;
        at += equal;
    }
    let n = na + nb;
    let u = rank_sum - na * (na + 1.0) / 2.0;
    let variance = na * nb / 12.0 * (n + 1.0 - ties / (n * (n - 1.0)).max(1.0));
    if variance <= 0.0 || !variance.is_finite() {
        return 1.0;
    }
    // Continuity correction, since U is discrete.
    let distance = ((u - na * nb / 2.0).abs() - 0.5).max(0.0) / variance.sqrt();
    let share = (effective_share(a) * na + effective_share(b) * nb) / n;
    two_sided(distance * share.sqrt())
}

/// Effective share of the slots, from the correlation of neighbours.
fn effective_share(values: &[f64]) -> f64 {
    // Drift in one direction overstates the correlation, so the share is at least a third.
    let rho = correlation(values).clamp(0.0, 0.5);
    (1.0 - rho) / (1.0 + rho)
}

fn correlation(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    let joint: f64 = values.windows(2).map(|w| (w[0] - mean) * (w[1] - mean)).sum();
    // Small samples underestimate the correlation by about 1/n.
    if variance > 0.0 { joint / variance + 1.0 / n } else { 0.0 }
}

/// Two-sided tail probability of the normal distribution beyond `z` (Abramowitz and Stegun 7.1.26, error below 1.5e-7).
fn two_sided(z: f64) -> f64 {
    let x = z / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let series = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let sum = series.iter().fold(0.0, |sum, c| (sum + c) * t);
    (sum * (-x * x).exp()).clamp(0.0, 1.0)
}

/// Minimum ratio between the closest slots of two runs that are far apart.
const SEPARATION: f64 = 1.25;

/// Whether every slot of one run is far beyond every slot of the other, which does not happen by chance in equal runs.
pub(super) fn separated(a: &[f64], b: &[f64]) -> bool {
    let ends = |values: &[f64]| values.iter().fold((f64::MAX, f64::MIN), |(min, max), &v| (min.min(v), max.max(v)));
    let beyond = |below: (f64, f64), above: (f64, f64)| below.1 > 0.0 && above.0 >= SEPARATION * below.1;
    !a.is_empty() && !b.is_empty() && (beyond(ends(a), ends(b)) || beyond(ends(b), ends(a)))
}

/// Smallest share in every slot of one run if the other has none.
const MIN_SHARE: f64 = 0.02;

/// Whether one run has none in every slot and the other some in every slot: with six slots each, a chance of 1 in 924.
pub(super) fn all_or_none(a: &[f64], b: &[f64]) -> bool {
    let none = |values: &[f64]| values.iter().all(|&v| v == 0.0);
    let some = |values: &[f64]| values.iter().all(|&v| v >= MIN_SHARE);
    a.len().min(b.len()) >= 6 && ((none(a) && some(b)) || (some(a) && none(b)))
}

/// Marks the p-values beyond noise by Benjamini-Hochberg. If nothing changed, `alpha` is the probability that any is marked. `None` values
/// are ignored.
pub(super) fn beyond_noise(ps: &[Option<f64>], alpha: f64) -> Vec<bool> {
    let mut known: Vec<f64> = ps.iter().flatten().copied().collect();
    known.sort_by(f64::total_cmp);
    let level = |place: usize| alpha * (place + 1) as f64 / known.len() as f64;
    let max = known.iter().enumerate().rev().find(|(place, p)| **p <= level(*place)).map(|(_, p)| *p);
    ps.iter().map(|p| p.zip(max).is_some_and(|(p, max)| p <= max)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::bootstrap::Random;

    #[test]
    fn p_values_match_known_results() {
        assert!((two_sided(1.959_964) - 0.05).abs() < 1e-6);
        assert!((two_sided(0.0) - 1.0).abs() < 1e-6);
        // The tortoise and hare example of Wikipedia (U = 11 of 36), by the normal approximation with continuity correction.
        let p = mann_whitney(&[1.0, 7.0, 8.0, 9.0, 10.0, 11.0], &[2.0, 3.0, 4.0, 5.0, 6.0, 12.0]);
        assert!((0.2..0.8).contains(&p), "{p}");
        assert!((mann_whitney(&[3.0; 9], &[3.0; 9]) - 1.0).abs() < 1e-9);
    }

    /// For equal runs, the rate of reported differences stays near the level of 5 %; about twice that with correlated neighbours.
    #[test]
    fn equal_runs_rarely_differ_significantly() {
        for (carried, max) in [(0.0, 6), (0.6, 11)] {
            let (mut random, mut different, tries) = (Random::new(7), 0, 2_000);
            for _ in 0..tries {
                let mut last = 0.0;
                let mut walk = || {
                    last = carried * last + random.unit() - 0.5;
                    last
                };
                let values: Vec<f64> = (0..40).map(|_| walk()).collect();
                different += usize::from(mann_whitney(&values[..20], &values[20..]) < 0.05);
            }
            assert!(different <= tries * max / 100, "{different} of {tries} at {carried}");
        }
    }

    #[test]
    fn different_values_are_distinguished() {
        let a: Vec<f64> = (0..12).map(|n| 100.0 + f64::from(n * 7 % 12)).collect();
        let b: Vec<f64> = a.iter().map(|v| v * 1.5).collect();
        assert!(mann_whitney(&a, &b) < 0.001);
        assert!(mann_whitney(&a, &[]) > 0.99);
    }

    #[test]
    fn runs_are_separated_by_a_margin_between_all_slots() {
        assert!(separated(&[1.0, 2.0], &[9.0, 2.5]) && separated(&[9.0, 2.5], &[1.0, 2.0]));
        assert!(!separated(&[1.0, 2.0], &[9.0, 2.4]) && !separated(&[0.0], &[1.0]) && !separated(&[], &[1.0]));
    }

    #[test]
    fn values_in_every_slot_after_none_are_not_noise() {
        assert!(all_or_none(&[0.0; 6], &[0.4; 6]) && all_or_none(&[0.4; 6], &[0.0; 6]));
        assert!(!all_or_none(&[0.0; 5], &[0.4; 5]) && !all_or_none(&[0.0; 6], &[0.4, 0.4, 0.4, 0.4, 0.4, 0.0]));
    }

    #[test]
    fn significance_is_corrected_for_multiple_comparisons() {
        assert_eq!(beyond_noise(&[Some(0.02), None, Some(0.4), Some(0.9)], 0.05), [false; 4]);
        assert_eq!(beyond_noise(&[Some(0.02), None, Some(0.03), Some(0.9)], 0.05), [true, false, true, false]);
    }
}
