//! Summary of repeated measurements.

/// Median and quartiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Quartiles {
    pub(super) low: f64,
    pub(super) median: f64,
    pub(super) high: f64,
}

impl Quartiles {
    /// Returns `None` without values.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let at = |quarter: usize| values[last * quarter / 4];
        Some(Self {
            low: at(1),
            median: at(2),
            high: at(3),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_in_any_order() {
        assert_eq!(Quartiles::of([]), None);
        let all = Quartiles::of([5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        assert_eq!((all.low, all.median, all.high), (2.0, 3.0, 4.0));
    }
}
