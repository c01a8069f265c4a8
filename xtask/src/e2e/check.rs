//! Comparisons of expected values with tokengap's.

use std::fmt::Debug;

/// Number of comparisons, and the failed ones.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    pub(crate) made: u32,
    pub(crate) mismatches: Vec<String>,
}

impl Checks {
    pub(crate) fn equal<T: PartialEq + Debug>(&mut self, what: &str, expected: &T, got: &T) {
        self.made += 1;
        if expected != got {
            self.mismatches.push(format!("{what}: expected {expected:?}, got {got:?}"));
        }
    }

    pub(crate) fn holds(&mut self, what: &str, got: bool) {
        self.equal(what, &true, &got);
    }
}
