//! Sums of the long ones among durations.

use super::sum::DurationSum;

/// From which length on a duration is in the sums of each class, in nanoseconds, longest first.
const CLASSES_NS: [u64; 3] = [1_000_000_000, 500_000_000, 250_000_000];
/// Number of classes.
pub const LONG_CLASSES: usize = CLASSES_NS.len();

/// Sums of durations, or of parts of them, that take at least a second, half a second and a quarter. A few long ones vanish in a sum of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongDurations([DurationSum; LONG_CLASSES]);

impl LongDurations {
    /// Adds a duration to the sum of each class whose minimum it reaches.
    pub fn record(&mut self, ns: u64) {
        self.record_part(ns, ns);
    }

    /// Adds a part of a duration of `whole_ns` to the sum of each class whose minimum the whole reaches.
    pub fn record_part(&mut self, part_ns: u64, whole_ns: u64) {
        for (sum, &minimum_ns) in self.0.iter_mut().zip(&CLASSES_NS) {
            if whole_ns >= minimum_ns {
                sum.add(DurationSum { count: 1, ns: part_ns.into() });
            }
        }
    }

    /// Adds the sums of other durations, class by class.
    pub fn add(&mut self, other: &Self) {
        for (sum, other) in self.0.iter_mut().zip(&other.0) {
            sum.add(*other);
        }
    }

    /// Sum of a class, 0 to [`LONG_CLASSES`].
    pub fn of_class(&self, class: usize) -> DurationSum {
        self.0.get(class).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_each_class_whose_length_it_has() {
        let mut sums = LongDurations::default();
        for ms in [1_500, 600, 300, 100] {
            sums.record(ms * 1_000_000);
        }
        let of_classes = [0, 1, 2, 3].map(|class| (sums.of_class(class).count, sums.of_class(class).ns / 1_000_000));
        assert_eq!(of_classes, [(1, 1_500), (2, 2_100), (3, 2_400), (0, 0)]);
    }
}
